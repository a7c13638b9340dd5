//! What was found, one JSON object a line.

use serde_json::json;

use crate::checks::{Check, free_memory};

/// What a figure has to be.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    /// Nothing: it is told, that is all.
    None,
    AtLeast(f64),
    AtMost(f64),
    Is(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Bar::None => true,
            Bar::AtLeast(bar) => value >= bar,
            Bar::AtMost(bar) => value <= bar,
            Bar::Is(bar) => (value - bar).abs() < f64::EPSILON,
        }
    }

    fn text(self) -> String {
        match self {
            Bar::None => String::new(),
            Bar::AtLeast(bar) => format!(">= {bar}"),
            Bar::AtMost(bar) => format!("<= {bar}"),
            Bar::Is(bar) => format!("= {bar}"),
        }
    }
}

/// What was found.
pub(crate) struct Findings {
    ok: bool,
    /// Number of the test at work.
    test: u32,
    pub(crate) restarts: u64,
    /// Bytes of each GPU before the first check.
    pub(crate) free: Option<Vec<u64>>,
}

impl Findings {
    pub(crate) fn new() -> Findings {
        Findings { ok: true, test: 0, restarts: 0, free: free_memory().ok() }
    }

    /// Whether all bars were met.
    pub(crate) fn all_ok(&self) -> bool {
        self.ok
    }

    /// Makes a check; what it cannot do is a finding too.
    pub(crate) fn make(&mut self, (name, test, check): (&str, u32, Check)) {
        self.test = test;
        if let Err(error) = check(self) {
            self.ok = false;
            println!("{}", json!({ "test": test, "name": name, "error": error.to_string(), "ok": false }));
        }
    }

    pub(crate) fn found(&mut self, name: &str, (value, unit): (f64, &str), bar: Bar) {
        let ok = bar.is_met(value);
        self.ok &= ok;
        let (test, bar) = (self.test, bar.text());
        println!("{}", json!({ "test": test, "name": name, "value": value, "unit": unit, "bar": bar, "ok": ok }));
    }
}
