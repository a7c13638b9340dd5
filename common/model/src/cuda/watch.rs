//! Watches what this process's GPU does, for the queue's tracks: a thread that looks some 100 times a second how far the GPU
//! has come, and whether it has anything to do. It never waits for the GPU, nor does anybody wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::queue::{COUNTED, GpuTrack, Mark, Marker, Track, monotonic_ns};
use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};
use tch::Device;

use super::marks::{Marks, passed};
use super::{CudaError, Doing, Gpu};

/// Between two looks at least, and by how much more at most: looks must not fall into step with what they look at.
const PAUSE: Duration = Duration::from_millis(7);
const VARIES: Duration = Duration::from_millis(6);
/// The golden ratio's part: multiples of it leave no place between 0 and 1 out.
const TURN: f64 = 0.618_033_988_75;
/// How long the GPU's clock is taken to run with the host's: clocks that are 50 parts in a million apart differ by as many
/// microseconds then.
const APART_NS: u64 = 1_000_000_000;
/// A reading of both clocks that is as quick as this is good; of so many others the quickest is taken.
const QUICK_NS: u64 = 20_000;
const READINGS: usize = 5;
/// A reading that takes longer than this is given up: the GPU is busy with others.
const PATIENCE_NS: u64 = 500_000;
/// The same for the first one, without which there is none.
const FIRST_PATIENCE_NS: u64 = 1_000_000_000;

/// The watching thread; it ends when this is dropped.
pub struct GpuWatch {
    computing: Arc<Marks>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GpuWatch {
    /// Watches libtorch's stream on `device` and, if they are given, the marks of a stream of copies. None on a CPU, or where
    /// the GPU does not let itself be watched, which is said: then nobody asks for those marks, and none are left.
    pub fn start(
        device: Device,
        copies: impl FnOnce() -> Option<Arc<Marks>>,
        track: impl Fn(Track) -> GpuTrack,
    ) -> Option<GpuWatch> {
        let Device::Cuda(ordinal) = device else { return None };
        if !COUNTED {
            return None;
        }
        let clock = Gpu::open(ordinal).and_then(|gpu| Clock::new(&gpu)).map_err(not_timed).ok()?;
        let computing = Arc::new(Marks::new(clock.stream.context().default_stream()));
        let (stop, stopped) = channel();
        let lane = |marks: Arc<Marks>, of| Lane { marks, under_way: VecDeque::new(), track: track(of) };
        let mut lanes = vec![lane(Arc::clone(&computing), Track::Gpu)];
        lanes.extend(copies().map(|marks| lane(marks, Track::Copies)));
        let watcher = Watcher { clock, lanes };
        let thread = thread::spawn(move || watcher.run(&stopped));
        Some(GpuWatch { computing, stop: Some(stop), thread: Some(thread) })
    }

    /// Marks libtorch's stream.
    pub fn marker(&self) -> Marker {
        let marks = Arc::clone(&self.computing);
        Box::new(move |mark| marks.leave(mark))
    }
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn not_timed(error: CudaError) {
    tracing::warn!("the GPU's own times are not known from here on: {error}");
}

/// A stream with its track.
struct Lane {
    marks: Arc<Marks>,
    under_way: VecDeque<(Mark, CudaEvent)>,
    track: GpuTrack,
}

struct Watcher {
    clock: Clock,
    /// The computing one first.
    lanes: Vec<Lane>,
}

impl Watcher {
    fn run(mut self, stopped: &Receiver<()>) {
        let (mut turn, mut looked_ns) = (0.0, monotonic_ns());
        loop {
            turn = (turn + TURN) % 1.0;
            let is_last = stopped.recv_timeout(PAUSE + VARIES.mul_f64(turn)) != Err(RecvTimeoutError::Timeout);
            let now = monotonic_ns();
            if let Err(error) = self.look(now, now - std::mem::replace(&mut looked_ns, now)) {
                return not_timed(error);
            }
            if is_last {
                return;
            }
        }
    }

    /// Looks at this moment, for the first time since so many nanoseconds.
    fn look(&mut self, now_ns: u64, since_ns: u64) -> Result<(), CudaError> {
        for lane in &mut self.lanes {
            lane.follow(&self.clock)?;
            lane.track.goes_on(now_ns);
        }
        let computing = &mut self.lanes[0];
        if !computing.track.is_idle() && !has_work(&computing.marks.stream)? {
            computing.track.starve(since_ns);
        }
        self.clock.keep()
    }
}

impl Lane {
    /// Tells the track of the marks that the GPU has passed.
    fn follow(&mut self, clock: &Clock) -> Result<(), CudaError> {
        let lost = {
            let mut ring = self.marks.ring();
            ring.take(&mut self.under_way);
            ring.lost()
        };
        if lost > 0 {
            tracing::debug!("{lost} changes of phase are not in the GPU's times: it is too far behind");
        }
        let found = passed(&mut self.under_way, |event| clock.passed(event))?;
        found.iter().for_each(|(mark, at_ns, _)| self.track.pass(*mark, *at_ns));
        self.marks.ring().give_back(found.into_iter().map(|(.., event)| event));
        Ok(())
    }
}

impl Drop for Lane {
    /// The stream's marks may be watched again, by another watch: events that the GPU has not passed are of use to it.
    fn drop(&mut self) {
        self.marks.ring().give_back(self.under_way.drain(..).map(|(_, event)| event));
    }
}

/// Whether the stream has anything left to do.
fn has_work(stream: &CudaStream) -> Result<bool, CudaError> {
    stream.context().bind_to_thread().doing("taking the GPU's context")?;
    // SAFETY: the stream lives, and its context is this thread's.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        CUresult::CUDA_SUCCESS => Ok(false),
        CUresult::CUDA_ERROR_NOT_READY => Ok(true),
        failed => Err(DriverError(failed)).doing("asking the GPU whether it has work"),
    }
}

/// The GPU's clock beside the host's: an event whose time both know.
struct Clock {
    /// Of its own, and always empty: what is recorded there is passed at once.
    stream: Arc<CudaStream>,
    origin: CudaEvent,
    spare: CudaEvent,
    origin_ns: u64,
    /// When to read both anew.
    due_ns: u64,
}

impl Clock {
    fn new(gpu: &Gpu) -> Result<Clock, CudaError> {
        let event = || gpu.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).doing("making an event");
        let stream = gpu.context().new_stream().doing("making a stream to read the GPU's clock")?;
        let mut clock = Clock { origin: event()?, spare: event()?, stream, origin_ns: 0, due_ns: 0 };
        clock.read(FIRST_PATIENCE_NS)?;
        match clock.origin_ns {
            0 => Err(CudaError::Driver { what: "reading the GPU's clock".into(), why: "it does not answer".into() }),
            _ => Ok(clock),
        }
    }

