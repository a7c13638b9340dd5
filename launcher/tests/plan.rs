//! `tandem plan` as a program: its page, its JSON, and that what it refuses is what a run refuses.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A place for run folder, token store and models.
struct Stage(TempDir);

impl Stage {
    fn new() -> Stage {
        Stage(tempfile::tempdir().unwrap())
    }

    fn plan(&self, arguments: &[&str]) -> Output {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut tandem = Command::new(env!("CARGO_BIN_EXE_tandem"));
        tandem.current_dir(root).args(["plan", "examples/tiny/train.toml"]);
        tandem.arg(format!("--run-dir={}", self.0.path().join("run").display()));
        tandem.arg(format!("data.cache_dir={}", self.0.path().join("store").display()));
        tandem.args(arguments).output().unwrap()
    }

    /// The one object on stdout, and the exit code.
    fn json(&self, arguments: &[&str]) -> (Value, Option<i32>) {
        let output = self.plan(&[&["--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let object = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (object, output.status.code())
    }

    /// A model folder of Qwen3-8B's shape, without weights, with the tiny model's tokenizer.
    fn qwen3_8b(&self) -> String {
        let folder = self.0.path().join("qwen3-8b");
        fs::create_dir_all(&folder).unwrap();
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny/target");
        for entry in fs::read_dir(tiny).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "safetensors") {
                fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
            }
        }
        let config = json!({"architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "vocab_size": 151_936,
            "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false,
            "max_position_embeddings": 40_960, "bos_token_id": 0, "eos_token_id": 2});
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        format!("model.target_model_path={}", folder.display())
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn hints(report: &Value) -> Vec<&str> {
    report["refusals"].as_array().unwrap().iter().map(|refusal| refusal["hint"].as_str().unwrap()).collect()
}

/// Bytes of the parts of a process whose names hold one of these words.
fn parts(process: &Value, words: &[&str]) -> u64 {
    let parts = process["host"].as_array().unwrap().iter();
    let named = parts.filter(|part| words.iter().any(|word| part["what"].as_str().unwrap().contains(word)));
    named.map(|part| part["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn on_a_processor_everything_is_told_and_nothing_guessed() {
    let stage = Stage::new();
    let (report, code) = stage.json(&[]);
    assert_eq!((code, &report["refusals"]), (Some(0), &json!([])), "{report}");
    let counted = ["steps", "batches", "rows", "tokens", "slots"].map(|key| report[key].as_u64().unwrap());
    assert_eq!((counted[0], counted[1], counted[4]), (800, 800, 8));
    assert!(counted[2] > 8000 && counted[3] > 700_000, "{report}");
    // 1,024 tokens of 3 taps of 128 float32 numbers.
    assert_eq!(report["slot_bytes"], 1024 * 3 * 128 * 4);
    assert!(number(&report["queue_bytes"]) > 8.0 * number(&report["slot_bytes"]));
    assert_eq!(report["queue_bytes"], report["shared_memory_bytes"], "the slots lie in /dev/shm");
    assert_eq!((&report["peak_gpu_bytes"], &report["gpus"]), (&json!({}), &json!([])));
    assert_eq!((&report["seconds"], &report["limited_by"]), (&Value::Null, &Value::Null), "no speed is made up");
    assert!(report["seconds_source"].as_str().unwrap().contains("--like"), "{report}");
    let sum: f64 = report["workers"].as_array().unwrap().iter().map(|worker| parts(worker, &[""]) as f64).sum();
    let shared = number(&report["shared_memory_bytes"]) + number(&report["snapshot_bytes"]);
    assert_eq!(number(&report["host_bytes"]), sum + shared);
    assert!(!stage.0.path().join("run").exists(), "a plan makes no run folder");
}

/// The tiny target's own file holds all of it in float32, after a header.
#[test]
fn the_evaluations_target_is_as_large_as_its_file() {
    let (report, _) = Stage::new().json(&[]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny/target/model.safetensors");
    let header: u64 = u64::from_le_bytes(fs::read(&path).unwrap()[..8].try_into().unwrap());
    let bytes = fs::metadata(&path).unwrap().len() - 8 - header;
    let text = fs::read(&path).unwrap();
    let wide = if String::from_utf8_lossy(&text[8..8 + header as usize]).contains("BF16") { 2 } else { 1 };
    let expected = wide * bytes - 4 * 128;
    assert_eq!(parts(&report["evaluation"], &["embedding", "layers"]), expected, "all but the last norm");
}

#[test]
fn a_laptop_says_what_fits_on_two_gpus_of_another_machine() {
    let stage = Stage::new();
    let model = stage.qwen3_8b();
    let keys = ["model.torch_dtype=bfloat16", "drafter.num_target_layer_ids=5", "drafter.num_hidden_layers=5", &model];
    let plan = |more: &[&str]| stage.json(&[&keys[..], &["evaluation.lossless_check=false"], more].concat());

    let (report, code) = plan(&["--gpu=h200", "--pairs=0:1"]);
    assert_eq!((code, &report["refusals"]), (Some(0), &json!([])), "{report}");
    let peaks = ["0", "1"].map(|device| number(&report["peak_gpu_bytes"][device]));
    // Decoding takes 8.2 B weights of the target, and 1.05 B of the drafter with their gradients; training 18 bytes of each of
    // these, and both vocabularies.
    assert!(peaks[0] > 22.5e9 && peaks[0] < 24e9 && peaks[1] > 21.4e9 && peaks[1] < 30e9, "{peaks:?}");
    let gpus = report["gpus"].as_array().unwrap();
    assert_eq!((gpus.len(), &gpus[1]["needs_bytes"]), (2, &report["peak_gpu_bytes"]["1"]));
    let parts: f64 = report["workers"][1]["gpu"].as_array().unwrap().iter().map(|part| number(&part["bytes"])).sum();
    assert_eq!(parts, peaks[1]);
    assert_eq!(report["limited_by"], "drafter");
    assert!(number(&report["seconds"]) > 0.0 && report["seconds_source"].as_str().unwrap().contains("h200"));

    let page = stage.plan(&[&keys[..], &["--gpu=h200", "--pairs=0:1"]].concat()).stdout;
    let page = String::from_utf8(page).unwrap();
    for line in [
        "Run",
        "Processes, at their peak",
        "GPUs",
        "Machine",
        "Time",
        "  target 0      GPU 0, ",
        "  drafter 0     GPU 1, ",
    ] {
        assert!(page.lines().any(|found| found.starts_with(line)), "no '{line}' in {page}");
    }
    assert!(page.contains("tokens/s, from the data sheet of h200") && page.contains("targets wait"), "{page}");

    let (report, code) = plan(&["--gpu=l4", "--pairs=0:1"]);
    assert_eq!((code, report["refusals"].as_array().unwrap().len()), (Some(1), 1), "{report}");
    let (needs, has) = (&report["refusals"][0]["needs"], &report["refusals"][0]["has"]);
    assert!(number(needs) > number(has) && *needs == report["peak_gpu_bytes"]["1"], "{report}");
    assert!(hints(&report)[0].contains("training.num_anchors"), "{report}");
    let (report, code) = plan(&["--gpu=rtx-3090", "--pairs=0:0"]);
    assert_eq!((code, report["refusals"].as_array().unwrap().len()), (Some(1), 1), "{report}");
    assert!(hints(&report)[0].contains("a GPU of its own"), "{report}");
}

#[test]
fn every_reason_against_a_run_is_listed_and_the_first_is_the_error() {
    let stage = Stage::new();
    let much = ["queue.capacity=4096", "data.batch_tokens=4000000"];
    let (report, code) = stage.json(&much);
    let refusals = report["refusals"].as_array().unwrap();
    let what: Vec<&str> = refusals.iter().map(|refusal| refusal["what"].as_str().unwrap()).collect();
    assert_eq!((code, what.len()), (Some(1), 2), "{what:?}");
    assert!(what[0].contains("/dev/shm") && what[1].contains("memory"), "{what:?}");
    assert!(refusals.iter().all(|refusal| number(&refusal["needs"]) > number(&refusal["has"])), "{refusals:?}");
    let output = stage.plan(&much);
    let (page, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // What is free comes last, and changes from one moment to the next.
    let words: Vec<&str> = what.iter().map(|what| what.rsplit_once(", ").unwrap().0).collect();
    assert!(words.iter().all(|words| page.contains(words)), "{page}");
    assert!(stderr.contains(&format!("tandem: {}", words[0])), "{stderr}");
    assert!(stderr.ends_with(&format!("hint: {}\n", hints(&report)[0])), "{stderr}");
}

#[test]
fn input_that_cannot_be_worked_out_is_one_refusal() {
    let stage = Stage::new();
    for (key, word) in [
        ("queue.min_ready=99", "queue.min_ready"),
        ("model.target_model_path=no/model", "no/model"),
        ("evaluation.eval_data_path=no/chats.jsonl", "no/chats.jsonl"),
    ] {
        let (report, code) = stage.json(&[key]);
        let refusal = &report["refusals"][0];
        assert!(refusal["what"].as_str().unwrap().contains(word), "{report}");
        assert_eq!((code, &refusal["needs"]), (Some(1), &Value::Null));
        assert!(report["steps"].is_null() && !refusal["hint"].as_str().unwrap().is_empty(), "{report}");
    }
    let (report, code) = stage.json(&["--gpu=h200", "run.device=cpu"]);
    assert_eq!((code, hints(&report)), (Some(1), vec!["leave one of the two out"]), "{report}");
    let (report, code) = stage.json(&[&format!("--like={}", stage.0.path().display())]);
    assert_eq!((code, report["refusals"].as_array().unwrap().len()), (Some(1), 1), "{report}");
}

#[test]
fn a_run_folder_that_cannot_be_made_is_refused_and_is_no_full_disk() {
    let stage = Stage::new();
    for place in ["/proc/x", "/dev/null/x", "README.md", "docs"] {
        let (report, code) = stage.json(&[&format!("run.output_dir={place}")]);
        let refusals = report["refusals"].as_array().unwrap();
        let what = refusals[0]["what"].as_str().unwrap();
        assert_eq!((code, refusals.len(), &refusals[0]["needs"]), (Some(1), 1, &Value::Null), "{report}");
        assert!(what.starts_with(&format!("{place}: ")) && !what.contains("room"), "{what}");
        assert_eq!(hints(&report), ["choose another run.output_dir"]);
    }
}

/// The keys that docs/operations.md describes are those that are printed.
#[test]
fn the_documented_keys_are_the_printed_ones() {
    let (report, _) = Stage::new().json(&[]);
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| key of `--json` |").unwrap();
    let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| "));
    let mut documented: Vec<&str> =
        rows.flat_map(|row| row.split(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2)).collect();
    documented.sort_unstable();
    let mut printed: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    printed.sort_unstable();
    assert_eq!(documented, printed);
}
