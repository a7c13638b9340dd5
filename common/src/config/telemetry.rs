//! `[telemetry]`: what is kept of how a run went.

use serde::{Deserialize, Serialize};

/// `[telemetry]`
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetrySection {
    /// Seconds between lines in `telemetry.jsonl`; 0 writes none.
    pub sample_interval_s: f64,
    /// Whether events for TensorBoard are written.
    pub tensorboard: bool,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        TelemetrySection { sample_interval_s: 1.0, tensorboard: true }
    }
}
