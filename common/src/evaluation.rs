//! What decoding with a drafter gained: printed by `drafter-worker evaluate` as one JSON object, read by the launcher.

use serde::{Deserialize, Serialize};

/// Sums over all prompts of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationReport {
    /// Tokens committed per verification, pooled: `new_tokens / verifies`, the bonus token included, the token of the
    /// prompt's own pass not.
    pub accepted_length: f64,
    /// Prompts decoded.
    pub prompts: u64,
    /// Tokens committed by verifications.
    pub new_tokens: u64,
    /// Verifications: target passes over a drafted block.
    pub verifies: u64,
    /// Speculative decoding's speed, prompt passes left out.
    pub tokens_per_s: f64,
    /// Plain greedy decoding's speed on the same prompts, prompt passes left out; none before training.
    pub plain_tokens_per_s: Option<f64>,
    /// Whether both gave the same tokens in float32; none before training, and when it was not asked for.
    pub lossless: Option<bool>,
}
