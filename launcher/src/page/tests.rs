use super::*;
use crate::history::{ROWS_FILE, samples_line};

const METRICS: &str = r#"{"step":10,"loss":5.2,"accuracy":0.1,"slot_accuracy":[0.2,0.1],"accepted_length":1.1,"expected_accepted":0.1,"learning_rate":0.001,"grad_norm":6.5,"tokens":100.0,"tokens_per_s":50.0}
{"step":20,"loss":0.55,"accuracy":0.8,"slot_accuracy":[0.85,0.7],"accepted_length":4.6,"expected_accepted":3.6,"learning_rate":0.0005,"grad_norm":0.5,"tokens":200.0,"tokens_per_s":60.0}
"#;

fn run(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
    folder
}

fn text(files: &[(&str, &str)]) -> String {
    let folder = run(files);
    fs::read_to_string(write(folder.path(), None).unwrap()).unwrap()
}

#[test]
fn a_whole_run_is_told_in_curves_and_in_words() {
    let samples = [samples_line(5, 0), samples_line(15, 1)].join("\n");
    let page = text(&[
        ("config.toml", "[training]\nseed = 42\n"),
        ("metrics.jsonl", METRICS),
        ("telemetry.jsonl", &samples),
        (
            "summary.json",
            r#"{"run_id":"ab-12","accepted_length_before":1.0,"accepted_length_after":3.69,"steps":20,"total_steps":20,"train_seconds":93.8}"#,
        ),
        (
            ROWS_FILE,
            r#"{"rows_read":9,"rows_kept":7,"rows_held_out":0,"truncated":0,"tokens":99,"supervised_tokens":50,"supervised_tokens_lost":0,"dropped":[{"reason":"no answer","rows":2,"examples":["a.jsonl:3: no answer"]}]}"#,
        ),
    ]);
    let said = [
        "Run ab-12",
        "finished",
        "3.69",
        "1.00 before training",
        "1 min 34 s",
        "loss: 5.2 first, 0.55 last, 0.55 to 5.2",
        "expected accepted",
        "target 0, main thread",
        "backward",
        "wait slot",
        "the drafters limit the run",
        "ready: 5 first",
        "target 0 at 3.0 s, step 15",
        "no answer",
        "a.jsonl:3",
        "seed = 42",
        "70.0 %",
    ];
    said.iter().for_each(|words| assert!(page.contains(words), "{words} is not there"));
    assert_eq!(page.matches("<svg").count(), 7, "six curves over steps and the queue");
    for outside in ["http:", "https:", "src=", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_gpu_has_a_card_of_its_own() {
    let samples = samples_line(5, 0);
    assert!(!text(&[("config.toml", ""), ("telemetry.jsonl", &samples)]).contains("GPU"));
    let gpu = r#""gpu":{"backward":{"count":3,"ns":1200000000},"idle":{"count":3,"ns":300000000}}"#;
    let samples =
        samples.replace(r#""stages":{"main":{"backward""#, &format!(r#""stages":{{{gpu},"main":{{"backward""#));
    let page = text(&[("config.toml", ""), ("telemetry.jsonl", &samples)]);
    let said =
        ["drafter 0, GPU", "80.0 % of it at work", "whose GPUs were busy 80 % (backward took 80 % of their time)"];
    said.iter().for_each(|words| assert!(page.contains(words), "{words} is not there: {page}"));
}

#[test]
fn a_run_cut_short_or_of_an_older_build_still_has_a_page() {
    let bare = text(&[("config.toml", "[run]"), ("plan.json", r#"{"run_id":"cd-34","of":"another build"}"#)]);
    assert!(
        bare.contains("Run cd-34")
            && bare.contains("cut short")
            && bare.contains("No step is written down")
            && bare.contains("no telemetry.jsonl")
    );
    let torn = text(&[
        ("config.toml", "[run]"),
        ("metrics.jsonl", &METRICS[..METRICS.len() - 30]),
        ("telemetry.jsonl", "{\"at_ns\":"),
        ("summary.json", "{\"run_id\":"),
    ]);
    assert!(
        torn.contains("5.2") && torn.contains("summary.json: EOF") && torn.contains("telemetry.jsonl: no whole line"),
        "{torn}"
    );
    let failed = r#"{"run_id":"r","exit_code":2,"reason":"3 restarts in 600 s","restarts":3,"cause":{"worker":"drafter 1",
        "ending":"was killed by SIGKILL","exit_code":null,"signal":"SIGKILL","uptime_s":1.5,"doing":"backward",
        "error":null,"hint":"see the log","tail":["the last line"],"log":"logs/d.log"},"others":[]}"#;
    let failed = text(&[("config.toml", ""), ("failure.json", failed)]);
    assert!(failed.contains("failed: drafter 1 was killed by SIGKILL") && failed.contains("the last line"));
}

#[test]
fn what_files_say_is_text_and_never_markup() {
    let evil = "</pre><script>alert(1)</script>\\\"'&";
    let json = evil.replace('\\', "\\\\").replace('"', "\\\"");
    let folder = run(&[
        ("config.toml", evil),
        (
            "summary.json",
            &format!(
                r#"{{"run_id":"{json}","stopped_by":"{json}","checkpoint":"{json}","verdict":{{"limit":"data","sentence":"{json}","figures":{{"{json}":1}}}}}}"#
            ),
        ),
        (
            "failure.json",
            &format!(
                r#"{{"run_id":"{json}","exit_code":2,"reason":"{json}","restarts":0,"cause":{{"worker":"{json}","ending":"{json}","exit_code":null,"signal":null,"uptime_s":1,"doing":"{json}","error":"{json}","hint":"{json}","tail":["{json}"],"log":""}},"others":[]}}"#
            ),
        ),
        (
            ROWS_FILE,
            &format!(
                r#"{{"rows_read":1,"rows_kept":0,"rows_held_out":0,"truncated":0,"tokens":0,"supervised_tokens":0,"supervised_tokens_lost":0,"dropped":[{{"reason":"{json}","rows":1,"examples":["{json}"]}}]}}"#
            ),
        ),
    ]);
    let nested = folder.path().join("<script>");
    fs::create_dir(&nested).unwrap();
    for file in ["config.toml", "summary.json", "failure.json", ROWS_FILE] {
        fs::copy(folder.path().join(file), nested.join(file)).unwrap();
    }
    let page = fs::read_to_string(write(&nested, None).unwrap()).unwrap();
    assert!(!page.contains("<script") && page.matches("&lt;script&gt;").count() > 15, "{page}");
    assert_eq!(page.matches("</pre>").count(), page.matches("<pre>").count());
}

#[test]
fn only_run_folders_have_pages_and_out_says_where() {
    let folder = run(&[("config.toml", "")]);
    let error = write(&folder.path().join("none"), None).unwrap_err().to_string();
    assert!(error.contains("no run folder"), "{error}");
    let out = folder.path().join("elsewhere.html");
    assert_eq!(write(folder.path(), Some(&out)).unwrap(), out);
    assert!(out.is_file() && !folder.path().join(PAGE_FILE).exists());
    let full = write(folder.path(), Some(Path::new("/dev/full"))).unwrap_err().to_string();
    assert!(full.starts_with("/dev/full: "), "{full}");
}
