//! Numbers as people read them.

/// At most four figures, and a letter for thousands and more.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => value.to_string(),
        0.0 => "0".into(),
        size if !(1e-3..1e15).contains(&size) => format!("{value:.1e}"),
        size if size >= 9.995e8 => trimmed(value / 1e9, 2) + "G",
        size if size >= 9.995e5 => trimmed(value / 1e6, 2) + "M",
        size if size >= 9.9995e3 => trimmed(value / 1e3, 1) + "k",
        size if size >= 100.0 => trimmed(value, 0),
        size if size >= 1.0 => trimmed(value, 2),
        _ => trimmed(value, 4),
    }
}

/// `12.0 µs`, `20 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        _ if seconds < 0.000_995 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 0.00995 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

/// A share of one.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Digits in groups of three.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.00125, 0.0004, 0.54950, 5.198139, 266.4, 8470.0, 12255.01, 794_719.0, 3.2e6, 7.1e9, -5.5];
        let expected =
            ["0", "0.0013", "4.0e-4", "0.5495", "5.2", "266", "8470", "12.3k", "794.7k", "3.2M", "7.1G", "-5.5"];
        assert_eq!(numbers.map(short), expected);
        assert_eq!(
            [0.000_012, 0.0012, 0.02, 4.21, 200.0, 7500.0].map(duration),
            ["12.0 µs", "1.2 ms", "20 ms", "4.2 s", "3 min 20 s", "2 h 5 min"]
        );
        assert_eq!([7, 1234, 794_719].map(grouped), ["7", "1\u{202f}234", "794\u{202f}719"]);
    }
}
