//! How fast a run will be: the speed of each of its workers, from an earlier run or from the GPUs' data sheets, and who of
//! them limits it.

use std::collections::BTreeMap;

use common::config::{Config, Dtype};
use common::ids::{Rank, Role};

use super::calibration::Measured;
use super::needs::on_gpus;
use super::work::{self, Averages, Work};
use crate::machine::{GpuModel, Gpus};
use crate::plan::Plan;

/// Shares of the data sheet's products and bandwidth that the workers reach, and the least time that a batch takes for each
/// layer, in which the host starts its operations one by one. From docs/benchmarks.md (H200, 2026-11-29 and 30): Qwen3-8B's
/// size gives the first, SmolLM2-135M's the last.
struct Reached {
    products: f64,
    layer_s: f64,
}

const TARGET: Reached = Reached { products: 0.71, layer_s: 0.000_12 };
const DRAFTER: Reached = Reached { products: 0.57, layer_s: 0.005 };
const BANDWIDTH: f64 = 0.87;

/// From this ratio of targets' speed to drafters' on, another split is worth a word.
const UNEQUAL: f64 = 1.3;

/// More GPUs than a box has are not thought of, unless a run has them.
const BOX: u32 = 8;

/// Nor are more than one role may have.
const MOST: u32 = 64;

/// Tokens a second that one worker of each role makes while it waits for nobody.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speeds {
    pub(crate) target: f64,
    pub(crate) drafter: f64,
}

impl Speeds {
    /// On GPUs of one model.
    pub(crate) fn on(model: &GpuModel, plan: &Plan) -> Speeds {
        let rows = Averages::of(plan);
        let draft = &plan.run.draft;
        let depth = draft.target_layer_ids.last().map_or(0, |last| last + 1);
        let of = |role, reached: Reached, layers: usize| {
            speed(model, work::of(role, plan, &rows), &reached, reached.layer_s * layers as f64 / rows.batch)
        };
        Speeds { target: of(Role::Target, TARGET, depth), drafter: of(Role::Drafter, DRAFTER, draft.num_hidden_layers) }
    }

    /// Drafters that one target keeps busy.
    pub(crate) fn ratio(&self) -> f64 {
        self.target / self.drafter
    }

    /// Tokens a second of a run, and the role that limits it: the device with most to do is busy all the time, and those
    /// who share it take turns.
    pub(crate) fn of(&self, layout: &Layout) -> (f64, Role) {
        let [targets, drafters] = layout.totals().map(f64::from);
        let seconds =
            |on: &[u32; 2]| [f64::from(on[0]) / (targets * self.target), f64::from(on[1]) / (drafters * self.drafter)];
        let busiest = layout.devices.values().map(seconds).max_by(|a, b| (a[0] + a[1]).total_cmp(&(b[0] + b[1])));
        let [target, drafter] = busiest.unwrap_or([f64::INFINITY; 2]);
        (1.0 / (target + drafter), if target > drafter { Role::Target } else { Role::Drafter })
    }
}

/// Tokens a second, if a token takes `least` seconds at least.
fn speed(model: &GpuModel, work: Work, reached: &Reached, least: f64) -> f64 {
    let products = work.flops / (model.tflops * 1e12 * reached.products);
    let traffic = work.bytes / (model.gb_per_s * 1e9 * BANDWIDTH);
    1.0 / (products + traffic).max(least)
}

/// Targets and drafters on each device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    devices: BTreeMap<u32, [u32; 2]>,
}

impl Layout {
    /// That of a configuration.
    pub(crate) fn of(config: &Config) -> Layout {
        let mut layout = Layout::default();
        for (place, role) in [Role::Target, Role::Drafter].into_iter().enumerate() {
            for rank in (0..config.run.workers(role)).map(Rank) {
                layout.devices.entry(config.run.device_of(role, rank)).or_default()[place] += 1;
            }
        }
        layout
    }

    /// Targets first, then drafters, on a device each.
    pub(crate) fn apart(targets: u32, drafters: u32) -> Layout {
        let on = |device| if device < targets { [1, 0] } else { [0, 1] };
        Layout { devices: (0..targets + drafters).map(|device| (device, on(device))).collect() }
    }

    /// One more than the highest device number.
    pub(crate) fn num_devices(&self) -> u32 {
        self.devices.last_key_value().map_or(0, |(device, _)| device + 1)
    }

