//! What a process says about itself: log lines on stderr here, numbers in [`metrics`], and where its
//! time goes in [`sample`], of which [`verdict`] says what limits the run.
//!
//! info is once per phase, debug explains decisions, and nothing is logged per batch. `TANDEM_LOG` filters, in
//! tracing's notation: `TANDEM_LOG=debug`, `TANDEM_LOG=info,common::queue=trace`.

pub mod metrics;
pub mod period;
pub mod sample;
pub mod trace;
pub mod verdict;

use std::fmt;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::ids::{Rank, Role};

/// The environment variable that filters the log.
pub const FILTER_VARIABLE: &str = "TANDEM_LOG";

/// A worker's name in logs and messages: `target 0`.
pub fn worker_name(role: Role, rank: Rank) -> String {
    format!("{role} {rank}")
}

/// Starts logging to stderr, every line marked `[worker]`; a second call changes nothing.
pub fn init(worker: &str) {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(FILTER_VARIABLE)
        .from_env_lossy();
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).with_ansi(false);
    // It fails only where logging was started already, as in a test that runs two workers' parts.
    let _ = subscriber.event_format(Line { worker: worker.to_owned() }).try_init();
}

struct Line {
    worker: String,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(writer, "[{}] ", self.worker)?;
        SystemTime.format_time(&mut writer)?;
        write!(writer, " {} ", event.metadata().level())?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_starts_with_the_worker_and_ends_with_message_and_fields() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(Line { worker: worker_name(Role::Target, Rank(12)) })
            .finish();
        tracing::subscriber::with_default(subscriber, || tracing::info!(layers = 4, "model loaded"));
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("[target 12] 20") && text.ends_with(" INFO model loaded layers=4\n"), "{text}");
    }
}
