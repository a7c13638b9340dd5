//! What several unit tests need.

use std::sync::atomic::{AtomicU32, Ordering};

/// A segment name that no other test and no other test process uses.
pub(crate) fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("tandem-test-{what}-{}-{number}", std::process::id())
}
