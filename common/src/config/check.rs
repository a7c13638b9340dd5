//! Every check that needs the configuration alone.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;

use super::{ArenaChoice, Config, ConfigError, Device, LayerType};
use crate::ids::Role;

/// More than any machine has: every number below it can be counted up to.
const DEVICES: u32 = 1024;

/// Where each `section.key` was said.
pub(super) struct Said<'a> {
    pub(super) places: BTreeMap<String, String>,
    /// The file that could have said the others.
    pub(super) file: &'a str,
}

impl Said<'_> {
    fn that(&self, holds: bool, key: &'static str, found: impl Display, allowed: &str) -> Result<(), ConfigError> {
        if holds {
            return Ok(());
        }
        let (origin, found) = match self.places.get(key) {
            Some(place) => (place.clone(), found.to_string()),
            None => (self.file.to_owned(), format!("{found} (the default)")),
        };
        Err(ConfigError::Value { origin, key, found, allowed: allowed.to_owned() })
    }
}

pub(super) fn check(config: &Config, said: &Said) -> Result<(), ConfigError> {
    run(config, said)?;
    drafter(config, said)?;
    data(config, said)?;
    training(config, said)?;
    evaluation(config, said)?;
    telemetry(config, said)?;
    queue(config, said)
}

fn run(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let run = &config.run;
    check.that((1..=64).contains(&run.pairs), "run.pairs", run.pairs, "1 to 64")?;
    for (key, devices) in [("run.targets", &run.targets), ("run.drafters", &run.drafters)] {
        let Some(devices) = devices else { continue };
        let different = HashSet::<&u32>::from_iter(devices).len();
        let fits = (1..=64).contains(&devices.len()) && different == devices.len();
        let fits = fits && devices.iter().all(|device| *device < DEVICES);
        check.that(fits, key, format!("{devices:?}"), "1 to 64 device numbers from 0 to 1023, each once")?;
    }
    let on_cpu = run.device == Device::Cpu && matches!(run.arena, ArenaChoice::Fd | ArenaChoice::Cuipc);
    check.that(
        !on_cpu,
        "run.arena",
        format!("{:?}", run.arena).to_lowercase(),
        "auto or host where run.device is cpu",
    )?;
    check.that(run.restart_window_s >= 1, "run.restart_window_s", run.restart_window_s, "1 or more seconds")?;
    check.that(run.wait_timeout_s >= 1, "run.wait_timeout_s", run.wait_timeout_s, "1 or more seconds")
}

fn drafter(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let drafter = &config.drafter;
    check.that((2..=64).contains(&drafter.block_size), "drafter.block_size", drafter.block_size, "2 to 64")?;
    let layers = drafter.num_hidden_layers;
    check.that((1..=64).contains(&layers), "drafter.num_hidden_layers", layers, "1 to 64")?;
    let taps = drafter.num_target_layer_ids;
    check.that((1..=64).contains(&taps), "drafter.num_target_layer_ids", taps, "1 to 64")?;
    if let Some(ids) = &drafter.target_layer_ids {
        let ascending = !ids.is_empty() && ids.windows(2).all(|pair| pair[0] < pair[1]);
        check.that(ascending, "drafter.target_layer_ids", format!("{ids:?}"), "layer numbers, ascending")?;
    }
    if let Some(types) = &drafter.layer_types {
        let found = format!("{} entries", types.len());
        check.that(types.len() == layers as usize, "drafter.layer_types", found, "one entry per draft layer")?;
        let sliding = types.contains(&LayerType::SlidingAttention);
        let window = drafter.sliding_window;
        let fits = !sliding || window.is_some_and(|window| window >= 1);
        check.that(fits, "drafter.sliding_window", format!("{window:?}"), "1 or more, as a layer slides")?;
    }
    Ok(())
}

fn data(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let data = &config.data;
    let paths = data.train_data_path.0.len();
    check.that(paths >= 1, "data.train_data_path", "an empty list", "a path, or a list of at least one")?;
    let open = data.text_markers.as_ref().is_none_or(|markers| markers.iter().all(|marker| !marker.is_empty()));
    check.that(open, "data.text_markers", format!("{:?}", data.text_markers), "two texts, neither of them empty")?;
    let share = data.held_out_share;
    check.that((0.0..1.0).contains(&share), "data.held_out_share", share, "a share from 0 up to below 1")?;
    check.that(data.max_length >= 2, "data.max_length", data.max_length, "2 or more tokens")?;
    let fits = data.batch_tokens >= data.max_length;
    check.that(
        fits,
        "data.batch_tokens",
        data.batch_tokens,
        &format!("{} or more, as data.max_length", data.max_length),
    )?;
    let bounds = &data.bucket_bounds;
    let ascending = bounds.windows(2).all(|pair| pair[0] < pair[1]) && bounds.first() != Some(&0);
    check.that(ascending, "data.bucket_bounds", format!("{bounds:?}"), "row lengths above 0, ascending")?;
    check.that(bounds.len() <= 16, "data.bucket_bounds", format!("{} bounds", bounds.len()), "16 bounds at most")?;
    check.that((0.0..=1.0).contains(&data.max_dropped), "data.max_dropped", data.max_dropped, "a share from 0 to 1")
}