    /// Reads both clocks anew when it is time.
    fn keep(&mut self) -> Result<(), CudaError> {
        if monotonic_ns() < self.due_ns { Ok(()) } else { self.read(PATIENCE_NS) }
    }

    /// Takes the reading that was the quickest. If none was quicker than `patience_ns`, the one before holds.
    fn read(&mut self, patience_ns: u64) -> Result<(), CudaError> {
        let mut best = patience_ns;
        for _ in 0..READINGS {
            let before = monotonic_ns();
            let Some(took) = self.passes_within(best, before)? else { break };
            std::mem::swap(&mut self.origin, &mut self.spare);
            (self.origin_ns, best) = (before + took / 2, took);
            if took <= QUICK_NS {
                break;
            }
        }
        self.due_ns = monotonic_ns() + APART_NS;
        Ok(())
    }

    /// How long the spare event took to be passed; none if it was longer than that.
    fn passes_within(&self, limit_ns: u64, before: u64) -> Result<Option<u64>, CudaError> {
        self.spare.record(&self.stream).doing("reading the GPU's clock")?;
        loop {
            let is_passed = is_passed(&self.spare)?;
            let took = monotonic_ns() - before;
            match is_passed {
                _ if took > limit_ns => return Ok(None),
                true => return Ok(Some(took)),
                false => {}
            }
        }
    }

    /// When the GPU passed an event, in nanoseconds of the host's monotonic clock; none if it has not yet.
    fn passed(&self, event: &CudaEvent) -> Result<Option<u64>, CudaError> {
        if !is_passed(event)? {
            return Ok(None);
        }
        // SAFETY: both events live, were recorded with timing, and are passed.
        let after = unsafe { result::event::elapsed(self.origin.cu_event(), event.cu_event()) };
        let after_ns = f64::from(after.doing("reading an event's time")?) * 1e6;
        Ok(Some(self.origin_ns.saturating_add_signed(after_ns as i64)))
    }
}

fn is_passed(event: &CudaEvent) -> Result<bool, CudaError> {
    event.try_is_complete().doing("asking whether the GPU has come to a mark")
}
