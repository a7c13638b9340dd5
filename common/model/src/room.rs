//! A worker's room on its GPU: what it needs is said before it is taken, refused where it clearly is not there, and named
//! when it runs out before the worker is ready.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};

use common::exit::{AnyError, Code, Fault, Verdict};
use common::footprint::{Fit, Footprint, LIBRARIES, Part, SLOTS};
use tch::Device;

use crate::cuda::{CudaError, Gpu, GpuId};

/// What a user can do about a GPU that is too small.
const HINT: &str = "lower data.batch_tokens, training.num_anchors or queue.capacity, or give each worker a GPU of its own \
                    (--pairs 0:1); `tandem plan` says what each takes";

/// libtorch's words, which is all that it says.
const OUT_OF_MEMORY: &str = "out of memory";

/// A GPU without the memory that a worker needs.
#[derive(Debug, thiserror::Error)]
#[error(
    "too little memory on {gpu}: this worker needs {} ({needs}), {} were free{}",
    gigabytes(needs.total()), gigabytes(*free), met.as_ref().map(|met| format!("; {met}")).unwrap_or_default()
)]
struct TooLittle {
    gpu: GpuId,
    needs: Footprint,
    free: u64,
    /// What libtorch said when it ran out.
    met: Option<String>,
}

/// A worker's needs, and the GPU that it computes on; none on a CPU.
pub struct Room {
    needs: Footprint,
    gpu: Option<Gpu>,
}

impl Room {
    /// Says what is needed and what is free.
    ///
    /// # Errors
    /// The driver does not say what is free.
    pub fn on(device: Device, needs: Footprint) -> Result<Room, CudaError> {
        let Device::Cuda(ordinal) = device else { return Ok(Room { needs, gpu: None }) };
        let gpu = Gpu::open(ordinal)?;
        let (free, total) = gpu.memory()?;
        let (free, total) = (gigabytes(free as u64), gigabytes(total as u64));
        tracing::info!("needs {} on {}: {needs}; {free} of {total} are free", gigabytes(needs.total()), gpu.id());
        Ok(Room { needs, gpu: Some(gpu) })
    }

    /// Refuses what is clearly too much for what is free now, when the context is there and slots are mapped.
    ///
    /// # Errors
    /// A refusal for the user, or the driver does not say what is free.
    pub fn demand(&self) -> Result<(), AnyError> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let free = gpu.memory()?.0 as u64;
        let is_to_come = |part: &&Part| part.what != LIBRARIES && part.what != SLOTS;
        let to_come: u64 = self.needs.parts.iter().filter(is_to_come).map(|part| part.bytes).sum();
        if Fit::of(to_come, free) == Fit::Not { Err(self.too_little(gpu, free, None)) } else { Ok(()) }
    }

    /// Does `work`, naming what is needed if memory runs out meanwhile.
    ///
    /// # Errors
    /// That of `work`, or a refusal for the user in its place.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T, AnyError>) -> Result<T, AnyError> {
        let Some(gpu) = &self.gpu else { return work() };
        let free = gpu.memory()?.0 as u64;
        // What was half made is never used: the process ends.
        match panic::catch_unwind(AssertUnwindSafe(work)) {
            Ok(Err(error)) => {
                let met = ran_out(&Verdict::of(&*error).line);
                Err(met.map_or(error, |met| self.too_little(gpu, free, Some(met))))
            }
            Ok(done) => done,
            Err(panic) => match ran_out(words(&*panic)) {
                Some(met) => Err(self.too_little(gpu, free, Some(met))),
                None => panic::resume_unwind(panic),
            },
        }
    }

    fn too_little(&self, gpu: &Gpu, free: u64, met: Option<String>) -> AnyError {
        let refusal = TooLittle { gpu: gpu.id(), needs: self.needs.clone(), free, met };
        Fault::new(Code::Input, refusal).with_hint(HINT).into()
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// What was asked for when memory ran out, if it did.
fn ran_out(words: &str) -> Option<String> {
    if !words.contains(OUT_OF_MEMORY) && !words.contains("OUT_OF_MEMORY") {
        return None;
    }
    let asked = words.split(". ").find(|sentence| sentence.starts_with("Tried to allocate"));
    Some(asked.unwrap_or(OUT_OF_MEMORY).to_owned())
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "Torch(\"CUDA out of memory. Tried to allocate 1.07 GiB. GPU 0 has a total capacity of 139.80 GiB\")";

    #[test]
    fn what_ran_out_is_known_by_libtorchs_words() {
        assert_eq!(ran_out(SAID).as_deref(), Some("Tried to allocate 1.07 GiB"));
        assert_eq!(ran_out("CUDA_ERROR_OUT_OF_MEMORY").as_deref(), Some("out of memory"));
        assert_eq!(ran_out("shapes [2] and [3] do not fit"), None);
    }

    #[test]
    fn a_processor_takes_what_it_gets() {
        let needs = Footprint { parts: vec![Part { what: "weights", bytes: u64::MAX / 2 }] };
        let room = Room::on(Device::Cpu, needs).unwrap();
        room.demand().unwrap();
        assert_eq!(room.within(|| Ok(7)).unwrap(), 7);
    }

    #[test]
    fn a_refusal_says_what_is_needed_and_what_helps() {
        let needs = Footprint { parts: vec![Part { what: "weights", bytes: 2_100_000_000 }] };
        let refusal = TooLittle { gpu: GpuId([1; 16]), needs, free: 1_000_000_000, met: ran_out(SAID) };
        assert_eq!(
            refusal.to_string(),
            "too little memory on GPU-01010101-0101-0101-0101-010101010101: this worker needs 2.10 GB (weights 2.10 GB), \
             1.00 GB were free; Tried to allocate 1.07 GiB"
        );
    }
}