fn training(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let training = &config.training;
    check.that(training.num_epochs >= 1, "training.num_epochs", training.num_epochs, "1 or more")?;
    check.that(training.max_steps != Some(0), "training.max_steps", 0, "1 or more")?;
    let batches = training.batches_per_step;
    let drafters = config.run.workers(Role::Drafter);
    let allowed = format!("{drafters} or more, one for each drafter, or the others would have nothing to do");
    check.that(batches >= drafters, "training.batches_per_step", batches, &allowed)?;
    let rate = training.learning_rate;
    check.that(rate > 0.0 && rate.is_finite(), "training.learning_rate", rate, "above 0")?;
    let least = training.min_learning_rate;
    check.that(
        (0.0..=rate).contains(&least),
        "training.min_learning_rate",
        least,
        &format!("0 to {rate}, as training.learning_rate"),
    )?;
    let warmup = training.warmup_ratio;
    check.that((0.0..1.0).contains(&warmup), "training.warmup_ratio", warmup, "0 up to below 1")?;
    let norm = training.max_grad_norm;
    check.that(norm > 0.0, "training.max_grad_norm", norm, "above 0")?;
    let decay = training.weight_decay;
    check.that(decay >= 0.0 && decay.is_finite(), "training.weight_decay", decay, "0 or more")?;
    check.that(training.num_anchors >= 1, "training.num_anchors", training.num_anchors, "1 or more")?;
    let gamma = training.loss_decay_gamma;
    check.that(
        gamma > 0.0,
        "training.loss_decay_gamma",
        gamma,
        "above 0 (published: 7 for block 16, 4 for block 8)",
    )?;
    let alpha = training.dpace_alpha;
    check.that((0.0..=1.0).contains(&alpha), "training.dpace_alpha", alpha, "0 to 1 (published: 0.5)")?;
    check.that(training.max_checkpoints >= 1, "training.max_checkpoints", training.max_checkpoints, "1 or more")?;
    check.that(training.log_interval >= 1, "training.log_interval", training.log_interval, "1 or more")
}

fn evaluation(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let evaluation = &config.evaluation;
    check.that(evaluation.num_prompts >= 1, "evaluation.num_prompts", evaluation.num_prompts, "1 or more")?;
    let tokens = evaluation.max_new_tokens;
    check.that(tokens >= 2, "evaluation.max_new_tokens", tokens, "2 or more, as the first comes with the prompt")
}

fn telemetry(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let interval = config.telemetry.sample_interval_s;
    let fits = interval == 0.0 || (0.1..=3600.0).contains(&interval);
    check.that(fits, "telemetry.sample_interval_s", interval, "0, or 0.1 to 3600 seconds")
}

