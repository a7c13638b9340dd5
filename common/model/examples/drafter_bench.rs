//! The drafter's step alone: random weights of a named size, random tokens and hidden states, every token supervised.
//!
//!     drafter_bench SIZE [key=value ...]        SIZE: tiny, smollm2-135m or qwen3-8b
//!     drafter_bench RUN [key=value ...]         RUN: a run's folder
//!
//! Of a run it takes the drafter's shape, the settings of training and the batches in their order, so that its speed is what the
//! run's would be if nothing but the drafter took time (hidden states are random all the same; `device`, `steps`, `threads`).
//!
//! A step is everything that a drafter does with a batch once it has it: anchors, plan, forward, loss, backward, clipping and
//! AdamW. Prints one JSON object a line (name, value, unit). Keys: `device` (cpu, cuda), `rows`, `seq`, `anchors`, `steps`,
//! `group` (blocks of an attention group; several, joined by commas, are measured in turn), and `mixed=1`: rows of random
//! lengths between half of `seq` and `seq`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints figures and stops at the first surprise"
)]

use std::path::Path;
use std::time::Instant;

use common::config::{Config, Device as Wanted, LayerType, TrainingSection};
use common::ids::{BatchId, Rank};
use common::model_config::DraftConfig;
use common::run_plan::{PLAN_FILE, RunPlan};
use data::plan::{BatchPlan, PlanOptions};
use data::store::TokenStore;
use model::cuda::Late;
use model::drafter::{AnchorDraw, BlockPlan, Drafter, PackedRows, Weighting, anchors, loss};
use model::optimizer::{AdamW, GradientNorm};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Cuda, Device, Kind, Tensor};

/// A named size and the batch that goes with it.
struct Size {
    draft: DraftConfig,
    rows: usize,
    seq: usize,
    anchors: usize,
    kind: Kind,
}

#[rustfmt::skip]
fn size(name: &str) -> Size {
    // hidden, inner, heads, key heads, head dim, vocabulary, layers, taps, block; rows, row length, anchors; type
    let (hidden, inner, heads, key_heads, head_dim, vocabulary, layers, taps, block, rows, seq, anchors, kind) = match name {
        "tiny" => (128, 384, 4, 2, 32, 1088, 2, 3, 8, 8, 128, 16, Kind::Float),
        "smollm2-135m" => (576, 1536, 9, 3, 64, 49152, 5, 5, 8, 32, 320, 64, Kind::BFloat16),
        "qwen3-8b" => (4096, 12288, 32, 8, 128, 151_936, 5, 5, 16, 4, 3072, 512, Kind::BFloat16),
        other => panic!("no size {other}: tiny, smollm2-135m or qwen3-8b"),
    };
    let draft = DraftConfig {
        block_size: block, num_hidden_layers: layers, hidden_size: hidden, intermediate_size: inner, num_attention_heads: heads,
        num_key_value_heads: key_heads, head_dim, rms_norm_eps: 1e-6, rope_theta: 1e6, vocab_size: vocabulary, mask_token_id: 7,
        target_layer_ids: (1..=taps).collect(), num_target_layers: 8, layer_types: vec![LayerType::FullAttention; layers],
        sliding_window: None, max_position_embeddings: 40_960, bos_token_id: None, eos_token_ids: vec![2],
    };
    Size { draft, rows, seq, anchors, kind }
}

/// The batches of a run.
struct Planned {
    store: TokenStore,
    batches: BatchPlan,
    total: u64,
    next: u64,
}

