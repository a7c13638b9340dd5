//! Numbers as people read them.

/// `1.5 GiB`; MiB below one.
pub(super) fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

/// `12,345,678`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at(first);
    let groups = tail.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    [head.to_owned()].into_iter().filter(|head| !head.is_empty()).chain(groups).collect::<Vec<_>>().join(",")
}

/// `1 checkpoint`, `4 checkpoints`.
pub(super) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// `3 h 20 min`, `4 min`, `50 s`.
pub(super) fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match minutes {
        0 | 1 => format!("{seconds:.0} s"),
        ..120 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!((bytes(3 << 19), bytes(3 << 29), bytes(0)), ("1.5 MiB".into(), "1.5 GiB".into(), "0.0 MiB".into()));
        let counts = [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")];
        counts.iter().for_each(|(number, text)| assert_eq!(count(*number), *text));
        let durations =
            [(50.4, "50 s"), (89.0, "89 s"), (95.0, "2 min"), (7100.0, "118 min"), (12_000.0, "3 h 20 min")];
        durations.iter().for_each(|(seconds, text)| assert_eq!(duration(*seconds), *text));
    }
}
