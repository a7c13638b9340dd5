//! The target on a GPU in bfloat16: fused kernels, chosen products and the flash kernel against plain operations, packed rows
//! against rows alone, decoding against one pass. Random weights; skipped, with a message, where there is no GPU.

#![expect(clippy::print_stderr, reason = "figures and the skipped test's reason are for whoever runs the tests")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::sync::OnceLock;

use common::config::Device as Wanted;
use common::ids::Rank;
use common::model_config::{Architecture, Rope, RopeScaling, TargetConfig};
use model::cuda::flash::{Flash, Spans};
use model::cuda::fused::{Fused, LayerShape, Turn};
use model::cuda::products::Products;
use model::nn::{Rotary, rms_norm, rotate, swiglu};
use model::runtime;
use model::target::{Backbone, Target};
use tch::{Device, Kind, Tensor};

/// Batches of documents: of one token, of tile sizes and one off, and long ones; alike; all of one length.
const BATCHES: [&[u32]; 4] =
    [&[1, 320, 64, 65, 7, 1000, 128, 3, 511], &[1100, 1023, 1280, 1], &[1199, 1024, 1101], &[192, 192]];
const TAPS: [usize; 3] = [0, 2, 3];

fn gpu() -> Option<Device> {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = *DEVICE.get_or_init(|| runtime::start(Wanted::Auto, Rank(0), 1).unwrap());
    if !device.is_cuda() {
        eprintln!("skipped: no GPU");
    }
    device.is_cuda().then_some(device)
}

fn config(architecture: Architecture) -> TargetConfig {
    TargetConfig {
        architecture,
        vocab_size: 1000,
        hidden_size: 576,
        intermediate_size: 1536,
        num_hidden_layers: 4,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        rms_norm_eps: 1e-6,
        rope: Rope { theta: 1e5, scaling: RopeScaling::Default },
        tie_word_embeddings: true,
        attention_bias: architecture == Architecture::Qwen2,
        max_position_embeddings: 4096,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn offsets(lengths: &[u32]) -> Vec<u32> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|place| (place * 7919 + 13) % 1000).collect()
}

/// Taps side by side, [T, K*H].
fn capture(backbone: &Backbone, ids: &[u32], offsets: &[u32]) -> Tensor {
    let mut taps = Vec::new();
    backbone.capture(ids, offsets, &TAPS, &mut |_, x| taps.push(x.shallow_clone()));
    Tensor::cat(&taps, 1)
}

fn random(size: &[i64], device: Device) -> Tensor {
    Tensor::randn(size, (Kind::Float, device)).to_kind(Kind::BFloat16)
}

/// Largest difference in a row over the row's largest value: in bfloat16 one rounding is 0.004 of it at most.
fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let (found, expected) = (found.to_kind(Kind::Float), expected.to_kind(Kind::Float));
    let worst = ((&found - &expected).abs().amax(-1, false) / expected.abs().amax(-1, false)).max().double_value(&[]);
    if worst.is_nan() { f64::INFINITY } else { worst }
}

/// Share of elements that differ at all.
fn differing(found: &Tensor, expected: &Tensor) -> f64 {
    found.ne_tensor(expected).to_kind(Kind::Float).mean(Kind::Float).double_value(&[])
}

fn shape(head_norms: bool) -> LayerShape {
    LayerShape { hidden: 4096, inner: 1536, head_dim: 128, query_heads: 8, key_heads: 2, head_norms, eps: 1e-6 }
}