impl Planned {
    /// Token ids, loss mask and documents' offsets of the next one.
    fn next(&mut self) -> (Vec<u32>, Vec<u8>, Vec<u32>) {
        let planned = self.batches.batch(BatchId(self.next % self.total)).unwrap();
        self.next += 1;
        let (mut token_ids, mut loss_mask, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        for &row in &planned.rows {
            let row = self.store.row(row as usize);
            token_ids.extend_from_slice(row.token_ids);
            loss_mask.extend_from_slice(row.loss_mask);
            offsets.push(token_ids.len() as u32);
        }
        (token_ids, loss_mask, offsets)
    }
}

/// A run's drafter, batches and settings.
fn of_run(folder: &Path) -> (Size, TrainingSection, Planned) {
    let (config, plan) = (Config::of_run(folder).unwrap(), RunPlan::read(folder).unwrap());
    let store = TokenStore::reopen(plan.token_store.as_deref().unwrap()).unwrap();
    let batches = BatchPlan::new(&store, &PlanOptions::of(&config));
    let (rows, seq) = (1, config.data.batch_tokens as usize);
    let anchors = config.training.num_anchors as usize;
    let kind = model::runtime::kind(config.model.torch_dtype);
    let size = Size { draft: plan.draft, rows, seq, anchors, kind };
    (size, config.training, Planned { store, batches, total: plan.total_batches, next: 0 })
}

/// `key=value` arguments.
struct Options(Vec<String>);

impl Options {
    fn text(&self, key: &str) -> Option<&str> {
        self.0.iter().find_map(|argument| argument.strip_prefix(key)?.strip_prefix('='))
    }

    fn number(&self, key: &str, default: usize) -> usize {
        self.text(key).map_or(default, |text| text.parse().unwrap())
    }
}

/// One packed batch: token ids, and documents' offsets.
struct Batch {
    token_ids: Vec<u32>,
    offsets: Vec<u32>,
    row_ids: Vec<u64>,
    loss_mask: Vec<u8>,
    taps: Tensor,
}

impl Batch {
    fn rows(&self) -> PackedRows<'_> {
        PackedRows {
            token_ids: &self.token_ids,
            loss_mask: &self.loss_mask,
            document_offsets: &self.offsets,
            row_ids: &self.row_ids,
        }
    }
}

struct Bench {
    size: Size,
    drafter: Drafter,
    optimizer: AdamW,
    embedding: Tensor,
    head: Tensor,
    /// Hidden states of a full batch.
    taps: Tensor,
    mixed: bool,
    planned: Option<Planned>,
    gamma: f64,
    group: usize,
    random: ChaCha8Rng,
    step: u64,
}

/// Where a step's time goes.
const PARTS: [&str; 5] = ["plan", "forward", "loss", "backward", "optimizer"];

impl Bench {
    fn new(size: Size, device: Device, training: &TrainingSection, options: &Options) -> Bench {
        let Size { draft, kind, .. } = &size;
        let drafter = Drafter::new(draft, 1, device, *kind).unwrap();
        let random = |rows: usize, columns: usize| {
            let table = Tensor::empty([rows as i64, columns as i64], (*kind, device));
            table.shallow_clone().normal_(0.0, 0.02)
        };
        let (vocabulary, hidden) = (draft.vocab_size, draft.hidden_size);
        Bench {
            optimizer: AdamW::new(drafter.parameters(), training),
            embedding: random(vocabulary, hidden),
            head: random(vocabulary, hidden),
            taps: random(size.rows * size.seq, draft.target_layer_ids.len() * hidden),
            mixed: options.number("mixed", 0) != 0,
            planned: None,
            gamma: training.loss_decay_gamma,
            group: drafter.plan_options().group_blocks,
            random: ChaCha8Rng::seed_from_u64(1),
            step: 0,
            drafter,
            size,
        }
    }

    fn batch(&mut self) -> Batch {
        let (token_ids, loss_mask, offsets) = match &mut self.planned {
            Some(planned) => planned.next(),
            None => self.random_rows(),
        };
        let taps = self.taps.narrow(0, 0, token_ids.len() as i64);
        Batch { row_ids: (0..offsets.len() as u64 - 1).collect(), token_ids, loss_mask, offsets, taps }
    }

