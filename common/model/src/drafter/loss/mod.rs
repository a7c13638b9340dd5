//! The objective: weighted cross-entropy of each supervised slot against the token at its own position.
//!
//! Logits of all slots would fill gigabytes, so the frozen head is applied chunk by chunk, and each chunk at once yields
//! its losses and the gradient with respect to the hidden state, `(p - onehot) head` (spec 9.4): one product forward, one
//! backward, nothing recomputed, one chunk in memory. Rows whose label does not count never meet the head.
//!
//! Gradients here are those of the NUMERATOR; `Parameters::backward` carries them on. They are summed over batches and
//! drafters, and divided by the global denominator once.
//!
//! Shape letters: N blocks, B slots, R scored rows, H hidden size, V vocabulary.

mod metrics;
mod weights;

use common::footprint::CHUNK_LOGITS;
use tch::{Device, Kind, Tensor};

pub use metrics::BlockTotals;
pub use weights::{Weighting, decay, dpace};

use super::plan::BlockPlan;
use crate::cuda::step::StepKernels;

/// Logits held at a time, in elements: on a CPU a fraction of its memory.
fn chunk_logits(device: Device) -> i64 {
    if device.is_cuda() { CHUNK_LOGITS as i64 } else { 1 << 24 }
}

/// What one batch adds to a step.
pub struct LossParts {
    /// Gradient of the numerator with respect to the hidden states, [N, B, H] in their type.
    pub d_hidden: Tensor,
    /// The batch's share of the denominator; known without waiting for the device.
    pub denominator: f64,
    /// f64 on the device: [`BlockTotals`] without the denominator, see [`BlockTotals::from_sums`].
    pub sums: Tensor,
}

impl LossParts {
    /// Fetches the sums; waits for the device.
    pub fn totals(&self) -> BlockTotals {
        let sums = Vec::<f64>::try_from(&self.sums).expect("sums are one row of f64");
        BlockTotals::from_sums(&sums, self.denominator)
    }
}

/// Loss and gradient of hidden states [N, B, H] under `head` [V, H].
pub fn block_loss(hidden: &Tensor, head: &Tensor, plan: &BlockPlan, weighting: Weighting) -> LossParts {
    block_loss_in_chunks(hidden, head, plan, weighting, (chunk_logits(head.device()) / head.size()[0]).max(1))
}

/// The same with `chunk_rows` rows of logits at a time.
pub fn block_loss_in_chunks(
    hidden: &Tensor,
    head: &Tensor,
    plan: &BlockPlan,
    weighting: Weighting,
    chunk_rows: i64,
) -> LossParts {
    tch::no_grad(|| {
        let size = hidden.size();
        let rows = hidden.view([-1, size[2]]).index_select(0, &plan.scored); // [R, H]
        let labels = plan.labels.view(-1).index_select(0, &plan.scored); // [R]
        let chunks: Vec<Scored> = rows
            .split(chunk_rows, 0)
            .iter()
            .zip(labels.split(chunk_rows, 0))
            .map(|(rows, labels)| score(rows, &labels, head))
            .collect();
        let joined = |part: fn(&Scored) -> &Tensor| Tensor::cat(&chunks.iter().map(part).collect::<Vec<_>>(), 0);
        let grid = |rows: Tensor| {
            let cells = Tensor::zeros(size[0] * size[1], (Kind::Float, hidden.device()));
            cells.index_copy(0, &plan.scored, &rows).view([size[0], size[1]])
        };
        let nll = grid(joined(|chunk| &chunk.nll));
        let weights = weighting.weights(&nll, &plan.supervised);
        let numerator = (&nll * &weights).sum(Kind::Double).view(1);
        let correct = grid(joined(|chunk| &chunk.correct));
        let row_weights = weights.view(-1).index_select(0, &plan.scored).unsqueeze(1);
        let d_rows = (joined(|chunk| &chunk.d_rows) * row_weights).to_kind(hidden.kind());
        LossParts {
            d_hidden: hidden.zeros_like().view([-1, size[2]]).index_copy_(0, &plan.scored, &d_rows).view_as(hidden),
            denominator: weighting.denominator(&plan.slot_counts),
            sums: Tensor::cat(&[numerator, metrics::sums(&correct, &plan.supervised)], 0),
        }
    })
}

/// One chunk's rows after the head.
struct Scored {
    nll: Tensor,     // [R] f32
    correct: Tensor, // [R] f32, 0 or 1
    d_rows: Tensor,  // [R, H] f32 or the compute type, not yet weighted
}

/// By one kernel over the logits where there is one.
fn score(rows: &Tensor, labels: &Tensor, head: &Tensor) -> Scored {
    let logits = rows.matmul(&head.tr());
    match StepKernels::of(logits.device()).filter(|_| StepKernels::scores(&logits)) {
        Some(kernels) => {
            let (nll, correct) = kernels.score(&logits, &labels.contiguous());
            Scored { nll, correct, d_rows: logits.matmul(head) }
        }
        None => score_plainly(&logits, labels, head),
    }
}

/// Softmax in float32. The loss is taken from the largest probability, which never underflows, so that one exponential
/// per logit serves loss and gradient: logsumexp = max - ln(p_max).
fn score_plainly(logits: &Tensor, labels: &Tensor, head: &Tensor) -> Scored {
    let (largest, guess) = logits.max_dim(1, false);
    let label_logits = logits.gather(1, &labels.unsqueeze(1), false).squeeze_dim(1).to_kind(Kind::Float);
    let mut probabilities = logits.softmax(1, Kind::Float);
    let p_max = probabilities.gather(1, &guess.unsqueeze(1), false).squeeze_dim(1);
    let nll = largest.to_kind(Kind::Float) - p_max.log() - label_logits;
    let minus_one = Tensor::full([labels.size()[0], 1], -1.0, (Kind::Float, labels.device()));
    let _ = probabilities.scatter_add_(1, &labels.unsqueeze(1), &minus_one);
    let d_rows = probabilities.to_kind(head.kind()).matmul(head);
    Scored { nll, correct: guess.eq_tensor(labels).to_kind(Kind::Float), d_rows }
}