    /// Devices that somebody computes on.
    pub(crate) fn used(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Targets and drafters there are.
    pub(crate) fn totals(&self) -> [u32; 2] {
        self.devices.values().fold([0; 2], |sum, on| [sum[0] + on[0], sum[1] + on[1]])
    }

    /// Whether every worker has its device for itself.
    pub(crate) fn is_apart(&self) -> bool {
        self.devices.values().all(|on| on[0] + on[1] == 1)
    }
}

/// How fast a run will be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Tokens of trained rows a second.
    pub(crate) tokens_per_s: f64,
    /// Who limits it.
    pub(crate) limit: Role,
    pub(crate) speeds: Speeds,
    /// Where these numbers come from.
    pub(crate) source: String,
}

impl Pace {
    /// From an earlier run if there is one, else from the GPUs' data sheet.
    ///
    /// # Errors
    /// Why nobody can tell.
    pub(crate) fn of(plan: &Plan, measured: Option<&Measured>, gpus: Option<&Gpus>) -> Result<Pace, String> {
        let layout = Layout::of(&plan.models.config);
        if let Some(measured) = measured {
            let (tokens_per_s, limit) = measured.of(&layout)?;
            let source = format!("measured in {}", measured.run.display());
            return Ok(Pace { tokens_per_s, limit, speeds: measured.speeds, source });
        }
        let model = model(&plan.models.config, &layout, gpus)?;
        let speeds = Speeds::on(model, plan);
        let (tokens_per_s, limit) = speeds.of(&layout);
        Ok(Pace { tokens_per_s, limit, speeds, source: format!("from the data sheet of {}", model.key) })
    }

    /// The role that waits for the other, and the share of its time that it does.
    pub(crate) fn wait(&self, config: &Config) -> (Role, f64) {
        let role = if self.limit == Role::Target { Role::Drafter } else { Role::Target };
        let speed = if role == Role::Target { self.speeds.target } else { self.speeds.drafter };
        (role, 1.0 - self.tokens_per_s / (speed * f64::from(config.run.workers(role))))
    }

    /// Who keeps up with whom, and what split of `devices` GPUs, or of a few more, would be faster.
    pub(crate) fn split(&self, config: &Config, devices: u32) -> Option<String> {
        let ratio = self.speeds.ratio();
        let feeds = match () {
            () if ratio >= UNEQUAL => format!("one target feeds {ratio:.1} drafters"),
            () if ratio <= 1.0 / UNEQUAL => format!("one drafter takes {:.1} targets", 1.0 / ratio),
            () => return None,
        };
        let enough = (ratio.max(1.0 / ratio).floor() as u32).saturating_add(1).min(BOX);
        let [targets, drafters] = best(&self.speeds, devices.max(enough).min(MOST));
        let (faster, _) = self.speeds.of(&Layout::apart(targets, drafters));
        if faster < 1.1 * self.tokens_per_s {
            return Some(feeds);
        }
        let list = |from: u32, to: u32| (from..to).map(|device| device.to_string()).collect::<Vec<_>>().join(",");
        let flags = format!("--targets {} --drafters {}", list(0, targets), list(targets, targets + drafters));
        let batches = match config.training.batches_per_step {
            batches if batches < drafters => format!(" training.batches_per_step={drafters}"),
            _ => String::new(),
        };
        Some(format!("{feeds}: {flags}{batches} would be {:.1} times as fast", faster / self.tokens_per_s))
    }
}

/// The fastest split of so many devices, one worker on each.
fn best(speeds: &Speeds, devices: u32) -> [u32; 2] {
    let speed = |targets: &u32| speeds.of(&Layout::apart(*targets, devices - targets)).0;
    let targets = (1..devices.max(2)).max_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap_or(1);
    [targets, devices.max(2) - targets]
}

