//! The speed of an earlier run of the same shapes, from what its folder holds.

use std::path::{Path, PathBuf};

use common::arena::ArenaKind;
use common::config::{ArenaChoice, Config, Device};
use common::ids::Role;
use common::run_plan::RunPlan;

use super::needs::on_gpus;
use super::pace::{Layout, Speeds};
use crate::history::{History, Steps};
use crate::plan::Plan;

/// What an earlier run says of speed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Its folder.
    pub(crate) run: PathBuf,
    pub(crate) speeds: Speeds,
    layout: Layout,
    tokens_per_s: f64,
    limit: Role,
}

/// A run that says nothing of this one's speed.
#[derive(Debug, thiserror::Error)]
#[error("{run}: {why}")]
pub(crate) struct NotAlike {
    run: PathBuf,
    why: String,
}

impl Measured {
    /// Reads a run folder.
    ///
    /// # Errors
    /// It is none, or that of a run of other shapes, or of one that has not come far enough.
    pub(crate) fn read(run: &Path, plan: &Plan) -> Result<Measured, NotAlike> {
        let not_alike = |why: String| NotAlike { run: run.to_owned(), why };
        let config = Config::of_run(run).map_err(|error| not_alike(error.to_string()))?;
        let earlier = RunPlan::read(run).map_err(|error| not_alike(error.to_string()))?;
        if let Some(what) = difference((&config, &earlier), plan) {
            return Err(not_alike(format!("{what} was another there")));
        }
        let history = History::read(run).map_err(|error| not_alike(error.to_string()))?;
        let samples = history.samples.ok_or_else(|| not_alike("it has no telemetry.jsonl".to_owned()))?;
        let verdict = samples.verdict().ok_or_else(|| not_alike("no batch was trained there".to_owned()))?;
        let tokens_per_s = steady(&history.steps).ok_or_else(|| not_alike("no step was logged there".to_owned()))?;
        let figure = |name: &str| verdict.figures.get(name).copied().unwrap_or(0.0);
        // A target goes on to wait for a slot while its GPU is yet at work.
        let busy = |wait, gpu| f64::max(1.0 - figure(wait), figure(gpu));
        let busy = [busy("targets_wait", "targets_gpu_busy"), busy("drafters_wait", "drafters_gpu_busy")];
        Ok(Measured::new(run, Layout::of(&config), tokens_per_s, busy))
    }

    /// From a run's speed and the shares of their time that targets and drafters were busy: they would be as fast as that
    /// all the time if they never waited for each other.
    fn new(run: &Path, layout: Layout, tokens_per_s: f64, busy: [f64; 2]) -> Measured {
        let [targets, drafters] = layout.totals().map(f64::from);
        let [target_busy, drafter_busy] = busy.map(|share| share.max(0.01));
        let speeds =
            Speeds { target: tokens_per_s / targets / target_busy, drafter: tokens_per_s / drafters / drafter_busy };
        let limit = if target_busy < drafter_busy { Role::Drafter } else { Role::Target };
        Measured { run: run.to_owned(), speeds, layout, tokens_per_s, limit }
    }

    /// Tokens a second of a run with this layout, and who limits it.
    ///
    /// # Errors
    /// Workers would share devices in another way than there.
    pub(super) fn of(&self, layout: &Layout) -> Result<(f64, Role), String> {
        match () {
            () if *layout == self.layout => Ok((self.tokens_per_s, self.limit)),
            () if layout.is_apart() && self.layout.is_apart() => Ok(self.speeds.of(layout)),
            () => Err(format!("unknown: the run in {} had its workers on other devices", self.run.display())),
        }
    }
}

/// What decides speed and differs.
fn difference((config, run): (&Config, &RunPlan), plan: &Plan) -> Option<&'static str> {
    let now = &plan.models.config;
    let same = [
        ("the target's shape", run.target == plan.run.target),
        ("the drafter's shape", run.draft == plan.run.draft),
        ("model.torch_dtype", config.model.torch_dtype == now.model.torch_dtype),
        ("run.device", were_gpus(config, run.arena) == on_gpus(now.run.device)),
        ("run.arena", run.arena == plan.run.arena),
        ("data.batch_tokens", config.data.batch_tokens == now.data.batch_tokens),
        ("data.max_length", config.data.max_length == now.data.max_length),
        ("training.num_anchors", config.training.num_anchors == now.training.num_anchors),
    ];
    same.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
}

/// Whether the workers of an earlier run computed on GPUs: `auto` is what it came to on its machine, which the arena tells
/// unless it was chosen.
fn were_gpus(config: &Config, arena: ArenaKind) -> bool {
    match (config.run.device, config.run.arena) {
        (Device::Auto, ArenaChoice::Auto) => arena != ArenaKind::Host,
        (device, _) => on_gpus(device),
    }
}

/// The median over the last half of the steps: the first ones start everything.
fn steady(steps: &Steps) -> Option<f64> {
    let mut speeds: Vec<f64> = steps.0.iter().filter_map(|record| record.tokens_per_s).collect();
    speeds.drain(..speeds.len() / 2);
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::StepRecord;

    #[test]
    fn the_median_of_the_last_half_counts() {
        let steps = |speeds: &[f64]| {
            let record = |speed: &f64| StepRecord { tokens_per_s: Some(*speed), ..StepRecord::default() };
            steady(&Steps(speeds.iter().map(record).collect()))
        };
        assert_eq!(steps(&[1.0, 2.0, 90.0, 100.0, 110.0]), Some(100.0));
        assert_eq!((steps(&[7.0]), steps(&[])), (Some(7.0), None));
    }

    #[test]
    fn an_earlier_run_was_on_what_its_device_came_to() {
        let were = |keys: &[&str], arena| were_gpus(&crate::plan::tests::config(keys), arena);
        assert!(were(&[], ArenaKind::Fd) && !were(&[], ArenaKind::Host), "auto");
        assert!(
            were(&["run.device=cuda", "run.arena=host"], ArenaKind::Host)
                && !were(&["run.device=cpu"], ArenaKind::Host)
        );
    }

    #[test]
    fn waits_tell_what_other_splits_would_do_and_shared_devices_nothing() {
        // A pair whose target waited half of its time.
        let measured = Measured::new(Path::new("r"), Layout::apart(1, 1), 100.0, [0.5, 1.0]);
        assert_eq!(measured.speeds, Speeds { target: 200.0, drafter: 100.0 });
        assert_eq!(measured.of(&Layout::apart(1, 1)), Ok((100.0, Role::Drafter)));
        let (two_drafters, _) = measured.of(&Layout::apart(1, 2)).unwrap();
        assert!((two_drafters - 200.0).abs() < 1e-9, "{two_drafters}");
        let shared = Layout::of(&crate::plan::tests::config(&["run.targets=[0]", "run.drafters=[0]"]));
        assert!(measured.of(&shared).is_err());
        let measured = Measured { layout: shared.clone(), ..measured };
        assert_eq!(measured.of(&shared), Ok((100.0, Role::Drafter)));
        assert!(measured.of(&Layout::apart(1, 1)).is_err());
    }
}
