//! A forecast as one JSON object, for programs.

use std::collections::BTreeMap;

use common::ids::Role;
use serde::Serialize;

use super::Forecast;
use super::findings::Refusal;
use super::needs::{Needs, Process};
use crate::machine::Link;

/// What `tandem plan --json` prints. docs/operations.md says what each key means.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    refusals: &'a [Refusal],
    #[serde(flatten)]
    run: Option<Run<'a>>,
}

/// Of a run that can be worked out at all.
#[derive(Serialize)]
struct Run<'a> {
    warnings: &'a [String],
    steps: u64,
    batches: u64,
    rows: u64,
    tokens: u64,
    slot_bytes: u64,
    slots: u32,
    queue_bytes: u64,
    shared_memory_bytes: u64,
    snapshot_bytes: u64,
    host_bytes: u64,
    checkpoint_bytes: u64,
    disk_bytes: u64,
    token_store_bytes: u64,
    peak_gpu_bytes: BTreeMap<u32, u64>,
    workers: &'a [Process],
    evaluation: &'a Option<Process>,
    gpus: Vec<Device<'a>>,
    links: Vec<Linked>,
    /// Why nothing is known of GPUs.
    gpus_unknown: Option<&'a str>,
    seconds: Option<f64>,
    tokens_per_s: Option<f64>,
    /// How these were got, or why they are not known.
    seconds_source: &'a str,
    limited_by: Option<Role>,
    target_tokens_per_s: Option<f64>,
    drafter_tokens_per_s: Option<f64>,
    split: Option<String>,
}

/// A GPU of the run.
#[derive(Serialize)]
struct Device<'a> {
    device: u32,
    name: &'a str,
    uuid: Option<&'a str>,
    total_bytes: u64,
    free_bytes: u64,
    needs_bytes: u64,
}

/// What joins two GPUs of the run.
#[derive(Serialize)]
struct Linked {
    devices: [u32; 2],
    link: Link,
}

impl<'a> Report<'a> {
    /// Of a configuration, model folder or data that are refused before anything is worked out.
    pub(crate) fn refused(refusals: &'a [Refusal]) -> Report<'a> {
        Report { refusals, run: None }
    }

    /// Of a run.
    pub(crate) fn of(forecast: &'a Forecast) -> Report<'a> {
        Report { refusals: &forecast.findings.refusals, run: Some(Run::of(forecast)) }
    }

    /// On one line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has only values that JSON can hold") + "\n"
    }
}

impl<'a> Run<'a> {
    fn of(forecast: &'a Forecast) -> Run<'a> {
        let Forecast { plan, needs, findings, pace, .. } = forecast;
        let (queue, whole) = (plan.queue(), plan.whole());
        let (known, why) = match pace {
            Ok(pace) => (Some(pace), pace.source.as_str()),
            Err(why) => (None, why.as_str()),
        };
        Run {
            warnings: &findings.warnings,
            steps: plan.run.total_steps,
            batches: plan.run.total_batches,
            rows: whole.rows,
            tokens: whole.tokens,
            slot_bytes: queue.slot_bytes,
            slots: queue.capacity,
            queue_bytes: needs.queue,
            shared_memory_bytes: needs.shared_memory,
            snapshot_bytes: needs.snapshots,
            host_bytes: forecast.host_bytes(),
            checkpoint_bytes: needs.checkpoint,
            disk_bytes: needs.disk(),
            token_store_bytes: needs.token_store,
            peak_gpu_bytes: needs.gpus(),
            workers: &needs.workers,
            evaluation: &needs.evaluation,
            gpus: devices(forecast),
            links: links(forecast, needs),
            gpus_unknown: forecast.machine.gpus.as_ref().err().map(String::as_str),
            seconds: forecast.seconds(),
            tokens_per_s: known.map(|pace| pace.tokens_per_s),
            seconds_source: why,
            limited_by: known.map(|pace| pace.limit),
            target_tokens_per_s: known.map(|pace| pace.speeds.target),
            drafter_tokens_per_s: known.map(|pace| pace.speeds.drafter),
            split: forecast.split(),
        }
    }
}

fn devices<'a>(forecast: &'a Forecast) -> Vec<Device<'a>> {
    let Ok(gpus) = &forecast.machine.gpus else { return Vec::new() };
    let device = |(device, needs_bytes)| {
        let gpu = gpus.get(device)?;
        let (name, uuid) = (gpu.name.as_str(), gpu.uuid.as_deref());
        Some(Device { device, name, uuid, total_bytes: gpu.total, free_bytes: gpu.free, needs_bytes })
    };
    forecast.needs.gpus().into_iter().filter_map(device).collect()
}

fn links(forecast: &Forecast, needs: &Needs) -> Vec<Linked> {
    let Ok(gpus) = &forecast.machine.gpus else { return Vec::new() };
    let devices: Vec<u32> = needs.gpus().into_keys().collect();
    let pairs = devices.iter().enumerate().flat_map(|(place, a)| devices[place + 1..].iter().map(|b| [*a, *b]));
    pairs.filter_map(|[a, b]| Some(Linked { devices: [a, b], link: gpus.link(a, b)? })).collect()
}
