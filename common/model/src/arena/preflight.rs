//! The way to every part, tried before a model is loaded: a pattern is written and read back through it.

#![expect(unsafe_code, reason = "copies into this worker's lanes")]

use std::fmt;
use std::time::Duration;

use common::arena::LANE_BYTES;
use tch::{Device, Kind, Tensor};

use super::copies::{Copies, address};
use super::gpu::MappedPart;
use super::{ArenaError, GpuArena};

/// Round trips.
const TRIPS: usize = 2;

/// Copies each way on each of them.
const COPIES: usize = 10;

/// What a way carries.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSpeed {
    /// Which part.
    pub part: u32,
    /// The GPU it lies on.
    pub gpu: String,
    /// Whether that is this process's own.
    pub local: bool,
    /// Bytes per second into it.
    pub write: f64,
    /// Bytes per second out of it.
    pub read: f64,
}

impl fmt::Display for PathSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.local { "own GPU" } else { "peer" };
        let (write, read) = (self.write / 1e9, self.read / 1e9);
        write!(f, "part {} on {} ({place}): {write:.0} GB/s there, {read:.0} GB/s back", self.part, self.gpu)
    }
}

impl GpuArena {
    /// Tries the way to every part in this worker's lane of it. Slots are not touched.
    ///
    /// # Errors
    /// [`ArenaError::Path`] if bytes do not come back as they went.
    pub fn preflight(&self, lane: u32) -> Result<Vec<PathSpeed>, ArenaError> {
        let copies = Copies::new(self.gpu())?;
        let parts = (0..self.layout().parts.count()).filter_map(|part| Some((part, self.part(part)?)));
        parts.map(|(part, mapped)| self.try_way(&copies, (part, &mapped), lane)).collect()
    }

    fn try_way(&self, copies: &Copies, (part, mapped): (u32, &MappedPart), lane: u32) -> Result<PathSpeed, ArenaError> {
        let device = Device::Cuda(self.gpu().ordinal());
        let words = (LANE_BYTES / size_of::<i64>()) as i64;
        let there = mapped.mapping.start() + self.layout().lane(part, lane) as u64;
        let (mut write, mut read) = (Duration::MAX, Duration::MAX);
        for trip in 0..TRIPS as i64 {
            let pattern = Tensor::arange(words, (Kind::Int64, device)) * (2 * trip + 3) + i64::from(lane);
            let back = Tensor::zeros([words], (Kind::Int64, device));
            copies.after_torch()?;
            copies.finish()?;
            let there_and_back = [(address(&pattern), there), (there, address(&back))];
            let [there_time, back_time] =
                there_and_back.map(|(from, to)| copies.time(|| queue_copies(copies, from, to)));
            (write, read) = (write.min(there_time?), read.min(back_time?));
            if !pattern.equal(&back) {
                let detail = "an 8 MiB pattern";
                return Err(ArenaError::Path { part, gpu: mapped.gpu.to_string(), detail });
            }
        }
        let speed = |time: Duration| (COPIES * LANE_BYTES) as f64 / time.as_secs_f64().max(1e-9);
        let local = mapped.gpu == self.gpu().id();
        Ok(PathSpeed { part, gpu: mapped.gpu.to_string(), local, write: speed(write), read: speed(read) })
    }
}

/// The lane's bytes, often enough that starting a copy does not count.
fn queue_copies(copies: &Copies, from: u64, to: u64) -> Result<(), ArenaError> {
    for _ in 0..COPIES {
        // SAFETY: one is a lane, which is this worker's alone, the other a tensor of its length that stays until its
        // content was compared.
        unsafe { copies.bytes(from, to, LANE_BYTES)? };
    }
    Ok(())
}