/// The one model of all GPUs of a run, whose speed is known.
fn model(config: &Config, layout: &Layout, gpus: Option<&Gpus>) -> Result<&'static GpuModel, String> {
    const CALIBRATE: &str = "run a few steps (training.max_steps=50) and plan again with --like their run folder";
    let gpus = match gpus {
        Some(gpus) => gpus,
        None if !on_gpus(config.run.device) => return Err(format!("unknown on a processor: {CALIBRATE}")),
        None => return Err(format!("unknown without a look at the GPUs: --gpu names some, or {CALIBRATE}")),
    };
    if config.model.torch_dtype != Dtype::Bfloat16 {
        return Err(format!("unknown in float32: {CALIBRATE}"));
    }
    let names = layout.devices.keys().filter_map(|device| Some(gpus.get(*device)?.name.as_str()));
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    match names.as_slice() {
        [name] => GpuModel::of(name).ok_or_else(|| format!("unknown on {name}: {CALIBRATE}")),
        [] => Err("unknown: these devices are not there".into()),
        several => Err(format!("unknown on GPUs of several models ({}): {CALIBRATE}", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::work::tests::qwen3_8b;

    /// docs/benchmarks.md: 44,500 and 21,700 tokens/s on one H200.
    #[test]
    fn the_measured_speeds_of_the_large_size_come_out() {
        let h200 = GpuModel::named("h200").unwrap();
        let [target, drafter] = qwen3_8b();
        let speeds = [speed(h200, target, &TARGET, 0.0), speed(h200, drafter, &DRAFTER, 0.0)];
        for (found, measured) in speeds.into_iter().zip([44_500.0, 21_700.0]) {
            assert!((found / measured - 1.0_f64).abs() < 0.05, "{found} {measured}");
        }
    }

    #[test]
    fn a_small_token_takes_the_time_that_the_host_needs_to_start_it() {
        let h200 = GpuModel::named("h200").unwrap();
        let nothing = Work { flops: 1.0, bytes: 1.0 };
        assert!((speed(h200, nothing, &DRAFTER, 1e-4) - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn the_device_with_most_to_do_limits_and_who_shares_one_takes_turns() {
        let speeds = Speeds { target: 300.0, drafter: 100.0 };
        let of = |overrides: &[&str]| speeds.of(&Layout::of(&crate::plan::tests::config(overrides)));
        let close = |(found, role): (f64, Role), expected: (f64, Role)| {
            assert!((found - expected.0).abs() < 1e-9 && role == expected.1, "{found} {role} {expected:?}");
        };
        close(of(&["run.targets=[0]", "run.drafters=[1]"]), (100.0, Role::Drafter));
        close(of(&["run.targets=[0]", "run.drafters=[0]"]), (75.0, Role::Drafter));
        close(speeds.of(&Layout::apart(1, 3)), (300.0, Role::Drafter));
        close(speeds.of(&Layout::apart(1, 6)), (300.0, Role::Target));
        assert_eq!((best(&speeds, 4), best(&speeds, 8), best(&speeds, 1)), ([1, 3], [2, 6], [1, 1]));
    }

    #[test]
    fn without_a_gpu_the_default_device_is_a_processor() {
        let config = crate::plan::tests::config(&[]);
        let why = model(&config, &Layout::apart(1, 1), None).unwrap_err();
        assert_eq!(why.starts_with("unknown on a processor"), !on_gpus(config.run.device), "{why}");
    }

    #[test]
    fn another_split_is_named_with_its_flags_if_it_is_faster() {
        let pace = |target, drafter| {
            let speeds = Speeds { target, drafter };
            let (tokens_per_s, limit) = speeds.of(&Layout::apart(1, 1));
            Pace { tokens_per_s, limit, speeds, source: String::new() }
        };
        let config = crate::plan::tests::config(&[]);
        let split = |pace: Pace, devices| pace.split(&config, devices);
        assert_eq!(
            split(pace(200.0, 100.0), 2).as_deref(),
            Some(
                "one target feeds 2.0 drafters: --targets 0 --drafters 1,2 training.batches_per_step=2 would be 2.0 times as fast"
            )
        );
        assert_eq!(split(pace(140.0, 100.0), 2).as_deref(), Some("one target feeds 1.4 drafters"));
        let (waits, share) = pace(200.0, 100.0).wait(&config);
        assert!(waits == Role::Target && (share - 0.5).abs() < 1e-9, "{waits} {share}");
        let targets = split(pace(100.0, 300.0), 4).unwrap();
        assert!(targets.starts_with("one drafter takes 3.0 targets: --targets 0,1,2 --drafters 3 would"), "{targets}");
        assert_eq!(split(pace(110.0, 100.0), 8), None);
        let many = split(pace(140.0, 100.0), 1000).unwrap();
        assert!(many.contains(",63 training"), "no more than one role may have: {many}");
        let far = Layout::of(&crate::plan::tests::config(&["run.targets=[0]", "run.drafters=[1000]"]));
        assert_eq!((far.used(), far.num_devices()), (2, 1001));
    }
}