    fn random_rows(&mut self) -> (Vec<u32>, Vec<u8>, Vec<u32>) {
        let (rows, seq) = (self.size.rows, self.size.seq);
        let mut offsets = vec![0];
        while offsets.last().copied().unwrap() < (rows * seq) as u32 {
            let length = if self.mixed { self.random.random_range(seq / 2..=seq) } else { seq };
            if offsets.last().unwrap() + length as u32 > (rows * seq) as u32 {
                break;
            }
            offsets.push(offsets.last().unwrap() + length as u32);
        }
        let tokens = *offsets.last().unwrap() as usize;
        let vocabulary = self.size.draft.vocab_size as u32;
        let token_ids = (0..tokens).map(|_| self.random.random_range(0..vocabulary)).collect();
        (token_ids, vec![1; tokens], offsets)
    }

    /// One step; `mark` is called between its parts.
    fn step(&mut self, batch: &Batch, mark: &mut dyn FnMut()) -> GradientNorm {
        self.step += 1;
        let rows = batch.rows();
        let draw = AnchorDraw { num_anchors: self.size.anchors, seed: 1, epoch: self.step };
        let anchors = anchors::draw(&rows, &draw);
        let options = model::drafter::PlanOptions { group_blocks: self.group, ..self.drafter.plan_options() };
        let plan = BlockPlan::new(&rows, &anchors, &options);
        mark();
        let noise = Tensor::embedding(&self.embedding, &plan.token_ids, -1, false, false);
        let hidden = self.drafter.forward(&batch.taps, &noise, &plan);
        mark();
        let parts = loss::block_loss(&hidden, &self.head, &plan, Weighting::Decay { gamma: self.gamma });
        mark();
        self.drafter.parameters_mut().backward(&hidden, &parts.d_hidden);
        mark();
        let norm = self.optimizer.update(self.drafter.parameters_mut(), parts.denominator, 6e-4);
        mark();
        norm
    }
}

