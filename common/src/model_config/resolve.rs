//! Decides the drafter's shape: what `[drafter]` gives, else the checkpoint to start from, else target and published rule.

use super::{DraftConfig, ModelConfigError, TargetConfig};
use crate::config::{DrafterSection, LayerType};

/// The published drafters' own, whatever the target's.
const RMS_NORM_EPS: f64 = 1e-6;

/// The published rule for `count` taps of a target with `layers` decoder layers: from layer 1 to the last but two,
/// evenly, rounded half to even. Repeats itself where the target has too few layers for that many taps.
pub fn default_target_layer_ids(layers: usize, count: usize) -> Vec<usize> {
    if count == 1 {
        return vec![layers / 2];
    }
    let span = layers as f64 - 4.0;
    let id = |i: usize| (1.0 + i as f64 * span / (count as f64 - 1.0)).round_ties_even();
    (0..count).map(|i| id(i) as usize).collect()
}

impl TargetConfig {
    /// Whether all ids of a tokenizer, which lie below `tokenizer_len`, have their row in the embedding.
    ///
    /// # Errors
    /// [`ModelConfigError::Tokenizer`].
    pub fn check_tokenizer(&self, tokenizer_len: usize) -> Result<(), ModelConfigError> {
        if tokenizer_len <= self.vocab_size {
            return Ok(());
        }
        Err(ModelConfigError::Tokenizer { highest: tokenizer_len - 1, rows: self.vocab_size })
    }
}

impl DraftConfig {
    /// The drafter for `target`, whose tokenizer's ids lie below `tokenizer_len`.
    ///
    /// # Errors
    /// A tap outside the target; no row for the mask, or one that the target uses; a checkpoint to start from that
    /// has another shape, other taps or another mask.
    pub fn resolve(
        section: &DrafterSection,
        target: &TargetConfig,
        tokenizer_len: usize,
    ) -> Result<DraftConfig, ModelConfigError> {
        let start = section.draft_checkpoint_path.as_deref().map(DraftConfig::read).transpose()?;
        let draft = from_parts(section, target, start.as_ref(), tokenizer_len)?;
        check_heads(&draft)?;
        check_taps(&draft, target)?;
        check_mask(&draft, target)?;
        if let Some(start) = start {
            check_start(&draft, &start)?;
        }
        Ok(draft)
    }
}

fn from_parts(
    section: &DrafterSection,
    target: &TargetConfig,
    start: Option<&DraftConfig>,
    tokenizer_len: usize,
) -> Result<DraftConfig, ModelConfigError> {
    let layers = section.num_hidden_layers as usize;
    let size = |given: Option<u32>, started: fn(&DraftConfig) -> usize, fallback: usize| {
        given.map_or_else(|| start.map_or(fallback, started), |size| size as usize)
    };
    let heads = size(section.num_attention_heads, |start| start.num_attention_heads, target.num_attention_heads);
    let groups = size(section.num_key_value_heads, |start| start.num_key_value_heads, target.num_key_value_heads);
    let head_dim = size(section.head_dim, |start| start.head_dim, target.head_dim);
    let inner = size(section.intermediate_size, |start| start.intermediate_size, target.intermediate_size);
    let theta = section.rope_theta.or(start.map(|start| start.rope_theta)).unwrap_or(target.rope.theta);
    let started_types = start.map(|start| start.layer_types.clone());
    let layer_types = section.layer_types.clone().or(started_types).unwrap_or(vec![LayerType::FullAttention; layers]);
    let given_window = section.sliding_window.map(|window| window as usize);
    Ok(DraftConfig {
        block_size: section.block_size as usize,
        num_hidden_layers: layers,
        hidden_size: target.hidden_size,
        intermediate_size: inner,
        num_attention_heads: heads,
        num_key_value_heads: groups,
        head_dim,
        rms_norm_eps: start.map_or(RMS_NORM_EPS, |start| start.rms_norm_eps),
        rope_theta: theta,
        vocab_size: target.vocab_size,
        mask_token_id: mask_token_id(section, target, start, tokenizer_len)?,
        target_layer_ids: target_layer_ids(section, target, start),
        num_target_layers: target.num_hidden_layers,
        layer_types,
        sliding_window: given_window.or(start.and_then(|start| start.sliding_window)),
        max_position_embeddings: target.max_position_embeddings,
        bos_token_id: target.bos_token_id,
        eos_token_ids: target.eos_token_ids.clone(),
    })
}

fn target_layer_ids(section: &DrafterSection, target: &TargetConfig, start: Option<&DraftConfig>) -> Vec<usize> {
    match (&section.target_layer_ids, start) {
        (Some(given), _) => given.iter().map(|id| *id as usize).collect(),
        (None, Some(start)) => start.target_layer_ids.clone(),
        (None, None) => default_target_layer_ids(target.num_hidden_layers, section.num_target_layer_ids as usize),
    }
}

