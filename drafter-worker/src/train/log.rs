//! What a step shows of itself: gauges for the queue's readers, lines in metrics.jsonl. Rank 0 writes for all.

use std::path::Path;
use std::time::Instant;

use common::config::Config;
use common::ids::{Rank, Step};
use common::manifest::Manifest;
use common::queue::{Consumer, Gauge};
use common::run_plan::RunPlan;
use common::telemetry::metrics::{METRICS_FILE, MetricsError, MetricsFile};
use serde::Serialize;

use super::step::Sums;

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
            scored: from.map_or(0.0, |manifest| manifest.supervised_tokens as f64),
            since: Instant::now(),
            tokens_since: 0.0,
        })
    }

    /// Reports a completed step: sums over all ranks, and the optimizer's learning rate and gradient norm.
    ///
    /// # Errors
    /// The metrics file cannot be written.
    pub(crate) fn step(
        &mut self,
        step: Step,
        sums: &Sums,
        (rate, norm): (f64, f64),
        consumer: &Consumer,
    ) -> Result<(), MetricsError> {
        self.tokens += sums.tokens;
        self.tokens_since += sums.tokens;
        self.scored += sums.blocks.counted.iter().sum::<f64>();
        let gauges = [
            (Gauge::Step, step.0 as f64),
            (Gauge::TotalSteps, self.total_steps as f64),
            (Gauge::Loss, sums.blocks.loss()),
            (Gauge::Accuracy, sums.blocks.accuracy()),
            (Gauge::AcceptedLength, sums.blocks.accepted_length()),
            (Gauge::Tokens, self.tokens),
            (Gauge::SupervisedTokens, self.scored),
            (Gauge::LearningRate, rate),
            (Gauge::GradNorm, norm),
        ];
        for (gauge, value) in gauges {
            consumer.gauge(gauge, value);
        }
        let due = step.0.is_multiple_of(self.interval) || step.0 == self.total_steps || sums.stopping > 0.0;
        let Some(metrics) = self.metrics.as_mut().filter(|_| due) else {
            return Ok(());
        };
        let line = Line {
            step: step.0,
            loss: sums.blocks.loss(),
            accuracy: sums.blocks.accuracy(),
            slot_accuracy: sums.blocks.slot_accuracy(),
            accepted_length: sums.blocks.accepted_length(),
            expected_accepted: sums.blocks.expected_accepted(),
            learning_rate: rate,
            grad_norm: norm,
            tokens: self.tokens,
            tokens_per_s: self.tokens_since / self.since.elapsed().as_secs_f64().max(1e-9),
        };
        (self.since, self.tokens_since) = (Instant::now(), 0.0);
        metrics.write(&line)
    }
}