fn queue(config: &Config, check: &Said) -> Result<(), ConfigError> {
    let queue = &config.queue;
    check.that((1..=4096).contains(&queue.capacity), "queue.capacity", queue.capacity, "1 to 4096 slots")?;
    let gate = (1..=queue.capacity).contains(&queue.min_ready);
    let allowed = format!("1 to {}, as queue.capacity, or the gate would never open", queue.capacity);
    check.that(gate, "queue.min_ready", queue.min_ready, &allowed)?;
    check.that(queue.max_age_s > 0.0, "queue.max_age_s", queue.max_age_s, "above 0")
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError, DataPaths};

    const MINIMAL: &str = "[run]\noutput_dir='o'\n[model]\ntarget_model_path='m'\n[data]\ntrain_data_path='d'\n";

    fn load(extra: &str, overrides: &[&str]) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.toml");
        std::fs::write(&path, format!("{MINIMAL}{extra}")).unwrap();
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Config::load(&path, &overrides)
    }

    #[test]
    fn a_minimal_file_gets_the_published_defaults() {
        let config = load("", &[]).unwrap();
        assert_eq!((config.drafter.block_size, config.training.num_anchors, config.data.max_length), (16, 512, 3072));
        assert_eq!((config.training.learning_rate, config.training.warmup_ratio), (6e-4, 0.04));
    }

    #[test]
    fn gpu_memory_is_for_workers_on_gpus() {
        let refused = |arena: &str| load("", &["run.device=cpu", arena]).unwrap_err().to_string();
        assert!(refused("run.arena=fd").contains("run.arena"), "{}", refused("run.arena=fd"));
        assert!(load("", &["run.device=cpu", "run.arena=host"]).is_ok());
        assert!(load("", &["run.device=cuda", "run.arena=cuipc"]).is_ok());
    }

    #[test]
    fn overrides_reach_their_key_and_keep_their_type() {
        let overrides =
            ["training.max_steps=20", "data.train_data_path=other/file.jsonl", "drafter.target_layer_ids=[1, 3]"];
        let config = load("", &overrides).unwrap();
        assert_eq!(config.training.max_steps, Some(20));
        assert_eq!(config.data.train_data_path, DataPaths(vec!["other/file.jsonl".into()]));
        assert_eq!(config.drafter.target_layer_ids, Some(vec![1, 3]));
    }

    #[test]
    fn refusals_name_file_key_found_and_allowed() {
        let unknown = load("batch_size = 3\n", &[]).unwrap_err().to_string();
        assert!(unknown.contains("train.toml") && unknown.contains("batch_size") && unknown.contains("expected"));
        let value = load("", &["queue.min_ready=9", "queue.capacity=4"]).unwrap_err().to_string();
        assert!(value.contains("queue.min_ready: found 9, allowed: 1 to 4, as queue.capacity"), "{value}");
        let kind = load("", &["training.num_anchors=many"]).unwrap_err().to_string();
        assert!(kind.contains("invalid type: string"), "{kind}");
        let shape = load("", &["training=3"]).unwrap_err().to_string();
        assert!(shape.contains("not section.key=value"), "{shape}");
    }

    #[test]
    fn refusals_name_the_line_or_the_override_at_fault_and_no_other() {
        let refused = |extra: &str, overrides: &[&str]| load(extra, overrides).unwrap_err().to_string();
        let good = "queue.capacity=4";
        for (extra, line) in [("num_epochs = 2\nseed = true", 9), ("num_epochs = 0", 8), ("seed = 1\nlr = 1", 9)] {
            let text = refused(&format!("[training]\n{extra}\n"), &[good]);
            assert!(text.contains(&format!("train.toml:{line}: ")) && !text.contains(good), "{text}");
        }
        let kind = refused("[queue]\ncapacity = 'a'  # slots\n", &[]);
        assert!(kind.contains("train.toml:8: `capacity = 'a'  # slots`: invalid type: string"), "{kind}");
        let missing = refused("", &["run.output_dir="]);
        assert!(missing.contains("train.toml:1: `[run]`: missing field `output_dir`"), "{missing}");
        for wrong in ["queue.min_ready=9", "queue.min_ready=many", "queue.min_redy=1", "no.such=1"] {
            let text = refused("", &[good, wrong, "training.seed=1"]);
            assert!(text.starts_with(&format!("command line: {wrong}: ")) && !text.contains(good), "{text}");
        }
        let text = refused("", &["queue.capacity=1"]);
        assert!(text.contains("train.toml: queue.min_ready: found 2 (the default), allowed: 1 to 1, as"), "{text}");
    }

    #[test]
    fn an_empty_value_takes_the_key_out() {
        let config = load("[training]\nmax_steps = 3\n", &["training.max_steps="]).unwrap();
        assert_eq!(config.training.max_steps, None);
        let missing = load("", &["run.output_dir="]).unwrap_err().to_string();
        assert!(missing.contains("missing field `output_dir`"), "{missing}");
    }

    #[test]
    fn a_device_twice_in_one_role_or_out_of_reach_is_refused_and_both_roles_may_share_one() {
        load("", &["run.targets=[0, 1]", "run.drafters=[0]"]).unwrap();
        for list in ["[1, 1]", "[]", "[1024]", "[4294967295]"] {
            let error = load("", &[&format!("run.targets={list}")]).unwrap_err().to_string();
            let allowed = "1 to 64 device numbers from 0 to 1023, each once";
            assert!(error.ends_with(&format!("found {list}, allowed: {allowed}")), "{error}");
        }
    }

    #[test]
    fn data_come_from_one_path_or_several() {
        let several = load("", &["data.train_data_path=[\"a.jsonl\", \"more\"]"]).unwrap().data.train_data_path;
        assert_eq!((several.to_string(), several.0.len()), ("a.jsonl, more".to_owned(), 2));
        assert!(load("", &["data.train_data_path=[]"]).unwrap_err().to_string().contains("found an empty list"));
        let number = load("", &["data.train_data_path=3"]).unwrap_err().to_string();
        assert!(number.contains("expected a path or a list of paths"), "{number}");
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let text =
            "template_variables = { enable_thinking = false, level = 2 }\ntext_markers = [\"<a>\\n\", \"</a>\"]\n";
        let several = "data.train_data_path=[\"a\", \"b\"]";
        let config = load(text, &["training.max_steps=7", "drafter.mask_token_id=3", several]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        config.write(folder.path()).unwrap();
        assert_eq!(Config::of_run(folder.path()).unwrap(), config);
    }
}
