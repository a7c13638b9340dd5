//! What a step shows of itself: gauges for the queue's readers, lines in metrics.jsonl. Rank 0 writes for all.
//!
//! A GPU's numbers come one step late, so that the next step is on its way before the host waits for the last one. So does
//! word of a gradient that is not finite: no step was taken, and none is saved before it is known.

use std::path::Path;
use std::time::Instant;

use common::config::Config;
use common::exit::{Blame, Fault};
use common::ids::{Rank, Step};
use common::manifest::Manifest;
use common::queue::{Consumer, Gauge, Phase};
use common::run_plan::RunPlan;
use common::telemetry::metrics::{METRICS_FILE, MetricsError, MetricsFile};
use model::cuda::Late;
use model::drafter::BlockTotals;
use model::optimizer::GradientNorm;
use serde::Serialize;
use tch::{Kind, Tensor};

use super::step::Sums;
use super::times::{Spent, Times};

const DIVERGED_HINT: &str = "training diverged: lower training.learning_rate or raise training.warmup_ratio; if it did so in \
                             the first steps, look at the target's weights and the data";

pub(crate) struct Log {
    metrics: Option<MetricsFile>,
    interval: u64,
    total_steps: u64,
    /// Of all trained rows, over all ranks, from the run's first step.
    pub(crate) tokens: f64,
    /// Block slots scored, likewise.
    pub(crate) scored: f64,
    since: Instant,
    tokens_since: f64,
    times: Times,
    /// The last step's, while its numbers are on their way.
    pending: Option<Report>,
}

/// Why a step cannot be reported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error("{0}")]
    NotFinite(#[source] Fault),
}

/// A norm that is a number. Trying again gives the same one: who has to act is the user.
fn finite(step: u64, norm: f64) -> Result<f64, ReportError> {
    GradientNorm::checked(step, norm).your_input(DIVERGED_HINT).map_err(ReportError::NotFinite)
}

/// What there is to say of a completed step.
pub(crate) struct Report {
    step: Step,
    rate: f64,
    denominator: f64,
    scored: f64,
    tokens: f64,
    stopping: bool,
    /// Steps of the optimizer so far.
    updates: u64,
    /// The gradient's norm, then the blocks' sums.
    numbers: Late,
}

impl Report {
    /// Of sums over all ranks, the optimizer's learning rate and its gradient's norm, if it took a step.
    pub(crate) fn new(step: Step, sums: &Sums, rate: f64, norm: Option<&GradientNorm>) -> Report {
        let device = norm.map_or(sums.blocks.device(), |norm| norm.norm().device());
        let norm_or_zero = norm.map_or_else(|| Tensor::zeros(1, (Kind::Double, device)), |norm| norm.norm().view(1));
        let numbers = Tensor::cat(&[norm_or_zero, sums.blocks.to_device(device)], 0);
        Report {
            step,
            rate,
            denominator: sums.denominator,
            scored: sums.scored,
            tokens: sums.tokens,
            stopping: sums.stopping > 0.0,
            updates: norm.map_or(0, GradientNorm::step),
            numbers: Late::send(&numbers),
        }
    }
}

/// One line of metrics.jsonl.
#[derive(Serialize)]
struct Line {
    step: u64,
    loss: f64,
    accuracy: f64,
    slot_accuracy: Vec<f64>,
    accepted_length: f64,
    expected_accepted: f64,
    learning_rate: f64,
    grad_norm: f64,
    tokens: f64,
    tokens_per_s: f64,
    #[serde(flatten)]
    times: Spent,
}

impl Log {
    /// Goes on counting where the manifest of a restart's checkpoint ended.
    ///
    /// # Errors
    /// The metrics file cannot be opened.
    pub(crate) fn new(
        run: &Path,
        config: &Config,
        plan: &RunPlan,
        rank: Rank,
        from: Option<&Manifest>,
    ) -> Result<Log, MetricsError> {
        let metrics = if rank == Rank(0) { Some(MetricsFile::append(&run.join(METRICS_FILE))?) } else { None };
        Ok(Log {
            metrics,
            interval: config.training.log_interval,
            total_steps: plan.total_steps,
            tokens: from.map_or(0.0, |manifest| manifest.tokens as f64),
            scored: from.map_or(0.0, |manifest| manifest.scored_slots as f64),
            since: Instant::now(),
            tokens_since: 0.0,
            times: Times::default(),
            pending: None,
        })
    }

    /// Reports a completed step once its numbers are here: at once on a CPU, with the next step on a GPU.
    ///
    /// # Errors
    /// The metrics file cannot be written, or the gradient of the step reported was not finite.
    pub(crate) fn step(&mut self, report: Report, consumer: &Consumer) -> Result<(), ReportError> {
        consumer.gauge(Gauge::Step, report.step.0 as f64);
        consumer.gauge(Gauge::TotalSteps, self.total_steps as f64);
        let waits = report.numbers.is_on_its_way();
        let last = self.pending.replace(report);
        last.map_or(Ok(()), |last| self.write(last, consumer))?;
        if waits { Ok(()) } else { self.flush(consumer) }
    }

    /// Reports what is still on its way.
    ///
    /// # Errors
    /// As [`Log::step`].
    pub(crate) fn flush(&mut self, consumer: &Consumer) -> Result<(), ReportError> {
        self.pending.take().map_or(Ok(()), |last| self.write(last, consumer))
    }

    fn write(&mut self, report: Report, consumer: &Consumer) -> Result<(), ReportError> {
        let device = report.numbers.is_on_its_way().then(|| consumer.time(Phase::Device));
        let numbers = report.numbers.wait();
        drop(device);
        let norm = finite(report.updates, numbers[0])?;
        let blocks = BlockTotals::from_sums(&numbers[1..], report.denominator);
        self.tokens += report.tokens;
        self.tokens_since += report.tokens;
        self.scored += report.scored;
        self.times.step();
        let gauges = [
            (Gauge::Loss, blocks.loss()),
            (Gauge::Accuracy, blocks.accuracy()),
            (Gauge::AcceptedLength, blocks.accepted_length()),
            (Gauge::Tokens, self.tokens),
            (Gauge::ScoredSlots, self.scored),
            (Gauge::LearningRate, report.rate),
            (Gauge::GradNorm, norm),
        ];
        for (gauge, value) in gauges {
            consumer.gauge(gauge, value);
        }
        let step = report.step.0;
        let due = step.is_multiple_of(self.interval) || step == self.total_steps || report.stopping;
        let Some(metrics) = self.metrics.as_mut().filter(|_| due) else {
            return Ok(());
        };
        let line = Line {
            step,
            loss: blocks.loss(),
            accuracy: blocks.accuracy(),
            slot_accuracy: blocks.slot_accuracy(),
            accepted_length: blocks.accepted_length(),
            expected_accepted: blocks.expected_accepted(),
            learning_rate: report.rate,
            grad_norm: norm,
            tokens: self.tokens,
            tokens_per_s: self.tokens_since / self.since.elapsed().as_secs_f64().max(1e-9),
            times: self.times.spent(consumer),
        };
        (self.since, self.tokens_since) = (Instant::now(), 0.0);
        Ok(metrics.write(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use common::exit::{Code, Verdict};

    use super::*;

    #[test]
    fn a_gradient_that_is_no_number_is_the_users_and_not_tried_again() {
        assert!(matches!(finite(3, 0.5), Ok(0.5)));
        let verdict = Verdict::of(&finite(3, f64::NAN).unwrap_err());
        assert_eq!(verdict.code, Code::Input);
        assert!(verdict.line.contains("step 3") && verdict.hint.unwrap().contains("training.learning_rate"));
    }
}
