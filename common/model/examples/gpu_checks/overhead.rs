//! What queue and transport cost beside work (test 31): steps of known work at 100,000 tokens/s, in rounds with a slot
//! written or read each step and, in turn, without. As in a worker nobody waits for the GPU between steps: slots in flight and
//! buffers bound how far the host is ahead of it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::arena::ArenaKind;
use common::exit::AnyError;
use common::ids::{BatchId, Role, Step};
use common::queue::{Consumer, Phase, Producer, Rows, WriteLease};
use model::arena::{Buffer, Read, SlotReader, SlotWriter, Written};
use tch::{Device, Kind, Tensor};

use crate::checks::{devices, pair};
use crate::findings::{Bar, Findings};
use crate::spec::{Job, Load, Spec, TAPS};
use crate::worker::{Worker, median, say};
use crate::world::World;

const TOKENS_PER_S: f64 = 100_000.0;
/// Of the faster side's step.
const FASTER: f64 = 0.9;
/// Pairs of rounds; the median counts.
const ROUNDS: u32 = 5;
/// Per cent of a step's time.
const BAR: Bar = Bar::AtMost(2.0);

pub(crate) fn overhead(findings: &mut Findings) -> Result<(), AnyError> {
    let [one, other] = devices();
    if one == other {
        // Two processes that compute on one GPU take turns: their steps have no length of their own.
        return Ok(());
    }
    for (tokens, steps) in [(12_288, 12), (2048, 48)] {
        let step = f64::from(tokens) / TOKENS_PER_S;
        for slower in [Role::Drafter, Role::Target] {
            let of = |role: Role| if role == slower { step } else { step * FASTER };
            let load = Load { target: of(Role::Target), drafter: of(Role::Drafter), steps };
            let batches = u64::from(ROUNDS * steps);
            let spec = Spec { tokens, verify: false, batches, load, ..pair(ArenaKind::Fd) };
            let mut world = World::new("overhead", spec)?;
            world.start_all(Job::Produce, Job::Consume)?;
            let limit = Duration::from_secs(90);
            world.until("the rounds", limit, |world| !world.is_running(slower, 0))?;
            let shares = shares(&world, slower)?;
            let text = format!("queue and transport, slots of {tokens} tokens at 100,000/s: of the {slower}'s step");
            findings.found(&text, (100.0 * shares, "%"), BAR);
        }
    }
    Ok(())
}

/// Median over rounds of the time that a step takes longer with a slot than without, over its time without.
fn shares(world: &World, of: Role) -> Result<f64, AnyError> {
    let lines = world.said.iter().filter_map(|line| line.strip_prefix(&format!("{of} ")));
    let share = |line: &str| {
        let (plain, with) = line.split_once(' ').ok_or("two numbers a round")?;
        Ok::<f64, AnyError>(with.parse::<f64>()? / plain.parse::<f64>()? - 1.0)
    };
    let shares = lines.map(share).collect::<Result<Vec<f64>, _>>()?;
    if shares.len() != ROUNDS as usize {
        return Err(format!("{} rounds of {ROUNDS}", shares.len()).into());
    }
    Ok(median(shares))
}

/// Work for a GPU, of a known length. Its products are so large that several steps of them fit into a GPU's queue of launches:
/// a host that waits for room there could do nothing else.
struct Work {
    factors: [Tensor; 2],
    products: u32,
}

impl Work {
    fn lasting(seconds: f64, device: Device) -> Work {
        let factor = || Tensor::randn([8192, 8192], (Kind::BFloat16, device));
        let mut work = Work { factors: [factor(), factor()], products: 25 };
        work.run();
        let started = Instant::now();
        work.run();
        let products = f64::from(work.products) * seconds / started.elapsed().as_secs_f64();
        work.products = products.round().max(1.0) as u32;
        work
    }

    fn run(&self) {
        self.launch();
        self.wait();
    }

    fn launch(&self) {
        (0..self.products).for_each(|_| drop(self.factors[0].matmul(&self.factors[1])));
    }

    /// Waits for what was launched, not for copies on other streams.
    fn wait(&self) {
        let _ = self.factors[0].narrow(0, 0, 1).narrow(1, 0, 1).to_kind(Kind::Double).double_value(&[]);
    }
}

