//! A target or a drafter without a model: the real arena, the real queue, payloads that can be computed again.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::arena::ArenaRequest;
use common::config::Device as Wanted;
use common::exit::AnyError;
use common::ids::{BatchId, Rank, Role, Step};
use common::launched::Launcher;
use common::line::{Line, Received};
use common::queue::{LeaseError, Phase, Queue, Rows, WriteLease};
use common::shutdown::Shutdown;
use common::wait::Patience;
use common::watchdog;
use model::arena::{
    Arena, ArenaError, GpuArena, Incoming, Link, LinkError, SlotReader, SlotWriter, Written, payload_checksum,
};
use model::cuda::Gpu;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tch::{Device, Kind, Tensor};

use crate::spec::{Job, Spec, TAPS};

/// The worker's line, used for the arena alone.
struct ArenaLine(Line);

impl Link for ArenaLine {
    fn send(&self, request: ArenaRequest, fd: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        self.0.send(&request, fd, Duration::from_secs(10)).map_err(|error| LinkError::Line(error.to_string()))
    }

    fn receive(&self, timeout: Duration) -> Result<Option<Incoming>, LinkError> {
        let line = |error: &dyn std::fmt::Display| LinkError::Line(error.to_string());
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)).map_err(|error| line(&error))?;
        let received = self.0.try_receive().map_err(|error| line(&error))?;
        Ok(received.map(|Received { message, file }| (message, file)))
    }
}

/// How long others wait for a worker that hangs.
pub(crate) const HANG_PATIENCE: Duration = Duration::from_secs(5);

/// A slot on its way to READY, and what was written into it before.
type InFlight = (WriteLease, Written, Vec<Written>);

/// One worker.
pub(crate) struct Worker<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) rank: Rank,
    pub(crate) device: Device,
    pub(crate) patience: Patience,
    pub(crate) queue: Queue,
}

pub(crate) fn run(spec: &Spec, job: Job, rank: u32) -> Result<(), AnyError> {
    if job == Job::Memory {
        return memory(spec);
    }
    let devices = if job.role() == Role::Target { &spec.targets } else { &spec.drafters };
    let device = if spec.hides { 0 } else { devices[rank as usize] };
    let device = model::runtime::start(Wanted::Cuda, Rank(device), 1)?;
    let patience = Patience { timeout: Duration::from_secs(120), shutdown: Shutdown::install()? };
    let worker = Worker { spec, rank: Rank(rank), device, patience, queue: Queue::attach(&spec.queue)? };
    match job {
        Job::Fill => worker.fill(),
        Job::Tear => worker.tear(),
        Job::Idle => worker.idle(),
        Job::Push => worker.push(),
        Job::Hang => worker.hang(),
        Job::Capture => worker.capture(),
        Job::Produce => worker.produce(),
        Job::Drain => worker.drain(),
        Job::Keep => worker.keep(),
        Job::Consume => worker.consume(),
        Job::Pull => worker.pull(),
        Job::Hold => worker.hold(),
        Job::Memory => unreachable!("asked above"),
    }
}

fn memory(spec: &Spec) -> Result<(), AnyError> {
    let devices: std::collections::BTreeSet<u32> = spec.targets.iter().chain(&spec.drafters).copied().collect();
    let free: Result<Vec<usize>, _> =
        devices.into_iter().map(|device| Ok(Gpu::open(device as usize)?.memory()?.0)).collect();
    say(&serde_json::to_string(&free.map_err(|error: model::cuda::CudaError| error)?)?)
}

/// A line for the harness.
pub(crate) fn say(line: &str) -> Result<(), AnyError> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

