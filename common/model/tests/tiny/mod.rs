//! A tiny drafter with large random weights over a random packed batch, for tests of what depends on what.

use common::config::LayerType::{self, FullAttention, SlidingAttention};
use common::model_config::DraftConfig;
use model::drafter::{BlockPlan, Drafter, PackedRows};
use tch::{Device, Kind, Tensor};

pub(crate) const HIDDEN: i64 = 16;
pub(crate) const TAPS: i64 = 2;
pub(crate) const VOCABULARY: i64 = 40;
pub(crate) const MASK: u32 = 39;

/// Layer types worth telling apart: all full, all sliding, mixed.
pub(crate) const KINDS: [[LayerType; 2]; 3] =
    [[FullAttention; 2], [SlidingAttention; 2], [SlidingAttention, FullAttention]];

pub(crate) fn config(layer_types: [LayerType; 2], block_size: usize) -> DraftConfig {
    DraftConfig {
        block_size,
        num_hidden_layers: 2,
        hidden_size: HIDDEN as usize,
        intermediate_size: 24,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        vocab_size: VOCABULARY as usize,
        mask_token_id: MASK,
        target_layer_ids: vec![1, 2],
        num_target_layers: 4,
        layer_types: layer_types.to_vec(),
        sliding_window: Some(5),
        max_position_embeddings: 128,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// Weights ten times as large as fresh ones: everything visible then matters.
pub(crate) fn drafter(config: &DraftConfig, seed: u64) -> Drafter {
    let drafter = Drafter::new(config, seed, Device::Cpu, Kind::Float).expect("memory for a tiny drafter");
    tch::no_grad(|| {
        for (_, leaf) in drafter.parameters().named().iter().filter(|(_, leaf)| leaf.dim() == 2) {
            let _ = leaf.shallow_clone().g_mul_scalar_(10.0);
        }
    });
    drafter
}

/// Numbers from a fixed formula rather than libtorch's generator, which all tests of a process share.
pub(crate) fn random(shape: &[i64], seed: u64) -> Tensor {
    let count = shape.iter().product::<i64>();
    let phase = Tensor::arange(count, (Kind::Double, Device::Cpu)) * 12.9898 + (seed as f64 + 1.0) * 78.233;
    let scrambled = phase.sin() * 43_758.545_3;
    ((&scrambled - scrambled.floor()) * 3.4 - 1.7).to_kind(Kind::Float).view(shape)
}

/// A packed batch with its hidden states, and the target's embedding table.
pub(crate) struct Batch {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) loss_mask: Vec<u8>,
    pub(crate) document_offsets: Vec<u32>,
    pub(crate) row_ids: Vec<u64>,
    pub(crate) taps: Tensor,      // [T, K*H]
    pub(crate) embedding: Tensor, // [V, H]
}

impl Batch {
    pub(crate) fn new(lengths: &[usize], seed: u64) -> Batch {
        let tokens: usize = lengths.iter().sum();
        let token = |index: usize| (((index as u64 * 7 + seed * 13 + 3) * 2_654_435_761) >> 7) as u32 % MASK;
        let offsets = lengths.iter().scan(0, |end, length| {
            *end += *length as u32;
            Some(*end)
        });
        Batch {
            token_ids: (0..tokens).map(token).collect(),
            loss_mask: vec![1; tokens],
            document_offsets: [0].into_iter().chain(offsets).collect(),
            row_ids: (0..lengths.len() as u64).collect(),
            taps: random(&[tokens as i64, TAPS * HIDDEN], seed),
            embedding: random(&[VOCABULARY, HIDDEN], seed + 100),
        }
    }

    pub(crate) fn rows(&self) -> PackedRows<'_> {
        PackedRows {
            token_ids: &self.token_ids,
            loss_mask: &self.loss_mask,
            document_offsets: &self.document_offsets,
            row_ids: &self.row_ids,
        }
    }

    pub(crate) fn plan(&self, drafter: &Drafter, anchors: &[usize]) -> BlockPlan {
        BlockPlan::new(&self.rows(), anchors, &drafter.plan_options())
    }

    pub(crate) fn embed(&self, ids: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding, ids, -1, false, false)
    }

    /// Final hidden states [anchors, B, H] of the blocks at `anchors`, in their order.
    pub(crate) fn hidden(&self, drafter: &Drafter, anchors: &[usize]) -> Tensor {
        let plan = self.plan(drafter, anchors);
        given(&self.hidden_of(drafter, &plan), &plan)
    }

    /// Final hidden states [N, B, H] as the plan lays them out.
    pub(crate) fn hidden_of(&self, drafter: &Drafter, plan: &BlockPlan) -> Tensor {
        drafter.forward(&self.taps, &self.embed(&plan.token_ids), plan)
    }
}

/// Of [N, ..] the blocks at the anchors that the plan was made for, in their order.
pub(crate) fn given(blocks: &Tensor, plan: &BlockPlan) -> Tensor {
    let places: Vec<i64> = plan.places.iter().map(|place| *place as i64).collect();
    blocks.index_select(0, &Tensor::from_slice(&places))
}

/// Largest difference relative to the larger of the two, 0 for equal tensors.
pub(crate) fn difference(left: &Tensor, right: &Tensor) -> f64 {
    assert_eq!(left.size(), right.size());
    let largest = left.abs().max().double_value(&[]).max(right.abs().max().double_value(&[]));
    (left - right).abs().max().double_value(&[]) / largest.max(1e-30)
}
