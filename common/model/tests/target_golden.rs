//! The target against transformers: logits and every layer output to 1e-4 in float32, packed and step by step.
//!
//! Numbers and tiny models lie in `tests/golden`, made by `make_goldens.py` there. SmolLM2-135M's numbers lie there too;
//! its weights are made by `examples/smollm2-135m/make_target.py`, and its test says so and passes where they are not.

#![expect(clippy::print_stderr, reason = "figures and the skipped test's reason are for whoever runs the tests")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use common::model_config::TargetConfig;
use model::nn::KvCache;
use model::target::{Backbone, Step, Target};
use tch::{Device, Kind, Tensor};

const TINY: [&str; 6] = [
    "llama-tied",
    "llama-untied-llama3",
    "qwen2-sharded-yarn",
    "qwen2-tied-llama3",
    "qwen3-sharded",
    "qwen3-tied-yarn",
];
const TOLERANCE: f64 = 1e-4;

struct Golden {
    name: String,
    target: Target,
    expected: HashMap<String, Tensor>,
    document_offsets: Vec<u32>,
}

impl Golden {
    fn load(weights: &Path, expected: &Path, kind: Kind) -> Golden {
        let config = TargetConfig::read(weights).unwrap();
        let expected = Tensor::read_safetensors(expected.join("expected.safetensors")).unwrap();
        let expected: HashMap<String, Tensor> = expected.into_iter().collect();
        let offsets: Vec<i64> = Vec::try_from(&expected["document_offsets"]).unwrap();
        Golden {
            name: weights.file_name().unwrap().to_string_lossy().into_owned(),
            target: Target::load(weights, &config, Device::Cpu, kind).unwrap(),
            expected,
            document_offsets: offsets.into_iter().map(|offset| offset as u32).collect(),
        }
    }

    fn tiny(name: &str, kind: Kind) -> Golden {
        let folder = repository().join("tests/golden").join(name);
        Golden::load(&folder, &folder, kind)
    }

    fn ids(&self) -> &Tensor {
        &self.expected["input_ids"]
    }

    fn layer_ids(&self) -> Vec<usize> {
        let ids: Vec<i64> = Vec::try_from(&self.expected["layer_ids"]).unwrap();
        ids.into_iter().map(|id| id as usize).collect()
    }

    /// Output [T, H] of layer `layer`.
    fn layer(&self, layer: usize) -> Tensor {
        let row = self.layer_ids().iter().position(|id| *id == layer).unwrap();
        self.expected["layers"].get(row as i64)
    }

    /// All captured layers side by side, [T, K*H].
    fn taps(&self) -> Tensor {
        self.expected["layers"].permute([1, 0, 2]).flatten(1, 2)
    }

    /// What `backbone` captures of the golden tokens; every tap comes once, in order.
    fn capture(&self, backbone: &Backbone, taps: &[usize]) -> Vec<Tensor> {
        let mut captured = Vec::new();
        let ids: Vec<i64> = Vec::try_from(self.ids()).unwrap();
        let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
        backbone.capture(&ids, &self.document_offsets, taps, &mut |k, x| {
            assert_eq!(k, captured.len(), "{}: taps come in order", self.name);
            captured.push(x.shallow_clone());
        });
        assert_eq!(captured.len(), taps.len());
        captured
    }