impl Worker<'_> {
    pub(crate) fn arena(&self) -> Result<Arena, AnyError> {
        let Device::Cuda(ordinal) = self.device else { return Err("no GPU".into()) };
        let link = Box::new(ArenaLine(Line::of_stdin()?));
        let arena = GpuArena::attach(Gpu::open(ordinal)?, self.spec.layout(), link, &self.patience)?;
        Ok(Arena::Gpu(arena))
    }

    fn fill(&self) -> Result<(), AnyError> {
        let producer = self.queue.producer(self.rank)?;
        producer.phase(Phase::Loading);
        let writer = SlotWriter::new(self.arena()?, self.spec.verify)?;
        producer.phase(Phase::Forward);
        let (sender, receiver) = mpsc::sync_channel::<InFlight>(1);
        thread::scope(|scope| {
            let publisher = scope.spawn(move || receiver.iter().try_for_each(|item| self.publish(item)));
            while let Some(lease) = producer.claim(&self.patience)? {
                let rubbish = self.rubbish(&writer, &lease);
                let filled = rubbish.and_then(|rubbish| Ok((self.payload(&writer, &lease)?, rubbish)));
                let (written, rubbish) = match filled {
                    // The slot's memory went with the target that had made it.
                    Err(_) if lease.is_lost() => continue,
                    filled => filled?,
                };
                if sender.send((lease, written, rubbish)).is_err() {
                    break;
                }
            }
            drop(sender);
            publisher.join().map_err(|_| "the publisher panicked")?
        })
    }

    fn publish(&self, (mut lease, written, rubbish): InFlight) -> Result<(), AnyError> {
        rubbish.into_iter().try_for_each(|written| written.wait().map(drop))?;
        lease.set_checksum(written.wait()?);
        let rows = self.rows(lease.batch_id());
        match lease.publish(0, &rows) {
            // The slot's memory went with the target that had made it.
            Err(LeaseError::Lost(_)) => Ok(()),
            published => Ok(published?),
        }
    }

    /// Publishes while the copies are still on their way, behind others that make them late.
    fn tear(&self) -> Result<(), AnyError> {
        let producer = self.queue.producer(self.rank)?;
        let writer = SlotWriter::new(self.arena()?, false)?;
        while let Some(mut lease) = producer.claim(&self.patience)? {
            let tokens = self.tokens(lease.batch_id());
            let tap = |seed, tap| self.tap(seed, tap, tokens);
            let rubbish: Vec<Tensor> = (0..TAPS).map(|k| tap(u64::MAX, k)).collect();
            let payload: Vec<Tensor> = (0..TAPS).map(|k| tap(lease.batch_id().0, k)).collect();
            lease.set_checksum(Some(payload_checksum(&Tensor::cat(&payload, 1))));
            let rows = self.rows(lease.batch_id());
            let mut filling = writer.fill(&lease, &self.patience)?;
            let late = (0..self.spec.rubbish).flat_map(|_| rubbish.iter().enumerate());
            late.chain(payload.iter().enumerate()).for_each(|(k, hidden)| filling.write_tap(k, hidden));
            let written = filling.finish()?;
            lease.publish(0, &rows)?;
            // What is copied from has to stay until then.
            written.wait()?;
        }
        Ok(())
    }

    fn rubbish(&self, writer: &SlotWriter, lease: &WriteLease) -> Result<Vec<Written>, ArenaError> {
        (0..self.spec.rubbish).map(|round| self.write(writer, lease, u64::MAX - u64::from(round))).collect()
    }

    fn payload(&self, writer: &SlotWriter, lease: &WriteLease) -> Result<Written, ArenaError> {
        self.write(writer, lease, lease.batch_id().0)
    }

    fn write(&self, writer: &SlotWriter, lease: &WriteLease, seed: u64) -> Result<Written, ArenaError> {
        let tokens = self.tokens(lease.batch_id());
        let mut filling = writer.fill(lease, &self.patience)?;
        for tap in 0..TAPS {
            filling.write_tap(tap, &self.tap(seed, tap, tokens));
        }
        filling.finish()
    }

    /// Every fourth batch is as long as a slot, the others are between half as long and that.
    fn tokens(&self, batch: BatchId) -> u32 {
        let longest = self.spec.tokens;
        if batch.0.is_multiple_of(4) {
            return longest;
        }
        longest - (batch.0.wrapping_mul(2_654_435_761) % u64::from(longest)) as u32 / 2
    }

    /// Any bits will do: they are moved, not computed with.
    pub(crate) fn tap(&self, seed: u64, tap: usize, tokens: u32) -> Tensor {
        let (tokens, hidden) = (i64::from(tokens), i64::from(self.spec.hidden));
        let start = (seed % 9973) as i64 * 7919 + tap as i64 * 104_729;
        let words = Tensor::arange_start(start, start + tokens * hidden / 4, (Kind::Int64, self.device));
        (words * 0x9E37_79B9_7F4A_7C15u64.cast_signed()).view_dtype(Kind::BFloat16).view([tokens, hidden])
    }

    fn rows(&self, batch: BatchId) -> Rows {
        let tokens = self.tokens(batch);
        Rows {
            token_ids: (0..tokens).map(|token| token ^ batch.0 as u32).collect(),
            loss_mask: vec![1; tokens as usize],
            document_offsets: vec![0, tokens],
            row_ids: vec![batch.0],
        }
    }

    fn idle(&self) -> Result<(), AnyError> {
        let _arena = self.arena()?;
        thread::sleep(Duration::from_secs(120));
        Ok(())
    }

    /// For a minute at least; the watchdog's patience is a few seconds.
    fn hang(&self) -> Result<(), AnyError> {
        let producer = self.queue.producer(self.rank)?;
        let worker = (Role::Target, self.rank);
        watchdog::start(&self.queue, worker, HANG_PATIENCE, model::runtime::name(self.device), &Launcher::none());
        let writer = SlotWriter::new(self.arena()?, false)?;
        let lease = producer.claim(&self.patience)?.ok_or("nothing to claim")?;
        let endless = Tensor::ones([32_768, 32_768], (Kind::BFloat16, self.device));
        // The watchdog may speak before all of it is launched: the GPU's queue has an end.
        producer.phase(Phase::Forward);
        say("hangs")?;
        (0..600).for_each(|_| drop(endless.matmul(&endless)));
        let written = self.payload(&writer, &lease)?;
        producer.phase(Phase::Device);
        written.wait()?;
        Ok(())
    }

    fn push(&self) -> Result<(), AnyError> {
        let producer = self.queue.producer(self.rank)?;
        let writer = SlotWriter::new(self.arena()?, false)?;
        let lease = producer.claim(&self.patience)?.ok_or("nothing to claim")?;
        let taps: Vec<Tensor> = (0..TAPS).map(|tap| self.tap(1, tap, self.spec.tokens)).collect();
        let Device::Cuda(ordinal) = self.device else { return Err("no GPU".into()) };
        tch::Cuda::synchronize(ordinal as i64);
        let fill = || {
            let mut filling = writer.fill(&lease, &self.patience)?;
            taps.iter().enumerate().for_each(|(tap, hidden)| filling.write_tap(tap, hidden));
            filling.finish()
        };
        let (mut alone, mut queued) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let started = Instant::now();
            fill()?.wait()?;
            alone.push(started.elapsed().as_secs_f64());
            let started = Instant::now();
            let written: Vec<Written> = (0..10).map(|_| fill()).collect::<Result<_, ArenaError>>()?;
            written.into_iter().try_for_each(|written| written.wait().map(drop))?;
            queued.push(started.elapsed().as_secs_f64() / 10.0);
        }
        say(&format!("{} {}", median(alone), median(queued)))
    }

    fn pull(&self) -> Result<(), AnyError> {
        let consumer = self.queue.consumer(self.rank)?;
        let arena = self.arena()?;
        let Arena::Gpu(parts) = &arena else { return Err("no GPU".into()) };
        let path = parts.preflight(self.spec.targets.len() as u32 + self.rank.0)?.swap_remove(0);
        let reader = SlotReader::new(arena, self.device, self.rank)?;
        let lease = consumer.pop(&self.patience)?.ok_or("nothing to pop")?;
        let mut buffer = reader.buffer()?;
        let mut seconds = Vec::new();
        for _ in 0..50 {
            let started = Instant::now();
            let read = reader.read(&lease, self.spec.tokens as usize, buffer, &self.patience)?;
            seconds.push(started.elapsed().as_secs_f64());
            buffer = read.into_buffer(reader.gpu())?;
        }
        say(&format!("{} {} {}", median(seconds), path.write, path.read))
    }

    fn drain(&self) -> Result<(), AnyError> {
        let consumer = self.queue.consumer(self.rank)?;
        consumer.phase(Phase::Loading);
        let reader = SlotReader::new(self.arena()?, self.device, self.rank)?;
        consumer.phase(Phase::Copy);
        let mut buffer = reader.buffer()?;
        while let Some(lease) = consumer.pop(&self.patience)? {
            let batch = lease.batch_id();
            let rows = lease.rows()?;
            match reader.read(&lease, rows.num_tokens(), buffer, &self.patience) {
                Ok(read) => buffer = read.into_buffer(reader.gpu())?,
                Err(ArenaError::Gone(_)) => buffer = reader.buffer()?,
                Err(error @ ArenaError::Checksum { .. }) => {
                    say(&format!("bad {} {error}", batch.0))?;
                    buffer = reader.buffer()?;
                }
                Err(error) => return Err(error.into()),
            }
            match lease.release() {
                Ok(()) => {
                    consumer.trained(&[batch], Step(1))?;
                    say(&format!("got {}", batch.0))?;
                }
                Err(LeaseError::Lost(_)) => say(&format!("lost {}", batch.0))?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn hold(&self) -> Result<(), AnyError> {
        let consumer = self.queue.consumer(self.rank)?;
        let reader = SlotReader::new(self.arena()?, self.device, self.rank)?;
        let Some(lease) = consumer.pop(&self.patience)? else { return Ok(()) };
        let tokens = lease.rows()?.num_tokens();
        let _read = reader.read(&lease, tokens, reader.buffer()?, &self.patience)?;
        say(&format!("held {}", lease.batch_id().0))?;
        thread::sleep(Duration::from_secs(120));
        Ok(())
    }
}

pub(crate) fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
