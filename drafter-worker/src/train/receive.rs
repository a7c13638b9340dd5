//! Batches out of the queue, fetched ahead: a thread pops, copies into one of two buffers of this process, releases the
//! slot at once and hands the batch over, so that training never waits for a copy.
//!
//! A buffer is written again only after everything that reads it has run on the device ([`Read::into_buffer`]).

use std::sync::Arc;
use std::sync::mpsc::{Receiver as Channel, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::footprint::RECEIVED;
use common::ids::{BatchId, Step};
use common::queue::{Consumer, LeaseError, Phase, ReadLease, Rows, RowsError};
use common::shutdown::Shutdown;
use common::wait::{Patience, WaitError};
use model::arena::{ArenaError, Buffer, Read, SlotReader};
use tch::Tensor;

use super::share::{Share, Want};

/// Batches in this process at once.
const BUFFERS: usize = RECEIVED as usize;

/// Between two looks at whether this process is to end.
const LOOK: Duration = Duration::from_millis(50);

/// A batch in this process's own memory. Give it back to the [`Receiver`] once all that reads it is enqueued.
pub(crate) struct Batch {
    pub(crate) id: BatchId,
    pub(crate) rows: Rows,
    /// [T, K*H] hidden states of the tapped layers.
    pub(crate) taps: Tensor,
    read: Read,
}

/// Why a step's batches did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("waiting for a batch: {0}")]
    Wait(#[source] WaitError),
    #[error("batch {0} is damaged in its slot: {1}")]
    Rows(BatchId, #[source] RowsError),
    #[error("reading a slot: {0}")]
    Arena(#[from] ArenaError),
    #[error("releasing a slot: {0}")]
    Lease(#[from] LeaseError),
}

/// A batch, nothing where one was to be had but was trained already, or why none comes any more.
type Fetched = Result<Option<Batch>, ReceiveError>;

/// The trainer's end. Dropping it ends the thread; what was fetched but not trained stays held by this drafter.
pub(crate) struct Receiver {
    pub(crate) consumer: Consumer,
    reader: Arc<SlotReader>,
    share: Share,
    fetched: Channel<Fetched>,
    buffers: Sender<Buffer>,
    stop: Shutdown,
    thread: Option<JoinHandle<()>>,
    /// Batches of the present step that are still to come.
    left: Option<usize>,
}

impl Receiver {
    /// Starts fetching what this rank takes, from `first` on.
    ///
    /// # Errors
    /// The GPU failed.
    pub(crate) fn start(
        consumer: Consumer,
        reader: Arc<SlotReader>,
        share: Share,
        first: Step,
        patience: &Patience,
    ) -> Result<Receiver, ArenaError> {
        let stop = Shutdown::never();
        let (sender, fetched) = sync_channel(BUFFERS);
        let (buffers, free) = channel();
        for _ in 0..BUFFERS {
            drop(buffers.send(reader.buffer()?));
        }
        let patience = Patience { timeout: patience.timeout, shutdown: stop.clone() };
        let (side, shared) = (consumer.side(), Arc::clone(&reader));
        let fetcher = Fetcher { consumer: side, reader: shared, free, spare: None, sender, patience };
        let thread = Some(thread::spawn(move || fetcher.run(share, first)));
        Ok(Receiver { consumer, reader, share, fetched, buffers, stop, thread, left: None })
    }

    /// This rank's next batch of `step`; none when it has all of them.
    ///
    /// # Errors
    /// [`ReceiveError`]; what was taken before stays held by this drafter.
    pub(crate) fn next(&mut self, step: Step, patience: &Patience) -> Fetched {
        loop {
            let left = *self.left.get_or_insert_with(|| self.share.wants(step).count());
            if left == 0 {
                self.left = None;
                return Ok(None);
            }
            let batch = self.await_batch(patience)?;
            self.left = Some(left - 1);
            if batch.is_some() {
                return Ok(batch);
            }
        }
    }

    fn await_batch(&mut self, patience: &Patience) -> Fetched {
        if let Ok(fetched) = self.fetched.try_recv() {
            return fetched;
        }
        self.consumer.phase(Phase::Await);
        loop {
            if patience.shutdown.is_set() {
                return Err(ReceiveError::Wait(WaitError::Shutdown));
            }
            match self.fetched.recv_timeout(LOOK) {
                Ok(fetched) => return fetched,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone(self.thread.take())),
            }
        }
    }

    /// Takes a batch's buffer back, when everything that reads the batch is enqueued.
    ///
    /// # Errors
    /// The GPU failed.
    pub(crate) fn give_back(&self, batch: Batch) -> Result<(), ReceiveError> {
        let Batch { taps, read, .. } = batch;
        drop(taps);
        // The thread is gone at the end of the stream; it needs no buffer then.
        let _ = self.buffers.send(read.into_buffer(self.reader.gpu())?);
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.request();
        // What was fetched goes, so that the thread finds room and ends.
        self.fetched.try_iter().for_each(drop);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// What a thread that hands nothing over any more is to its trainer: it has ended before, and said why then. A panic of
/// it goes on here.
fn gone(thread: Option<JoinHandle<()>>) -> ReceiveError {
    match thread.map(JoinHandle::join) {
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        _ => ReceiveError::Wait(WaitError::Aborted),
    }
}

/// The thread's end.
struct Fetcher {
    consumer: Consumer,
    reader: Arc<SlotReader>,
    free: Channel<Buffer>,
    /// Taken, and not used.
    spare: Option<Buffer>,
    sender: SyncSender<Fetched>,
    patience: Patience,
}

impl Fetcher {
    fn run(mut self, share: Share, first: Step) {
        let steps = (first.0..).map(Step);
        // Nothing falls to any rank after the last step; a step without a share of ours may lie before it.
        for want in steps.take_while(|step| !share.is_over(*step)).flat_map(|step| share.wants(step)) {
            let fetched = self.fetch(want);
            let is_last = fetched.is_err();
            if self.sender.send(fetched).is_err() || is_last {
                break;
            }
        }
        // Until the trainer is done too, this thread does nothing.
        self.consumer.phase(Phase::Finished);
    }

    fn fetch(&mut self, want: Want) -> Fetched {
        self.consumer.phase(Phase::Await);
        let mut buffer = self.free_buffer().ok_or(ReceiveError::Wait(WaitError::Shutdown))?;
        self.consumer.phase(Phase::Device);
        buffer.await_free()?;
        loop {
            let lease = match want {
                Want::This(id) => self.consumer.pop_batch(id, &self.patience),
                Want::Any => self.consumer.pop(&self.patience),
            };
            let Some(lease) = lease.map_err(ReceiveError::Wait)? else {
                self.spare = Some(buffer);
                return Ok(None);
            };
            let id = lease.batch_id();
            self.consumer.about(id.0);
            let (rows, read) = match self.read(&lease, buffer) {
                // The slot's memory was lost with its target: the batch is computed again.
                Err(_) if lease.is_lost() => {
                    buffer = self.reader.buffer()?;
                    continue;
                }
                read => read?,
            };
            match lease.release() {
                Ok(()) => return Ok(Some(Batch { id, rows, taps: read.taps.shallow_clone(), read })),
                // As above, while it was read.
                Err(LeaseError::Lost(_)) => buffer = read.into_buffer(self.reader.gpu())?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read(&self, lease: &ReadLease, buffer: Buffer) -> Result<(Rows, Read), ReceiveError> {
        // Memory that was made anew is mapped by another thread.
        self.consumer.phase(Phase::Await);
        let mapped = self.reader.await_memory(lease, &self.patience);
        self.consumer.phase(Phase::Copy);
        let rows = lease.rows().map_err(|error| ReceiveError::Rows(lease.batch_id(), error))?;
        match mapped.and_then(|()| self.reader.read(lease, rows.token_ids.len(), buffer, &self.patience)) {
            Err(error) if error.is_shutdown() => Err(ReceiveError::Wait(WaitError::Shutdown)),
            read => Ok((rows, read?)),
        }
    }

    fn free_buffer(&mut self) -> Option<Buffer> {
        if let Some(spare) = self.spare.take() {
            return Some(spare);
        }
        loop {
            match self.free.recv_timeout(LOOK) {
                Ok(buffer) => return Some(buffer),
                Err(RecvTimeoutError::Timeout) if !self.patience.shutdown.is_set() => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a bug while fetching")]
    fn a_panic_of_the_thread_is_the_trainers() {
        let _ = gone(Some(thread::spawn(|| panic!("a bug while fetching"))));
    }

    #[test]
    fn a_thread_that_ended_before_has_said_why() {
        assert!(matches!(gone(Some(thread::spawn(|| ()))), ReceiveError::Wait(WaitError::Aborted)));
        assert!(matches!(gone(None), ReceiveError::Wait(WaitError::Aborted)));
    }
}