#[test]
fn fused_norms_and_gates_round_as_the_plain_operations() {
    let Some(device) = gpu() else { return };
    let fused = Fused::load(shape(true), 0).unwrap();
    let (x, weight) = (random(&[333, 4096], device), random(&[4096], device));
    let (normed, plain) = (fused.rms_norm(&x, &weight), rms_norm(&x, &weight, 1e-6));
    let (share, worst) = (differing(&normed, &plain), error(&normed, &plain));
    eprintln!("norm: {share:.1e} of elements differ, by {worst:.1e} of a row's largest at most");
    assert!(share < 1e-2 && worst < 0.005, "{share} {worst}");

    let gate_up = random(&[333, 2 * 1536], device) * 4.0;
    let halves = gate_up.chunk(2, 1);
    let (found, plain) = (fused.swiglu(&halves[0], &halves[1]), swiglu(&halves[0], &halves[1]));
    assert_eq!(differing(&found, &fused.swiglu(&halves[0].contiguous(), &halves[1].contiguous())), 0.0);
    let (share, worst) = (differing(&found, &plain), error(&found, &plain));
    eprintln!("swiglu: {share:.1e} of elements differ, by {worst:.1e} of a row's largest at most");
    assert!(share < 1e-2 && worst < 0.01, "{share} {worst}");
}

#[test]
fn fused_heads_are_normed_and_turned_as_by_the_plain_operations() {
    let Some(device) = gpu() else { return };
    let rope = Rope { theta: 1e6, scaling: RopeScaling::Default };
    let positions = Tensor::arange(777, (Kind::Int64, device)).unsqueeze(1);
    let tables = Rotary::new(&rope, 128, device).tables(&positions);
    let weights = [random(&[128], device), random(&[128], device)];
    for head_norms in [true, false] {
        let fused = Fused::load(shape(head_norms), 0).unwrap();
        let qkv = random(&[777, 12, 128], device);
        let parts = qkv.copy().split_with_sizes([8, 2, 2], 1);
        let norms = head_norms.then_some([&weights[0], &weights[1]]);
        fused.turn_heads(&qkv, &Turn { cos: &tables.cos, sin: &tables.sin, norms });
        let turned = |index: usize| {
            let part = &parts[index];
            rotate(&norms.map_or_else(|| part.shallow_clone(), |norms| rms_norm(part, norms[index], 1e-6)), &tables)
        };
        let plain = Tensor::cat(&[&turned(0), &turned(1), &parts[2]], 1);
        let (share, worst) = (differing(&qkv, &plain), error(&qkv, &plain));
        eprintln!("heads, norms {head_norms}: {share:.1e} of elements differ, by {worst:.1e} at most");
        assert!(share < if head_norms { 1e-2 } else { 1e-12 } && worst < 0.01, "{share} {worst}");
    }
}

/// Tokens of a small product, which libtorch computes, and of large ones: those that kernels are tried on, hardly fewer, and far
/// fewer.
const PRODUCTS: [i64; 4] = [100, 8192, 8191, 5000];

#[test]
fn chosen_products_equal_libtorchs() {
    let Some(device) = gpu() else { return };
    let products = Products::on_gpu(0);
    for [out, depth] in [[4096, 4096], [6144, 3072]] {
        let (weight, bias) = (random(&[out, depth], device), random(&[out], device));
        for tokens in PRODUCTS {
            let input = random(&[tokens, depth], device);
            for (what, bias) in [("no bias", None), ("bias", Some(&bias))] {
                let (found, expected) = (products.linear(&input, &weight, bias), input.linear(&weight, bias));
                let (share, worst) = (differing(&found, &expected), error(&found, &expected));
                eprintln!(
                    "[{tokens}, {depth}] to {out}, {what}: {share:.1e} of elements differ, by {worst:.1e} at most"
                );
                assert!(worst < 0.005, "{worst}");
            }
        }
    }
}