fn synchronize(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

fn print(name: &str, value: f64, unit: &str) {
    println!("{}", serde_json::json!({ "name": name, "value": (value * 1000.0).round() / 1000.0, "unit": unit }));
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Gigabytes that this process takes: of the device, or of the host at its peak.
fn memory_gb(device: Device) -> f64 {
    if device.is_cuda() {
        let (free, total) = cudarc::driver::result::mem_get_info().unwrap();
        return (total - free) as f64 / 1e9;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1e6
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("a size: tiny, smollm2-135m or qwen3-8b");
    let options = Options(arguments.collect());
    let wanted = if options.text("device") == Some("cuda") { Wanted::Cuda } else { Wanted::Cpu };
    let device = model::runtime::start(wanted, Rank(0), options.number("threads", 2) as u32).unwrap();
    if Path::new(&name).join(PLAN_FILE).exists() {
        let (size, training, planned) = of_run(Path::new(&name));
        let mut bench = Bench::new(size, device, &training, &options);
        bench.planned = Some(planned);
        let run = Path::new(&name).file_name().unwrap().to_string_lossy();
        return measure_run(&mut bench, &run, options.number("steps", 200));
    }
    let mut size = size(&name);
    size.rows = options.number("rows", size.rows);
    size.seq = options.number("seq", size.seq);
    size.anchors = options.number("anchors", size.anchors);
    let mut bench = Bench::new(size, device, &TrainingSection::default(), &options);
    let steps = options.number("steps", 20);
    let Some(groups) = options.text("group") else {
        return measure(&mut bench, &format!("drafter {name}"), device, steps);
    };
    for group in groups.split(',') {
        bench.group = group.parse().unwrap();
        measure(&mut bench, &format!("drafter {name}, groups of {group}"), device, steps);
    }
}

/// Steps as a run takes them: the host waits for a step's numbers when the next one is on its way. The median of windows
/// of ten steps, of the last half of them, as a run's `metrics.jsonl` has it.
fn measure_run(bench: &mut Bench, run: &str, steps: usize) {
    const WINDOW: usize = 10;
    let (mut rates, mut late) = (Vec::new(), None::<Late>);
    for _ in 0..steps.div_ceil(WINDOW) {
        let batches: Vec<Batch> = (0..WINDOW).map(|_| bench.batch()).collect();
        let start = Instant::now();
        for batch in &batches {
            let norm = bench.step(batch, &mut || {});
            let numbers = Late::send(&norm.norm().view(1).to_kind(Kind::Double));
            late.replace(numbers).into_iter().for_each(|last| drop(last.wait()));
        }
        let tokens: usize = batches.iter().map(|batch| batch.token_ids.len()).sum();
        rates.push(tokens as f64 / start.elapsed().as_secs_f64());
    }
    let warm = rates.split_off(rates.len() / 2);
    print(&format!("drafter alone on the batches of {run}"), median(warm), "tokens/s");
}

fn measure(bench: &mut Bench, name: &str, device: Device, steps: usize) {
    for _ in 0..steps.min(5) {
        let batch = bench.batch();
        let _ = bench.step(&batch, &mut || {});
    }
    let (mut seconds, mut rates, mut queued, mut tokens) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for step in 1..=steps {
        let batch = bench.batch();
        synchronize(device);
        let start = Instant::now();
        let _ = bench.step(&batch, &mut || {});
        queued.push(start.elapsed().as_secs_f64() * 1e3);
        synchronize(device);
        seconds.push(start.elapsed().as_secs_f64());
        rates.push(batch.token_ids.len() as f64 / start.elapsed().as_secs_f64());
        tokens += batch.token_ids.len();
        if step == 50 {
            print(&format!("{name}: memory after step 50"), memory_gb(device), "GB");
        }
    }
    print(&format!("{name}: mean over all steps"), tokens as f64 / seconds.iter().sum::<f64>(), "tokens/s");
    print(&format!("{name}: step"), median(seconds) * 1e3, "ms");
    print(&format!("{name}: step, until the host has queued it"), median(queued), "ms");
    print(name, median(rates), "tokens/s");
    print(&format!("{name}: memory after step {steps}"), memory_gb(device), "GB");
    breakdown(bench, name, device, steps.min(10));
    snapshots(bench, name, device);
}

/// The state copied into memory that outlives the process, beside a file written anew there.
fn snapshots(bench: &Bench, name: &str, device: Device) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let timed = |what: &str, action: &mut dyn FnMut()| {
        synchronize(device);
        let start = Instant::now();
        action();
        print(&format!("{name}: {what}"), start.elapsed().as_secs_f64() * 1e3, "ms");
    };
    let path = folder.path().join("anew");
    let mut written = Ok(());
    timed("state written anew", &mut || written = bench.optimizer.save(&path));
    if let Err(error) = written {
        return println!("{}", serde_json::json!({ "name": format!("{name}: snapshot"), "error": error.to_string() }));
    }
    std::fs::remove_file(path).unwrap();
    let (path, mut mirror) = (folder.path().join("snapshot"), None);
    timed("room for a snapshot", &mut || mirror = Some(bench.optimizer.mirror(&path).unwrap()));
    let mut mirror = mirror.unwrap();
    let how = if mirror.is_locked() { "snapshot into locked memory" } else { "snapshot" };
    for _ in 0..3 {
        timed(how, &mut || bench.optimizer.copy_into(&mut mirror).unwrap());
    }
    print(&format!("{name}: memory after snapshots"), memory_gb(device), "GB");
}

/// Milliseconds by part, with a wait for the device after each.
fn breakdown(bench: &mut Bench, name: &str, device: Device, steps: usize) {
    let mut by_part = vec![Vec::new(); PARTS.len()];
    for _ in 0..steps {
        let batch = bench.batch();
        synchronize(device);
        let (mut last, mut part) = (Instant::now(), 0);
        let _ = bench.step(&batch, &mut || {
            synchronize(device);
            by_part[part].push(last.elapsed().as_secs_f64() * 1e3);
            (last, part) = (Instant::now(), part + 1);
        });
    }
    let norms = (0..steps).map(|_| {
        synchronize(device);
        let start = Instant::now();
        let _ = bench.drafter.parameters().gradient().norm();
        synchronize(device);
        start.elapsed().as_secs_f64() * 1e3
    });
    print(&format!("{name}: gradient's norm, part of the optimizer"), median(norms.collect()), "ms");
    for (part, times) in PARTS.iter().zip(by_part) {
        print(&format!("{name}: {part}"), median(times), "ms");
    }
}
