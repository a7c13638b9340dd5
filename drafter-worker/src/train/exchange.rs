//! Gradients and sums over all drafters, in rank order, so that every rank goes on with the same bits.

use common::config::Config;
use common::ids::{Rank, Role};
use common::reduce::{Sum, SumError};
use common::run_plan::RunPlan;
use common::shutdown::Shutdown;
use common::wait::Patience;
use model::drafter::Parameters;
use tch::{Kind, Tensor};

use super::step::Sums;

pub(crate) struct Exchange {
    /// None with one drafter: there is nobody to meet.
    sum: Option<Sum>,
    gradient: Vec<f32>,
    /// Deaf to shutdown: a step that has begun is finished by all ranks together. When one of them is gone, the launcher
    /// ends the sum.
    patience: Patience,
}

impl Exchange {
    /// Joins the other ranks.
    ///
    /// # Errors
    /// The launcher's segment is not there, or this rank joined it before.
    pub(crate) fn new(config: &Config, plan: &RunPlan, rank: Rank, patience: &Patience) -> Result<Exchange, SumError> {
        let ranks = config.run.workers(Role::Drafter);
        let patience = Patience { timeout: patience.timeout, shutdown: Shutdown::never() };
        if ranks == 1 {
            return Ok(Exchange { sum: None, gradient: Vec::new(), patience });
        }
        let sum = Sum::attach(&plan.reduce_name(), rank, ranks)?;
        Ok(Exchange { sum: Some(sum), gradient: vec![0.0; plan.draft.parameter_count() as usize], patience })
    }

    /// Replaces the gradient and `sums` by their sums over ranks.
    ///
    /// # Errors
    /// A rank does not come, or the launcher says that it never will.
    pub(crate) fn sum(&mut self, parameters: &mut Parameters, sums: Sums) -> Result<Sums, SumError> {
        let Some(sum) = &mut self.sum else { return Ok(sums) };
        let gradient = parameters.gradient().to_device(tch::Device::Cpu);
        gradient.copy_data(&mut self.gradient, gradient.numel());
        let mut scalars = sums.to_scalars();
        sum.sum(&mut self.gradient, &mut scalars, &self.patience)?;
        parameters.set_gradient(&Tensor::from_slice(&self.gradient).to_kind(Kind::Float));
        Ok(Sums::from_scalars(&scalars))
    }

    /// Returns when every rank has come here.
    ///
    /// # Errors
    /// As [`Exchange::sum`].
    pub(crate) fn meet(&mut self) -> Result<(), SumError> {
        self.sum.as_mut().map_or(Ok(()), |sum| sum.sum(&mut [], &mut [], &self.patience))
    }
}