#[test]
fn flash_shows_each_document_itself_and_new_tokens_their_past() {
    let Some(device) = gpu() else { return };
    let flash = Flash::find().expect("libtorch with CUDA has the flash kernel");
    let (q, k, v) = (random(&[70, 8, 64], device), random(&[100, 2, 64], device), random(&[100, 2, 64], device));
    // Two sequences: 40 new tokens behind 10, 30 behind 20.
    let found = flash.causal([&q, &k, &v], &Spans::upload(&[0, 40, 70], device), &Spans::upload(&[0, 50, 100], device));
    let alone = |q: Tensor, k: Tensor, v: Tensor, past: i64| {
        let [q, k, v] = [q, k, v].map(|x| x.to_kind(Kind::Float).transpose(0, 1));
        let (k, v) = (k.repeat_interleave_self_int(4, 0, None), v.repeat_interleave_self_int(4, 0, None));
        let mask = Tensor::ones([q.size()[1], k.size()[1]], (Kind::Bool, device)).tril(past);
        let scores = (q.matmul(&k.transpose(1, 2)) / 8.0).masked_fill(&mask.logical_not(), f64::NEG_INFINITY);
        scores.softmax(-1, Kind::Float).matmul(&v).transpose(0, 1)
    };
    let of = |tensor: &Tensor, start: i64, count: i64| tensor.narrow(0, start, count);
    let first = alone(of(&q, 0, 40), of(&k, 0, 50), of(&v, 0, 50), 10);
    let second = alone(of(&q, 40, 30), of(&k, 50, 50), of(&v, 50, 50), 20);
    let worst = error(&found, &Tensor::cat(&[first, second], 0));
    eprintln!("flash against softmax in float32: {worst:.1e}");
    assert!(worst < 0.02, "{worst}");
}

#[test]
fn packed_taps_equal_rows_alone_and_the_plain_operations() {
    let Some(device) = gpu() else { return };
    for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3] {
        let config = config(architecture);
        let mut backbone = Backbone::random(&config, 4, device, Kind::BFloat16).unwrap();
        let batches = BATCHES.map(|lengths| {
            let offsets = offsets(lengths);
            let ids = ids(offsets[offsets.len() - 1]);
            let packed = capture(&backbone, &ids, &offsets);
            assert_eq!(differing(&packed, &capture(&backbone, &ids, &offsets)), 0.0, "the same twice");
            let rows = offsets.windows(2).map(|ends| {
                let row = &ids[ends[0] as usize..ends[1] as usize];
                capture(&backbone, row, &[0, row.len() as u32])
            });
            let alone = error(&packed, &Tensor::cat(&rows.collect::<Vec<_>>(), 0));
            (ids, offsets, packed, alone)
        });
        backbone = backbone.with_plain_operations(&config);
        for (ids, offsets, packed, alone) in batches {
            let plain = error(&packed, &capture(&backbone, &ids, &offsets));
            eprintln!("{architecture:?} {offsets:?}: against rows alone {alone:.1e}, plain operations {plain:.1e}");
            assert!(alone < 0.03 && plain < 0.03, "{alone} {plain}");
        }
    }
}

#[test]
fn steps_in_uneven_pieces_with_crops_equal_a_capture() {
    let Some(device) = gpu() else { return };
    for architecture in [Architecture::Qwen2, Architecture::Qwen3] {
        let target = Target::random(&config(architecture), device, Kind::BFloat16).unwrap();
        let ids = ids(300);
        let whole = capture(target.backbone(), &ids, &[0, 300]);
        let ids = Tensor::from_slice(&ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>()).to_device(device);
        let mut cache = target.new_cache(16).unwrap();
        let mut pieces = vec![target.prefill(&ids.narrow(0, 0, 200), &mut cache, &TAPS).taps];
        for (start, count) in [(200, 1), (201, 16), (217, 83)] {
            let _ = target.step(&ids.narrow(0, 7, 5), &mut cache, &[]);
            cache.crop(start as usize);
            pieces.push(target.step(&ids.narrow(0, start, count), &mut cache, &TAPS).taps);
        }
        let worst = error(&Tensor::cat(&pieces, 0), &whole);
        eprintln!("{architecture:?}: steps against one pass {worst:.1e}");
        assert!(worst < 0.03, "{worst}");
    }
}
