//! Handing filled slots over, while the next batch is already being computed.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use common::footprint::IN_FLIGHT;
use common::queue::{LeaseError, Phase, Producer, Rows, WriteLease};
use common::shutdown::Shutdown;
use model::arena::Written;

use crate::worker::ServeError;

/// Filled slots that wait for the publisher, beside the one in its hands and the one being filled.
const WAITING: usize = IN_FLIGHT as usize - 2;

/// A slot that has been given all its taps, and what goes with it. Dropped, it gives the slot back only once nothing is
/// copied there any more: fields are dropped in this order.
pub(crate) struct Filled {
    pub(crate) written: Written,
    pub(crate) lease: WriteLease,
    pub(crate) bucket: u32,
    pub(crate) rows: Rows,
}

impl Filled {
    /// Waits until every byte has arrived, and only then publishes.
    pub(crate) fn publish(self, producer: &Producer) -> Result<(), ServeError> {
        // The last one named is the first one dropped.
        let Filled { mut lease, written, bucket, rows } = self;
        producer.about(lease.batch_id().0);
        producer.phase(Phase::Capture);
        let device = written.is_on_its_way().then(|| producer.time(Phase::Device));
        let checksum = written.wait()?;
        drop(device);
        lease.set_checksum(checksum);
        producer.phase(Phase::Publish);
        match lease.publish(bucket, &rows) {
            // The launcher took the slot back: its memory went with another target. The batch is pending again.
            Err(LeaseError::Lost(batch)) => tracing::warn!("the slot of batch {batch} was lost with its memory"),
            published => published?,
        }
        Ok(())
    }
}

/// Who publishes: a thread that sleeps until a slot's copies are done, or, where they are done at once, the caller.
pub(crate) enum Publisher<'scope> {
    Caller(Producer),
    Thread(SyncSender<Filled>, ScopedJoinHandle<'scope, Result<(), ServeError>>),
}

impl<'scope> Publisher<'scope> {
    /// A thread. When it fails it asks for `shutdown`, so that nobody waits for the slots that it holds.
    pub(crate) fn start(scope: &'scope Scope<'scope, '_>, side: Producer, shutdown: &Shutdown) -> Publisher<'scope> {
        let (sender, receiver) = sync_channel(WAITING);
        let shutdown = shutdown.clone();
        let thread = scope.spawn(move || {
            let published = publish_all(&receiver, &side);
            if published.is_err() {
                shutdown.request();
            }
            published
        });
        Publisher::Thread(sender, thread)
    }

    /// Hands a slot over; waits while as many are in flight as may be. False if the thread has failed.
    pub(crate) fn hand_over(&self, filled: Filled) -> Result<bool, ServeError> {
        match self {
            Publisher::Caller(producer) => filled.publish(producer).map(|()| true),
            Publisher::Thread(sender, _) => Ok(sender.send(filled).is_ok()),
        }
    }

    /// Publishes what is in flight; why it failed, if it did.
    pub(crate) fn finish(self) -> Result<(), ServeError> {
        let Publisher::Thread(sender, thread) = self else { return Ok(()) };
        drop(sender);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn publish_all(filled: &Receiver<Filled>, producer: &Producer) -> Result<(), ServeError> {
    loop {
        producer.phase(Phase::Await);
        let Ok(next) = filled.recv() else { return Ok(()) };
        next.publish(producer)?;
    }
}
