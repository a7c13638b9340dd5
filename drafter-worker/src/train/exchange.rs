//! Gradients and sums over all drafters, in the same order everywhere, so that every rank goes on with the same bits.
//!
//! What decides a step are numbers on the host, summed through shared memory; that is also where all ranks meet and
//! where the launcher ends the sum when one of them is gone. Tensors go the same way on CPUs. Where each drafter has a
//! GPU of its own they are summed by NCCL, queued behind the backward pass like any other op: the host does not wait.

use std::time::Duration;

use common::config::Config;
use common::ids::{Rank, Role};
use common::queue::{Consumer, Phase};
use common::reduce::{Sum, SumError};
use common::run_plan::RunPlan;
use common::shutdown::Shutdown;
use common::wait::{Patience, WaitError};
use model::drafter::Parameters;
use model::sum::{DeviceSum, UniqueId, unique_id};
use tch::{Device, Kind, Tensor};

use super::step::Sums;

/// How long a failed sum of GPUs waits for word that a rank is gone.
const HEARSAY: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(10);
/// The launcher's word for it.
const GONE: SumError = SumError::Wait(WaitError::Aborted);

/// Why sums over drafters did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("{0}")]
    Meeting(#[from] SumError),
    #[error("{0}")]
    Device(#[from] model::sum::SumError),
}

pub(crate) struct Exchange {
    /// None with one drafter: there is nobody to meet.
    ranks: Option<Ranks>,
    /// Deaf to shutdown: a step that has begun is finished by all ranks together. When one of them is gone, the launcher
    /// ends the sum.
    patience: Patience,
}

struct Ranks {
    meeting: Sum,
    tensors: Tensors,
}

/// How tensors are summed.
enum Tensors {
    /// Through shared memory, by way of this buffer.
    Host(Vec<f32>),
    /// Through NCCL.
    Device(DeviceSum),
}

impl Exchange {
    /// Joins the other ranks.
    ///
    /// # Errors
    /// The launcher's segment is not there, this rank joined it before, or the GPUs cannot meet.
    pub(crate) fn new(
        config: &Config,
        plan: &RunPlan,
        (rank, device): (Rank, Device),
        patience: &Patience,
    ) -> Result<Exchange, ExchangeError> {
        let ranks = config.run.workers(Role::Drafter);
        let patience = Patience { timeout: patience.timeout, shutdown: Shutdown::never() };
        if ranks == 1 {
            return Ok(Exchange { ranks: None, patience });
        }
        let mut meeting = Sum::attach(&plan.reduce_name(), rank, ranks)?;
        let tensors = match gpu_of_its_own(config, device) {
            Some(gpu) => {
                let id = share_id(&mut meeting, rank, &patience)?;
                let ended = meeting.ended();
                let sum = DeviceSum::join(&id, (rank, ranks), gpu, &patience, move || ended.is_set());
                Tensors::Device(or_gone(sum, &meeting)?)
            }
            None => Tensors::Host(vec![0.0; plan.draft.parameter_count() as usize]),
        };
        Ok(Exchange { ranks: Some(Ranks { meeting, tensors }), patience })
    }

    /// Replaces the gradient and `sums` by their sums over ranks.
    ///
    /// # Errors
    /// A rank does not come, or the launcher says that it never will.
    pub(crate) fn sum(
        &mut self,
        parameters: &mut Parameters,
        sums: Sums,
        consumer: &Consumer,
    ) -> Result<Sums, ExchangeError> {
        let Some(Ranks { meeting, tensors }) = &mut self.ranks else { return Ok(sums) };
        match tensors {
            Tensors::Host(buffer) => {
                let device = parameters.gradient().device().is_cuda().then(|| consumer.time(Phase::Device));
                let gradient = parameters.gradient().to_device(Device::Cpu);
                drop(device);
                gradient.copy_data(buffer, gradient.numel());
                let mut scalars = sums.to_scalars();
                meeting.sum(buffer, &mut scalars, &self.patience)?;
                parameters.set_gradient(&Tensor::from_slice(buffer).to_kind(Kind::Float));
                Ok(Sums::from_scalars(&scalars))
            }
            Tensors::Device(device) => {
                let mut decisive = sums.decisive();
                meeting.sum(&mut [], &mut decisive, &self.patience)?;
                let queued = device.sum(&[parameters.gradient(), &sums.blocks], &self.patience);
                or_gone(queued, meeting)?;
                Ok(Sums::of(&decisive, sums.blocks))
            }
        }
    }

    /// Returns when every rank has come here, and this one's sums are done.
    ///
    /// # Errors
    /// As [`Exchange::sum`].
    pub(crate) fn meet(&mut self) -> Result<(), ExchangeError> {
        let Some(Ranks { meeting, tensors }) = &mut self.ranks else { return Ok(()) };
        meeting.sum(&mut [], &mut [], &self.patience)?;
        match tensors {
            Tensors::Host(_) => Ok(()),
            Tensors::Device(device) => or_gone(device.finish(&self.patience), meeting),
        }
    }

    /// Whether all ranks are there as far as is known: what a GPU's sum left when one was gone is worth nothing.
    ///
    /// # Errors
    /// As [`Exchange::sum`].
    pub(crate) fn whole(&self) -> Result<(), ExchangeError> {
        let ended = self.ranks.as_ref().is_some_and(|ranks| ranks.meeting.ended().is_set());
        if ended { Err(GONE.into()) } else { Ok(()) }
    }
}

/// The GPU of this drafter, if no other drafter computes on it: NCCL refuses to join a GPU with itself.
fn gpu_of_its_own(config: &Config, device: Device) -> Option<usize> {
    let Device::Cuda(gpu) = device else { return None };
    let ranks = config.run.workers(Role::Drafter);
    let devices = (0..ranks).map(|rank| config.run.device_of(Role::Drafter, Rank(rank)));
    let distinct = devices.collect::<std::collections::BTreeSet<_>>().len() == ranks as usize;
    distinct.then_some(gpu)
}

/// The name under which the GPUs meet: rank 0 makes it, the others add nothing to it.
fn share_id(meeting: &mut Sum, rank: Rank, patience: &Patience) -> Result<UniqueId, ExchangeError> {
    let mut bytes = [0.0; size_of::<UniqueId>()];
    if rank == Rank(0) {
        bytes = unique_id()?.map(f64::from);
    }
    meeting.sum(&mut [], &mut bytes, patience)?;
    Ok(bytes.map(|byte| byte as u8))
}

/// NCCL may hear of a rank's death before the launcher has said so: a sum that failed waits a little for its word.
fn or_gone<T>(done: Result<T, model::sum::SumError>, meeting: &Sum) -> Result<T, ExchangeError> {
    let Err(error) = done else { return Ok(done?) };
    let (patience, ended) = (Patience { timeout: HEARSAY, shutdown: Shutdown::never() }, meeting.ended());
    let gone = patience.poll(|| "the launcher's word".to_owned(), LOOK, || ended.is_set().then_some(()));
    Err(if gone.is_ok() { GONE.into() } else { error.into() })
}