    /// Captures `taps` and gives the largest relative error.
    fn capture_error(&self, taps: &[usize]) -> f64 {
        let captured = self.capture(self.target.backbone(), taps);
        let errors = captured.iter().zip(taps).map(|(x, &layer)| relative_error(x, &self.layer(layer)));
        errors.fold(0.0, f64::max)
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Largest difference within a row over the row's largest value, worst row; NaN is as bad as it gets.
fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let rows = (&found - &expected).abs().amax(-1, false) / expected.abs().amax(-1, false);
    let worst = rows.max().double_value(&[]);
    if worst.is_nan() { f64::INFINITY } else { worst }
}

/// Runs `ids` in pieces of 1, 2, 3, ... tokens. Behind each piece goes a wrong one that is cropped off again.
fn steps(target: &Target, ids: &Tensor, cache: &mut KvCache, taps: &[usize]) -> (Tensor, Tensor) {
    let (mut logits, mut tapped) = (Vec::new(), Vec::new());
    let (mut start, total) = (0, ids.size()[0]);
    while start < total {
        let count = (logits.len() as i64 + 1).min(total - start);
        let step = target.step(&ids.narrow(0, start, count), cache, taps);
        start += count;
        assert_eq!(cache.len() as i64, start);
        logits.push(step.logits);
        tapped.push(step.taps);
        target.step(&Tensor::from_slice(&[3i64, 5, 7]), cache, &[]);
        cache.crop(start as usize);
    }
    (Tensor::cat(&logits, 0), Tensor::cat(&tapped, 0))
}

#[test]
fn packed_capture_equals_each_document_alone() {
    for name in TINY {
        let golden = Golden::tiny(name, Kind::Float);
        let all = golden.capture_error(&golden.layer_ids());
        eprintln!("{name}: capture, largest relative error {all:.1e}");
        assert!(all < TOLERANCE, "{name}: {all:e}");
        assert!(golden.capture_error(&[0, 2]) < TOLERANCE, "{name}: taps that leave layers out");
    }
}

#[test]
fn a_backbone_up_to_the_last_tap_captures_what_the_whole_target_does() {
    for name in TINY {
        let golden = Golden::tiny(name, Kind::Float);
        let folder = repository().join("tests/golden").join(name);
        let backbone = Backbone::load(&folder, golden.target.config(), 2, Device::Cpu, Kind::Float).unwrap();
        let whole = golden.capture(golden.target.backbone(), &[0, 1]);
        assert_eq!(golden.capture(&backbone, &[0, 1]), whole, "{name}");
    }
}

#[test]
fn a_prompts_last_scores_are_those_of_a_step() {
    for name in TINY {
        let golden = Golden::tiny(name, Kind::Float);
        let pass = |forward: fn(&Target, &Tensor, &mut KvCache, &[usize]) -> Step| {
            let mut cache = golden.target.new_cache(4).unwrap();
            let step = forward(&golden.target, golden.ids(), &mut cache, &[1]);
            assert_eq!(cache.len() as i64, golden.ids().size()[0]);
            step
        };
        let (prompt, step) = (pass(Target::prefill), pass(Target::step));
        let last = step.logits.narrow(0, step.logits.size()[0] - 1, 1);
        assert!(relative_error(&prompt.logits, &last) < TOLERANCE, "{name}");
        assert_eq!(prompt.taps, step.taps, "{name}");
    }
}

#[test]
fn steps_in_uneven_pieces_with_crops_equal_one_pass() {
    for name in TINY {
        let golden = Golden::tiny(name, Kind::Float);
        let mut cache = golden.target.new_cache(4).unwrap();
        let (mut logits, mut taps) = (Vec::new(), Vec::new());
        for ends in golden.document_offsets.windows(2) {
            cache.crop(0);
            let ids = golden.ids().narrow(0, i64::from(ends[0]), i64::from(ends[1] - ends[0]));
            let (document_logits, document_taps) = steps(&golden.target, &ids, &mut cache, &golden.layer_ids());
            logits.push(document_logits);
            taps.push(document_taps);
        }
        let logits = relative_error(&Tensor::cat(&logits, 0), &golden.expected["logits"]);
        let taps = relative_error(&Tensor::cat(&taps, 0), &golden.taps());
        eprintln!("{name}: steps, largest relative error: logits {logits:.1e}, taps {taps:.1e}");
        assert!(logits < TOLERANCE && taps < TOLERANCE, "{name}: logits {logits:e}, taps {taps:e}");
    }
}

#[test]
fn bfloat16_stays_near() {
    for name in TINY {
        let golden = Golden::tiny(name, Kind::BFloat16);
        let error = golden.capture_error(&golden.layer_ids());
        eprintln!("{name}: bfloat16 capture, largest relative error {error:.1e}");
        assert!(error < 0.1, "{name}: {error:e}");
    }
}

#[test]
fn smollm2_equals_transformers() {
    let weights = repository().join("examples/smollm2-135m/target");
    if !weights.join("config.json").exists() {
        eprintln!("skipped: examples/smollm2-135m/target is not there; make_target.py beside it makes it");
        return;
    }
    let golden = Golden::load(&weights, &repository().join("tests/golden/smollm2-135m"), Kind::Float);
    let capture = golden.capture_error(&golden.layer_ids());
    let mut cache = golden.target.new_cache(64).unwrap();
    let (logits, taps) = steps(&golden.target, golden.ids(), &mut cache, &golden.layer_ids());
    let expected = &golden.expected["logits"];
    let last = expected.size()[0];
    let logits = relative_error(&logits.narrow(0, logits.size()[0] - last, last), expected);
    let taps = relative_error(&taps, &golden.taps());
    eprintln!("smollm2-135m: largest relative error: capture {capture:.1e}, logits {logits:.1e}, taps {taps:.1e}");
    assert!(capture < TOLERANCE && logits < TOLERANCE && taps < TOLERANCE, "{capture:e} {logits:e} {taps:e}");
}