/// One pair of rounds: so many steps of work alone, then, when `ready`, as many `steps` with a slot. Says how long both took.
fn round(
    (role, load): (Role, Load),
    work: &Work,
    ready: impl Fn() -> bool,
    mut step: impl FnMut() -> Result<(), AnyError>,
) -> Result<(), AnyError> {
    let started = Instant::now();
    (0..load.steps).for_each(|_| work.launch());
    work.wait();
    let plain = started.elapsed().as_secs_f64();
    while !ready() {
        thread::sleep(Duration::from_millis(1));
    }
    let started = Instant::now();
    (0..load.steps).try_for_each(|_| step())?;
    work.wait();
    say(&format!("{role} {plain} {}", started.elapsed().as_secs_f64()))
}

/// One document as long as a slot.
fn whole(batch: BatchId, tokens: u32) -> Rows {
    let (token_ids, loss_mask) = (vec![1; tokens as usize], vec![1; tokens as usize]);
    Rows { token_ids, loss_mask, document_offsets: vec![0, tokens], row_ids: vec![batch.0] }
}

/// A slot on its way to READY.
type Filled = (WriteLease, Written, Rows);

fn publish_all(filled: &mpsc::Receiver<Filled>, producer: &Producer) -> Result<(), AnyError> {
    for (lease, written, rows) in filled {
        producer.phase(Phase::Capture);
        written.wait()?;
        producer.phase(Phase::Publish);
        lease.publish(0, &rows)?;
        producer.phase(Phase::Await);
    }
    Ok(())
}

impl Worker<'_> {
    pub(crate) fn produce(&self) -> Result<(), AnyError> {
        let producer = self.queue.producer(self.rank)?;
        producer.phase(Phase::Loading);
        let writer = SlotWriter::new(self.arena()?, false)?;
        let (tokens, load) = (self.spec.tokens, self.spec.load);
        let work = Work::lasting(load.target, self.device);
        let taps: Vec<Tensor> = (0..TAPS).map(|tap| self.tap(1, tap, tokens)).collect();
        let (sender, receiver) = mpsc::sync_channel::<Filled>(1);
        let side = producer.side();
        thread::scope(|scope| {
            let publisher = scope.spawn(move || publish_all(&receiver, &side));
            let fill = || {
                let lease = producer.claim(&self.patience)?.ok_or("nothing to claim")?;
                producer.phase(Phase::Forward);
                let rows = whole(lease.batch_id(), tokens);
                let mut filling = writer.fill(&lease, &self.patience)?;
                work.launch();
                taps.iter().enumerate().for_each(|(tap, hidden)| filling.write_tap(tap, hidden));
                sender.send((lease, filling.finish()?, rows)).map_err(|_| "the publisher failed")?;
                Ok(())
            };
            (0..ROUNDS).try_for_each(|_| round((Role::Target, load), &work, || true, fill))?;
            drop(sender);
            publisher.join().map_err(|_| "the publisher panicked")?
        })
    }

    pub(crate) fn consume(&self) -> Result<(), AnyError> {
        let consumer = self.queue.consumer(self.rank)?;
        consumer.phase(Phase::Loading);
        let reader = SlotReader::new(self.arena()?, self.device, self.rank)?;
        let load = self.spec.load;
        let work = Work::lasting(load.drafter, self.device);
        let (buffers, free) = mpsc::channel();
        for _ in 0..2 {
            buffers.send(reader.buffer()?).map_err(|_| "nobody fetches")?;
        }
        let (sender, fetched) = mpsc::sync_channel(2);
        let side = consumer.side();
        thread::scope(|scope| {
            let fetcher = scope.spawn(|| self.fetch(&side, &reader, (free, sender)));
            let train = || {
                let (batch, read): (BatchId, Read) = fetched.recv()?;
                work.launch();
                // The fetcher is gone when it has had the last batch.
                let _ = buffers.send(read.into_buffer(reader.gpu())?);
                consumer.trained(&[batch], Step(1))?;
                Ok(())
            };
            // The target's round may begin a little later: its first batch is not waited for.
            let ready = || consumer.ready() > 0;
            (0..ROUNDS).try_for_each(|_| round((Role::Drafter, load), &work, ready, train))?;
            drop(buffers);
            fetcher.join().map_err(|_| "the fetcher panicked")?
        })
    }

    fn fetch(
        &self,
        consumer: &Consumer,
        reader: &SlotReader,
        (free, sender): (mpsc::Receiver<Buffer>, mpsc::SyncSender<(BatchId, Read)>),
    ) -> Result<(), AnyError> {
        for mut buffer in free {
            buffer.await_free()?;
            let Some(lease) = consumer.pop(&self.patience)? else { return Ok(()) };
            let (batch, rows) = (lease.batch_id(), lease.rows()?);
            let read = reader.read(&lease, rows.num_tokens(), buffer, &self.patience)?;
            lease.release()?;
            if sender.send((batch, read)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}
