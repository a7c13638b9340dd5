//! What the documents say, held against the programs.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;

use common::config::Config;
use common::exit::Code;
use common::ids::{Rank, Role};

/// Every `section.key` that a configuration can hold.
fn keys() -> BTreeSet<String> {
    let text = "[run]\noutput_dir=''\n[model]\ntarget_model_path=''\n[data]\ntrain_data_path=''\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("minimal.toml");
    std::fs::write(&path, text).unwrap();
    let unknown = |section: &str| {
        let refused = Config::load(&path, &[format!("{section}.no_such_key=1")]).unwrap_err().to_string();
        let (_, expected) = refused.split_once("expected").expect("a refusal lists the known keys");
        let names = expected.split('`').skip(1).step_by(2).filter(|name| *name != section);
        names.map(|key| format!("{section}.{key}")).collect::<Vec<_>>()
    };
    ["run", "model", "drafter", "data", "training", "queue", "evaluation", "telemetry"]
        .into_iter()
        .flat_map(unknown)
        .collect()
}

#[test]
fn the_configuration_page_has_every_key_and_no_other() {
    let page = std::fs::read_to_string(tests::root().join("docs/configuration.md")).unwrap();
    let mut section = String::new();
    let mut found = BTreeSet::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## [") {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some(cell) = line.strip_prefix("| `").and_then(|rest| rest.split(" |").next()) {
            found.extend(cell.split('`').step_by(2).map(|key| format!("{section}.{key}")));
        }
    }
    found.retain(|key| !key.ends_with('.'));
    assert_eq!(found, keys());
}

#[test]
fn the_shipped_configurations_are_valid() {
    for name in ["examples/tiny/train.toml", "examples/smollm2-135m/train.toml", "examples/qwen3-8b.toml"] {
        Config::load(&tests::root().join(name), &[]).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn the_published_recipe_uses_the_gpus_that_it_says() {
    let run = Config::load(&tests::root().join("examples/qwen3-8b.toml"), &[]).unwrap().run;
    let of = |role| (0..run.workers(role)).map(|rank| run.device_of(role, Rank(rank))).collect::<Vec<_>>();
    assert_eq!((of(Role::Target), of(Role::Drafter)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
}

#[test]
fn the_readmes_commands_are_real() {
    let readme = std::fs::read_to_string(tests::root().join("README.md")).unwrap();
    let makefile = std::fs::read_to_string(tests::root().join("Makefile")).unwrap();
    let targets = readme.split("make ").skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap());
    for target in targets.filter(|target| !target.is_empty()) {
        assert!(makefile.contains(&format!("\n{target}:")), "README names `make {target}`");
    }
    for path in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let local = !path.starts_with("http");
        assert!(!local || tests::root().join(path).exists(), "README links to {path}");
    }
}

#[test]
fn the_exit_codes_are_those_of_the_operations_page() {
    let page = std::fs::read_to_string(tests::root().join("docs/operations.md")).unwrap();
    let (_, table) = page.split_once("## Exit codes").unwrap();
    let codes: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next()).collect();
    let numbers = [Code::Done, Code::Input, Code::Failure, Code::Peer].map(|code| code.number().to_string());
    let above = |signal| Code::Signal(signal).number() - signal;
    assert_eq!((above(2), above(15)), (128, 128));
    let [done, input, failure, peer] = &numbers;
    assert_eq!(codes, ["code", done, input, failure, peer, "101", "128 + n"]);
}

/// Flags of `tandem run`, as its help lists them.
#[test]
fn the_flags_are_those_of_the_operations_page() {
    let mut command = std::process::Command::new(tests::program("tandem"));
    command.args(["run", "--help"]);
    let help = tests::finish(command, std::time::Duration::from_secs(60)).success().stdout();
    let words = |text: &str| -> BTreeSet<String> {
        let flags =
            text.split("--").skip(1).map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next());
        flags.flatten().filter(|flag| !flag.is_empty()).map(str::to_owned).collect()
    };
    let page = std::fs::read_to_string(tests::root().join("docs/operations.md")).unwrap();
    let (_, table) = page.split_once("| torchrun |").unwrap();
    let rows: Vec<Vec<&str>> =
        table.lines().skip(2).map_while(|line| Some(line.strip_prefix("| ")?.split(" | ").collect())).collect();
    let ours: String = rows
        .iter()
        .map(|row| if row[1].starts_with("the same") { row[0].to_owned() + row[1] } else { row[1].to_owned() })
        .collect();
    let mut known = words(&help);
    known.remove("help");
    assert_eq!(words(&ours), known);
}

/// The invariants' table names tests that exist.
#[test]
fn every_invariant_names_a_test_that_is_there() {
    let page = std::fs::read_to_string(tests::root().join("docs/architecture.md")).unwrap();
    let (_, table) = page.split_once("## Invariants").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| A")).collect();
    assert_eq!(rows.len(), 12);
    let sources = tests::sources(tests::root());
    for row in rows {
        let cell = row.split('|').nth(2).unwrap();
        for name in cell.split('`').skip(1).step_by(2) {
            let declared = format!("fn {name}(");
            let found = sources.iter().any(|path| std::fs::read_to_string(path).unwrap().contains(&declared));
            assert!(found, "no test {name} for {row}");
        }
    }
}