fn mask_token_id(
    section: &DrafterSection,
    target: &TargetConfig,
    start: Option<&DraftConfig>,
    tokenizer_len: usize,
) -> Result<u32, ModelConfigError> {
    if let Some(id) = section.mask_token_id.or(start.map(|start| start.mask_token_id)) {
        return Ok(id);
    }
    if tokenizer_len < target.vocab_size {
        return Ok(tokenizer_len as u32);
    }
    let found = format!("none given, and the tokenizer uses all {} embedding rows", target.vocab_size);
    Err(ModelConfigError::drafter("mask_token_id", found, "the id of a token that never occurs in text"))
}

fn check_heads(draft: &DraftConfig) -> Result<(), ModelConfigError> {
    let (heads, groups) = (draft.num_attention_heads, draft.num_key_value_heads);
    if groups == 0 || heads == 0 || !heads.is_multiple_of(groups) {
        let allowed = format!("a divisor of num_attention_heads = {heads}");
        return Err(ModelConfigError::drafter("num_key_value_heads", groups, allowed));
    }
    if draft.head_dim == 0 || !draft.head_dim.is_multiple_of(2) {
        return Err(ModelConfigError::drafter("head_dim", draft.head_dim, "an even number"));
    }
    Ok(())
}

fn check_taps(draft: &DraftConfig, target: &TargetConfig) -> Result<(), ModelConfigError> {
    let ids = &draft.target_layer_ids;
    let layers = target.num_hidden_layers;
    if ids.is_empty() || !ids.is_sorted_by(|left, right| left < right) {
        let allowed = format!("fewer taps for a target of {layers} layers, or target_layer_ids written out, ascending");
        return Err(ModelConfigError::drafter("num_target_layer_ids", format!("{ids:?}"), allowed));
    }
    if ids.iter().any(|id| *id >= layers) {
        let allowed = format!("layers 0 to {}, as the target has {layers}", layers - 1);
        return Err(ModelConfigError::drafter("target_layer_ids", format!("{ids:?}"), allowed));
    }
    Ok(())
}

fn check_mask(draft: &DraftConfig, target: &TargetConfig) -> Result<(), ModelConfigError> {
    let id = draft.mask_token_id;
    if id as usize >= target.vocab_size {
        let allowed = format!("0 to {}, the target's embedding rows", target.vocab_size - 1);
        return Err(ModelConfigError::drafter("mask_token_id", id, allowed));
    }
    if target.eos_token_ids.contains(&id) {
        let found = format!("{id}, which ends the target's texts (eos)");
        return Err(ModelConfigError::drafter("mask_token_id", found, "the id of a token that never occurs in text"));
    }
    Ok(())
}

