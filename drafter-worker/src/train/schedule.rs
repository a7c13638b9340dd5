//! The learning rate as a pure function of the step: linear warm-up, then a cosine (spec 3.14).

use common::config::TrainingSection;
use common::ids::Step;

/// The rate of each step of a run.
pub(crate) struct Schedule {
    peak: f64,
    lowest: f64,
    warmup: f64,
    total: f64,
}

impl Schedule {
    /// For a run of `total_steps` optimizer steps over all epochs.
    pub(crate) fn new(training: &TrainingSection, total_steps: u64) -> Schedule {
        let total = total_steps as f64;
        let warmup = training.warmup_ratio * total;
        Schedule { peak: training.learning_rate, lowest: training.min_learning_rate, warmup, total }
    }

    /// The rate that `step`, from 1, is taken with. It reaches the peak at the end of the warm-up, the lowest with the
    /// last step.
    pub(crate) fn rate(&self, step: Step) -> f64 {
        let step = step.0 as f64;
        if step <= self.warmup {
            return self.peak * step / self.warmup;
        }
        let progress = ((step - self.warmup) / (self.total - self.warmup)).min(1.0);
        self.lowest + (self.peak - self.lowest) * (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(warmup_ratio: f64, total_steps: u64) -> Schedule {
        let training = TrainingSection { min_learning_rate: 6e-5, warmup_ratio, ..TrainingSection::default() };
        Schedule::new(&training, total_steps)
    }

    /// ```python
    /// optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=6e-4)
    /// schedule = SequentialLR(optimizer, [LinearLR(optimizer, start_factor=1e-12, end_factor=1, total_iters=5),
    ///                                     CosineAnnealingLR(optimizer, 45, eta_min=6e-5)], [5])
    /// # after t calls of schedule.step(): optimizer.param_groups[0]["lr"]
    /// ```
    #[test]
    fn rates_are_pytorchs() {
        let schedule = schedule(0.1, 50);
        let golden = [
            (1, 0.000_12),
            (2, 0.000_24),
            (5, 0.0006),
            (6, 0.000_599_342_293_570_152_4),
            (20, 0.000_465),
            (27, 0.000_339_422_864_109_675_45),
            (28, 0.000_320_577_135_890_324_93),
            (49, 6.065_770_642_984_746_6e-5),
            (50, 6e-5),
        ];
        for (step, expected) in golden {
            let found = schedule.rate(Step(step));
            assert!((found - expected).abs() < 1e-12, "step {step}: {found} is not {expected}");
        }
    }

    #[test]
    fn without_a_warm_up_the_first_step_is_almost_the_peak() {
        assert!((schedule(0.0, 100).rate(Step(1)) - 6e-4).abs() < 1e-6);
        assert_eq!(schedule(0.04, 10).rate(Step(10)), 6e-5, "a warm-up shorter than a step");
        assert_eq!(schedule(0.1, 50).rate(Step(60)), 6e-5, "past the end");
        assert_eq!(schedule(1.0, 4).rate(Step(4)), 6e-4, "all warm-up");
    }
}
