//! GPUs as `tandem plan` and `tandem run` see them, over a management library of two that are not there.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

/// A machine with two H200, and a tandem whose workers nobody will start.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml.c");
        let library = folder.path().join("libnvidia-ml.so.1");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status();
        assert!(built.is_ok_and(|status| status.success()), "a C compiler is needed, as for the programs");
        // By another process: what this one has open for writing, a child that another thread is just starting has open too.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tandem")).arg(folder.path()).status();
        assert!(copied.unwrap().success());
        for name in ["target-worker", "drafter-worker"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        Machine(folder)
    }

    fn tandem(&self, command: &str, arguments: &[&str], visible: Option<&str>) -> Output {
        let mut tandem = Command::new(self.0.path().join("tandem"));
        tandem.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        tandem.args([command, "examples/tiny/train.toml", "run.device=cuda"]);
        tandem.arg(format!("--run-dir={}", self.0.path().join("run").display()));
        tandem.arg(format!("data.cache_dir={}", self.0.path().join("store").display())).args(arguments);
        tandem.env("NVML_TAKEN", self.taken());
        tandem.env("LD_LIBRARY_PATH", self.0.path()).env_remove("CUDA_DEVICE_ORDER").env_remove("CUDA_VISIBLE_DEVICES");
        tandem.envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible))).output().unwrap()
    }

    /// While this file is there all memory is taken; it is gone after the first look.
    fn taken(&self) -> PathBuf {
        self.0.path().join("taken")
    }

    fn plan(&self, arguments: &[&str], visible: Option<&str>) -> Value {
        let output = self.tandem("plan", &[&["--json"], arguments].concat(), visible);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }
}

fn uuids(report: &Value) -> Vec<&str> {
    report["gpus"].as_array().unwrap().iter().map(|gpu| gpu["uuid"].as_str().unwrap()).collect()
}

#[test]
fn each_worker_gets_the_gpu_that_cuda_will_give_it() {
    let machine = Machine::new();
    let pair = machine.plan(&["--pairs=0:1"], None);
    assert_eq!((uuids(&pair), &pair["refusals"], &pair["gpus_unknown"]), (vec![B, A], &json!([]), &Value::Null));
    assert_eq!(pair["links"], json!([{"devices": [0, 1], "link": "nvlink"}]));
    let first = &pair["gpus"][0];
    assert_eq!((&first["name"], &first["total_bytes"]), (&json!("NVIDIA H200"), &json!(140_u64 << 30)));
    assert_eq!((&first["free_bytes"], &first["needs_bytes"]), (&json!(138_u64 << 30), &pair["peak_gpu_bytes"]["0"]));
    for (visible, expected) in [("1", A), ("1,0", A), (A, A), ("GPU-bbbb", B), ("0", B)] {
        assert_eq!(uuids(&machine.plan(&["--pairs=0:0"], Some(visible))), [expected], "{visible}");
    }
    let hidden = machine.plan(&["--pairs=0:1"], Some("1"));
    assert_eq!(hidden["refusals"][0]["what"], "drafter 0 wants GPU 1, but only GPU 0 is there");
    assert_eq!((&hidden["refusals"][0]["needs"], &hidden["refusals"][0]["has"]), (&json!(2), &json!(1)));
}

#[test]
fn what_does_not_fit_is_refused_by_plan_and_run_before_anything_is_started() {
    let machine = Machine::new();
    let much = ["--pairs=0:1", "data.batch_tokens=4000000", "queue.capacity=64", "queue.min_ready=1"];
    let report = machine.plan(&much, None);
    let refused = &report["refusals"][0];
    assert_eq!((&refused["needs"], &refused["has"]), (&report["peak_gpu_bytes"]["0"], &json!(138_u64 << 30)));
    let words = ["what", "hint"].map(|key| refused[key].as_str().unwrap());
    assert!(words[0].starts_with("GPU 0 (NVIDIA H200) has no room for target 0: "), "{words:?}");
    for command in ["plan", "run"] {
        let output = machine.tandem(command, &much, None);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = format!("tandem: {}\nhint: {}\n", words[0], words[1]);
        assert!(output.status.code() == Some(1) && stderr.ends_with(&refused), "{command}: {stderr}");
    }
    assert!(!machine.0.path().join("run").exists(), "nothing is begun");
}

#[test]
fn a_run_waits_for_memory_that_is_being_given_back() {
    let machine = Machine::new();
    std::fs::write(machine.taken(), "").unwrap();
    let report = machine.plan(&["--pairs=0:1"], None);
    assert_eq!(report["refusals"].as_array().unwrap().len(), 2, "a plan says what is there now: {report}");
    std::fs::write(machine.taken(), "").unwrap();
    let output = machine.tandem("run", &["--pairs=0:1"], None);
    assert!(machine.0.path().join("run").exists() && !machine.taken().exists(), "it is begun: {output:?}");
}
