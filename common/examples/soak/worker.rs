//! What a worker does until it is killed or sees the end.

use std::time::Duration;

use common::ids::{BatchId, Rank, Role, Step};
use common::queue::{Consumer, Producer, Queue, Rows};
use common::shutdown::Shutdown;
use common::wait::Patience;

use crate::evidence::Evidence;

/// Errors as text: the harness only counts them.
type Outcome = Result<(), String>;

pub(crate) fn work(name: &str, role: Role, rank: Rank, evidence: &Evidence) -> Outcome {
    let queue = Queue::attach(name).map_err(text)?;
    match role {
        Role::Target => produce(&queue.producer(rank).map_err(text)?, evidence),
        Role::Drafter => consume(&queue.consumer(rank).map_err(text)?, evidence),
    }
}

fn patience() -> Patience {
    Patience { timeout: Duration::from_secs(30), shutdown: Shutdown::never() }
}

fn produce(producer: &Producer, evidence: &Evidence) -> Outcome {
    while let Some(lease) = producer.claim(&patience()).map_err(text)? {
        let batch = lease.batch_id();
        evidence.fill(lease.slot(), batch);
        lease.publish((batch.0 % 2) as u32, &rows(batch)).map_err(text)?;
    }
    Ok(())
}

fn consume(consumer: &Consumer, evidence: &Evidence) -> Outcome {
    while let Some(lease) = consumer.pop(&patience()).map_err(text)? {
        let batch = lease.batch_id();
        evidence.note_delivery(batch, lease.returns());
        let arrived = lease.rows().is_ok_and(|arrived| arrived == rows(batch));
        if !arrived || !evidence.is_whole(lease.slot(), batch) {
            evidence.note_damage();
        }
        lease.release().map_err(text)?;
        consumer.trained(&[batch], Step(batch.0)).map_err(text)?;
    }
    Ok(())
}

/// Rows that only this batch can have.
fn rows(batch: BatchId) -> Rows {
    let tokens = 1 + batch.0 as u32 % 64;
    Rows {
        token_ids: (0..tokens).map(|place| place ^ batch.0 as u32).collect(),
        loss_mask: (0..tokens).map(|place| (place % 2) as u8).collect(),
        document_offsets: vec![0, tokens],
        row_ids: vec![batch.0],
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
