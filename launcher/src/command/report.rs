//! `tandem report`.

use common::exit::{Blame, Fault};

use super::print;
use crate::args::ReportArgs;
use crate::page;

/// Writes a run's page, and says where it is.
///
/// # Errors
/// There is no run, or the page cannot be written.
pub(crate) fn report(args: &ReportArgs) -> Result<(), Fault> {
    let written = page::write(&args.run, args.out.as_deref());
    let path = written.your_input("RUN is a run folder; --out is a file that can be written to")?;
    print(&format!("{}\n", path.display()))
}
