//! How fast a target captures: random weights of a named size, packed rows of equal length, bfloat16 on one GPU.
//!
//! `capture_bench qwen3-8b` or `capture_bench smollm2-135m`; prints JSON lines (name, value, unit): the whole capture, the
//! same through plain operations, its parts alone, GPU memory after few and after many batches of random lengths.

#![expect(clippy::print_stdout, reason = "figures are what it is for")]

use std::time::Instant;

use common::config::Device as Wanted;
use common::ids::Rank;
use common::model_config::{Architecture, Rope, RopeScaling, TargetConfig};
use model::cuda::Gpu;
use model::cuda::cudnn::Cudnn;
use model::cuda::flash::{Flash, Spans};
use model::cuda::fused::{Fused, LayerShape, Turn};
use model::cuda::products::Products;
use model::nn::Rotary;
use model::runtime;
use model::target::Backbone;
use tch::{Cuda, Device, Kind, Tensor};

type Failure = Box<dyn std::error::Error>;

/// A target's size and the batch it is measured on.
struct Size {
    name: &'static str,
    config: TargetConfig,
    taps: [usize; 5],
    rows: u32,
    row_tokens: u32,
}

impl Size {
    fn named(name: &str) -> Option<Size> {
        let base = TargetConfig {
            architecture: Architecture::Qwen3,
            vocab_size: 151_936,
            hidden_size: 4096,
            intermediate_size: 12288,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            rope: Rope { theta: 1e6, scaling: RopeScaling::Default },
            tie_word_embeddings: false,
            attention_bias: false,
            max_position_embeddings: 40960,
            bos_token_id: None,
            eos_token_ids: vec![],
        };
        match name {
            "qwen3-8b" => {
                Some(Size { name: "qwen3-8b", config: base, taps: [1, 9, 17, 25, 33], rows: 4, row_tokens: 3072 })
            }
            "smollm2-135m" => {
                let config = TargetConfig {
                    architecture: Architecture::Llama,
                    vocab_size: 49152,
                    hidden_size: 576,
                    intermediate_size: 1536,
                    num_hidden_layers: 30,
                    num_attention_heads: 9,
                    num_key_value_heads: 3,
                    head_dim: 64,
                    ..base
                };
                Some(Size { name: "smollm2-135m", config, taps: [1, 8, 14, 20, 27], rows: 32, row_tokens: 320 })
            }
            _ => None,
        }
    }

    fn tokens(&self) -> u32 {
        self.rows * self.row_tokens
    }

    /// Rows of one length; of a bucket from two thirds of it; of any length up to it.
    fn batches(&self) -> [(&'static str, Vec<u32>); 3] {
        let rows = |shortest: u32| {
            let step = (self.row_tokens - shortest) / (self.rows - 1).max(1);
            (0..self.rows).map(|row| self.row_tokens - row * step).collect()
        };
        [
            ("fused", rows(self.row_tokens)),
            ("fused, a bucket", rows(2 * self.row_tokens / 3)),
            ("fused, any lengths", rows(1)),
        ]
    }

    fn report(&self, what: &str, value: f64, unit: &str) {
        println!(r#"{{"name": "capture {} {what}", "value": {value:.3}, "unit": "{unit}"}}"#, self.name);
    }

    /// Captures a batch `count` times, each alone.
    fn report_speed(&self, what: &str, backbone: &Backbone, batch: &Batch, count: usize) {
        let ms = median_ms(count, || batch.capture(self, backbone));
        self.report(what, ms, "ms");
        self.report(what, batch.ids.len() as f64 / ms * 1e3, "tokens/s");
    }
}

fn main() -> Result<(), Failure> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let size = Size::named(&name).ok_or("usage: capture_bench qwen3-8b|smollm2-135m")?;
    let device = runtime::start(Wanted::Cuda, Rank(0), 1)?;
    let depth = size.taps[4] + 1;
    let _no_grad = tch::no_grad_guard();
    let backbone = Backbone::random(&size.config, depth, device, Kind::BFloat16)?;
    size.report("weights loaded", used_gib()?, "GiB");
    for (what, lengths) in size.batches() {
        let batch = Batch::new(&size, &lengths);
        size.report(&format!("{what}, first batch"), timed_ms(&mut || batch.capture(&size, &backbone)), "ms");
        size.report_speed(what, &backbone, &batch, 20);
        let streak = timed_ms(&mut || (0..20).for_each(|_| batch.capture(&size, &backbone)));
        size.report(&format!("{what}, back to back"), (20 * batch.ids.len()) as f64 / streak * 1e3, "tokens/s");
    }
    let batch = Batch::new(&size, &vec![size.row_tokens; size.rows as usize]);
    size.report("host's share of a batch", host_ms(10, || batch.capture(&size, &backbone)), "ms");
    parts(&size, device)?;
    memory(&size, &backbone)?;
    let plain = backbone.with_plain_operations(&size.config);
    size.report_speed("plain operations", &plain, &batch, 5);
    Ok(())
}

/// Packed rows.
struct Batch {
    ids: Vec<u32>,
    offsets: Vec<u32>,
}

impl Batch {
    fn new(size: &Size, lengths: &[u32]) -> Batch {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let vocabulary = size.config.vocab_size as u32;
        let ids = (0..lengths.iter().sum()).map(|place: u32| (place * 7919 + 13) % vocabulary).collect();
        Batch { ids, offsets: [0].into_iter().chain(ends).collect() }
    }

