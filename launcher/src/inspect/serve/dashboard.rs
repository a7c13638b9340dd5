//! The shipped Grafana dashboard, held against what is served.

use std::collections::BTreeSet;

use serde_json::Value;

use super::exposition;

/// Every word of an expression.
fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}

fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, field)| match field {
            Value::String(text) if name == key => found.push(text),
            field => strings(field, key, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, found)),
        _ => {}
    }
}

#[test]
fn every_metric_of_the_dashboard_is_served() {
    let dashboard: Value = serde_json::from_str(include_str!("../../../../docs/grafana.json")).unwrap();
    let text = exposition::text(&[]);
    let served: BTreeSet<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let (mut expressions, mut definitions) = (Vec::new(), Vec::new());
    strings(&dashboard, "expr", &mut expressions);
    strings(&dashboard, "definition", &mut definitions);
    assert!(expressions.len() > 20 && definitions.len() == 1);
    let shown = || expressions.iter().chain(&definitions).flat_map(|expression| words(expression));
    let shown: BTreeSet<_> = shown().filter(|word| word.starts_with("tandem_")).collect();
    assert_eq!(shown.difference(&served).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(shown.len() * 10 > served.len() * 9, "most of what is served is shown, too");
}

#[test]
fn panels_have_room_and_names_of_their_own() {
    let dashboard: Value = serde_json::from_str(include_str!("../../../../docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(side("x") + side("w") <= 24, "{}", panel["title"]);
        for (x, y) in (0..side("w")).flat_map(|x| (0..side("h")).map(move |y| (x, y))) {
            assert!(taken.insert((side("x") + x, side("y") + y)), "{} covers another panel", panel["title"]);
        }
    }
}