/// Weights made for another shape do not load; weights made for other taps or another mask load and are worthless.
fn check_start(draft: &DraftConfig, start: &DraftConfig) -> Result<(), ModelConfigError> {
    let must_equal = |key, found: String, expected: String| {
        if found == expected {
            return Ok(());
        }
        Err(ModelConfigError::drafter(key, found, format!("{expected}, as in drafter.draft_checkpoint_path")))
    };
    if draft.hidden_size != start.hidden_size {
        let found = format!("a drafter for hidden size {}", start.hidden_size);
        let allowed = format!("one for the target's hidden size {}", draft.hidden_size);
        return Err(ModelConfigError::drafter("draft_checkpoint_path", found, allowed));
    }
    type Number = fn(&DraftConfig) -> usize;
    let numbers: [(&'static str, Number); 6] = [
        ("num_hidden_layers", |draft| draft.num_hidden_layers),
        ("intermediate_size", |draft| draft.intermediate_size),
        ("num_attention_heads", |draft| draft.num_attention_heads),
        ("num_key_value_heads", |draft| draft.num_key_value_heads),
        ("head_dim", |draft| draft.head_dim),
        ("mask_token_id", |draft| draft.mask_token_id as usize),
    ];
    for (key, number) in numbers {
        must_equal(key, number(draft).to_string(), number(start).to_string())?;
    }
    let ids = |draft: &DraftConfig| format!("{:?}", draft.target_layer_ids);
    must_equal("target_layer_ids", ids(draft), ids(start))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::draft::tests::qwen3_8b;
    use super::super::{Architecture, Rope, RopeScaling};
    use super::*;

    /// Qwen3-8B.
    pub(crate) fn qwen3_8b_target() -> TargetConfig {
        TargetConfig {
            architecture: Architecture::Qwen3,
            vocab_size: 151_936,
            hidden_size: 4096,
            intermediate_size: 12_288,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            rope: Rope { theta: 1e6, scaling: RopeScaling::Default },
            tie_word_embeddings: false,
            attention_bias: false,
            max_position_embeddings: 40_960,
            bos_token_id: Some(151_643),
            eos_token_ids: vec![151_645],
        }
    }

    const TOKENIZER_LEN: usize = 151_669;

    fn refusal(section: &DrafterSection, target: &TargetConfig, tokenizer_len: usize) -> String {
        DraftConfig::resolve(section, target, tokenizer_len).unwrap_err().to_string()
    }

    #[test]
    fn taps_of_the_published_rule() {
        let published: [(usize, &[usize]); 14] = [
            (24, &[1, 11, 21]),
            (28, &[1, 7, 13, 19, 25]),
            (32, &[1, 8, 15, 22, 29]),
            (36, &[1, 9, 17, 25, 33]),
            (36, &[1, 17, 33]),
            (36, &[1, 7, 14, 20, 27, 33]),
            (40, &[1, 10, 19, 28, 37]),
            (40, &[1, 6, 11, 16, 22, 27, 32, 37]),
            (48, &[1, 12, 23, 34, 45]),
            (52, &[1, 13, 25, 37, 49]),
            (61, &[1, 12, 24, 35, 47, 58]),
            (64, &[1, 16, 31, 46, 61]),
            (28, &[1, 4, 7, 10, 13, 16, 19, 22, 25]),
            (11, &[1, 4, 8]),
        ];
        for (layers, ids) in published {
            assert_eq!(default_target_layer_ids(layers, ids.len()), ids, "{layers} layers");
        }
        assert_eq!(default_target_layer_ids(37, 1), [18]);
    }

    #[test]
    fn defaults_give_the_published_drafter() {
        assert_eq!(
            DraftConfig::resolve(&DrafterSection::default(), &qwen3_8b_target(), TOKENIZER_LEN).unwrap(),
            qwen3_8b()
        );
    }

    #[test]
    fn the_mask_is_an_unused_row_or_refused() {
        let given = |id| DrafterSection { mask_token_id: Some(id), ..DrafterSection::default() };
        assert_eq!(DraftConfig::resolve(&given(7), &qwen3_8b_target(), TOKENIZER_LEN).unwrap().mask_token_id, 7);
        let outside = refusal(&given(151_936), &qwen3_8b_target(), TOKENIZER_LEN);
        assert!(outside.contains("drafter.mask_token_id: found 151936, allowed: 0 to 151935"), "{outside}");
        assert!(refusal(&given(151_645), &qwen3_8b_target(), TOKENIZER_LEN).contains("ends the target's texts (eos)"));
        let full = refusal(&DrafterSection::default(), &qwen3_8b_target(), 151_936);
        assert!(full.contains("mask_token_id: found none given"), "{full}");
    }

    #[test]
    fn a_tokenizer_larger_than_the_embedding_is_refused() {
        assert!(qwen3_8b_target().check_tokenizer(151_936).is_ok());
        let refused = qwen3_8b_target().check_tokenizer(151_937).unwrap_err().to_string();
        assert!(refused.contains("ids go up to 151936") && refused.contains("151936 rows"), "{refused}");
    }

    #[test]
    fn taps_outside_the_target_are_refused() {
        let section = DrafterSection { target_layer_ids: Some(vec![1, 36]), ..DrafterSection::default() };
        assert!(
            refusal(&section, &qwen3_8b_target(), TOKENIZER_LEN)
                .contains("target_layer_ids: found [1, 36], allowed: layers 0 to 35")
        );
        let small = TargetConfig { num_hidden_layers: 4, ..qwen3_8b_target() };
        let repeated = refusal(&DrafterSection::default(), &small, TOKENIZER_LEN);
        assert!(repeated.contains("num_target_layer_ids: found [1, 1, 1, 1, 1]"), "{repeated}");
    }

    #[test]
    fn a_checkpoint_to_start_from_decides_what_is_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let start = DraftConfig { mask_token_id: 9, intermediate_size: 64, target_layer_ids: vec![2, 3], ..qwen3_8b() };
        start.write(folder.path()).unwrap();
        let section = DrafterSection { draft_checkpoint_path: Some(folder.path().into()), ..DrafterSection::default() };
        assert_eq!(DraftConfig::resolve(&section, &qwen3_8b_target(), TOKENIZER_LEN).unwrap(), start);

        let other_taps = DrafterSection { target_layer_ids: Some(vec![2, 4]), ..section.clone() };
        assert!(
            refusal(&other_taps, &qwen3_8b_target(), TOKENIZER_LEN)
                .contains("allowed: [2, 3], as in drafter.draft_checkpoint_path")
        );
        let other_layers = DrafterSection { num_hidden_layers: 2, ..section.clone() };
        assert!(
            refusal(&other_layers, &qwen3_8b_target(), TOKENIZER_LEN)
                .contains("num_hidden_layers: found 2, allowed: 5")
        );
        let other_target = TargetConfig { hidden_size: 2560, ..qwen3_8b_target() };
        assert!(refusal(&section, &other_target, TOKENIZER_LEN).contains("one for the target's hidden size 2560"));
    }
}