    /// Captures it once; taps are laid side by side in one matrix, as in a slot.
    fn capture(&self, size: &Size, backbone: &Backbone) {
        let mut taps = Vec::new();
        backbone.capture(&self.ids, &self.offsets, &size.taps, &mut |_, x| taps.push(x.shallow_clone()));
        drop(Tensor::cat(&taps, 1));
    }
}

/// Median of `count` runs, each from an idle GPU to an idle GPU, after three to warm up.
fn median_ms(count: usize, mut run: impl FnMut()) -> f64 {
    (0..3).for_each(|_| run());
    let mut times: Vec<f64> = (0..count).map(|_| timed_ms(&mut run)).collect();
    times.sort_by(f64::total_cmp);
    times[count / 2]
}

fn timed_ms(run: &mut impl FnMut()) -> f64 {
    Cuda::synchronize(0);
    let start = Instant::now();
    run();
    Cuda::synchronize(0);
    start.elapsed().as_secs_f64() * 1e3
}

/// Mean time until the host has launched a batch and is free.
fn host_ms(count: u32, mut run: impl FnMut()) -> f64 {
    let mut spent = 0.0;
    for _ in 0..count {
        Cuda::synchronize(0);
        let start = Instant::now();
        run();
        spent += start.elapsed().as_secs_f64() * 1e3;
    }
    Cuda::synchronize(0);
    spent / f64::from(count)
}

/// Each part of a layer alone, for all layers that a batch runs through.
fn parts(size: &Size, device: Device) -> Result<(), Failure> {
    const REPEATS: usize = 20;
    let layers = (size.taps[4] + 1) as f64;
    let config = &size.config;
    let [tokens, hidden, inner, head, queries, keys] = [
        size.tokens() as usize,
        config.hidden_size,
        config.intermediate_size,
        config.head_dim,
        config.num_attention_heads,
        config.num_key_value_heads,
    ]
    .map(|number| number as i64);
    let random = |shape: &[i64]| Tensor::randn(shape, (Kind::BFloat16, device));
    let report = |what: &str, run: &mut dyn FnMut()| {
        let ms = median_ms(5, || (0..REPEATS).for_each(|_| run())) / REPEATS as f64;
        size.report(what, ms * layers, "ms in all layers");
    };
    let (x, weight) = (random(&[tokens, hidden]), random(&[hidden]));
    for (what, rows, columns) in [
        ("product qkv", (queries + 2 * keys) * head, hidden),
        ("product output", hidden, queries * head),
        ("product gate and up", 2 * inner, hidden),
        ("product down", hidden, inner),
    ] {
        let (input, matrix) = (random(&[tokens, columns]), random(&[rows, columns]));
        if rows == hidden {
            let mut residual = random(&[tokens, hidden]);
            report(what, &mut || drop(residual.addmm_(&input, &matrix.tr())));
        } else {
            let (chosen, libtorchs) = (Products::on_gpu(0), Products::default());
            report(what, &mut || drop(chosen.linear(&input, &matrix, None)));
            report(&format!("{what}, libtorch's"), &mut || drop(libtorchs.linear(&input, &matrix, None)));
        }
    }
    let fused = Fused::load(LayerShape::of(config), 0)?;
    report("norm, twice", &mut || (0..2).for_each(|_| drop(fused.rms_norm(&x, &weight))));
    let gate_up = random(&[tokens, 2 * inner]);
    let halves = gate_up.chunk(2, 1);
    report("swiglu", &mut || drop(fused.swiglu(&halves[0], &halves[1])));
    let qkv = random(&[tokens, queries + 2 * keys, head]);
    let tables =
        Rotary::new(&config.rope, config.head_dim, device).tables(&Tensor::arange(tokens, (Kind::Int64, device)));
    let norm = random(&[head]);
    let norms = (config.architecture == Architecture::Qwen3).then_some([&norm, &norm]);
    report("head norms and rotary", &mut || {
        fused.turn_heads(&qkv, &Turn { cos: &tables.cos, sin: &tables.sin, norms })
    });
    let ends: Vec<i32> = (0..=size.rows).map(|row| (row * size.row_tokens) as i32).collect();
    let (flash, spans) = (Flash::find().ok_or("no flash kernel in this libtorch")?, Spans::upload(&ends, device));
    let heads = qkv.split_with_sizes([queries, keys, keys], 1);
    report("attention, flash", &mut || drop(flash.causal([&heads[0], &heads[1], &heads[2]], &spans, &spans)));
    let cudnn = Cudnn::find().ok_or("no cuDNN attention in this libtorch")?;
    let [q, k, v] =
        [0, 1, 2].map(|part: usize| heads[part].unflatten(0, [i64::from(size.rows), i64::from(size.row_tokens)]));
    report("attention, cuDNN", &mut || drop(cudnn.causal([&q, &k, &v])));
    Ok(())
}

/// GPU memory after 50 and after 300 batches of random lengths, the first of full size.
fn memory(size: &Size, backbone: &Backbone) -> Result<(), Failure> {
    let mut state = 1_u64;
    for batch in 1..=300 {
        let mut lengths = vec![size.row_tokens; size.rows as usize];
        if batch > 1 {
            for length in &mut lengths {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *length = 1 + (state >> 33) as u32 % size.row_tokens;
            }
        }
        Batch::new(size, &lengths).capture(size, backbone);
        if batch == 50 || batch == 300 {
            Cuda::synchronize(0);
            size.report(&format!("GPU memory after batch {batch}"), used_gib()?, "GiB");
        }
    }
    Ok(())
}

/// Memory in use on the GPU, by whomever.
fn used_gib() -> Result<f64, Failure> {
    let (free, total) = Gpu::open(0)?.memory()?;
    Ok((total - free) as f64 / f64::from(1 << 30))
}
