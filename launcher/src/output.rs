//! Which of the workers' lines appear on the console, in torchrun's words. Files get all of them, whatever is said here.

use std::collections::BTreeMap;
use std::str::FromStr;

use common::ids::Role;

use crate::child::Streams;
use crate::supervise::WorkerId;

/// Streams per rank: `3` for all ranks, or `0:1,12:3`; 0 is none, 1 stdout, 2 stderr, 3 both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamMap {
    all: u8,
    ranks: BTreeMap<u32, u8>,
}

/// A text that is no map of streams.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is neither streams (0 none, 1 stdout, 2 stderr, 3 both) nor a list RANK:STREAMS,RANK:STREAMS")]
pub struct StreamMapError(String);

impl FromStr for StreamMap {
    type Err = StreamMapError;

    fn from_str(text: &str) -> Result<StreamMap, StreamMapError> {
        let refused = || StreamMapError(text.to_owned());
        let streams = |text: &str| text.parse().ok().filter(|streams| *streams <= 3).ok_or_else(refused);
        if !text.contains(':') {
            return Ok(StreamMap { all: streams(text)?, ranks: BTreeMap::new() });
        }
        let entry = |entry: &str| {
            let (rank, value) = entry.split_once(':').ok_or_else(refused)?;
            Ok((rank.parse().map_err(|_| refused())?, streams(value)?))
        };
        Ok(StreamMap { all: 0, ranks: text.split(',').map(entry).collect::<Result<_, StreamMapError>>()? })
    }
}

impl StreamMap {
    fn of(&self, rank: u32) -> u8 {
        self.ranks.get(&rank).copied().unwrap_or(self.all)
    }
}

/// `--redirects`, `--tee`, `--local-ranks-filter` and `--role`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OutputArgs {
    /// Streams that go to the log files alone: 0 none, 1 stdout, 2 stderr, 3 both, or a list 0:3,12:1 by rank
    #[arg(short, long, value_name = "STREAMS")]
    redirects: Option<StreamMap>,
    /// Streams that appear on the console although redirected
    #[arg(short, long, value_name = "STREAMS")]
    tee: Option<StreamMap>,
    /// Ranks whose lines appear on the console
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    local_ranks_filter: Option<Vec<u32>>,
    /// Role whose lines appear on the console: target or drafter
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<Role>,
}

fn role(text: &str) -> Result<Role, String> {
    let known = [Role::Target, Role::Drafter].into_iter().find(|role| role.to_string() == text);
    known.ok_or_else(|| "there are target and drafter".to_owned())
}

impl OutputArgs {
    /// The streams of a worker that appear on the console.
    pub(crate) fn shown(&self, worker: WorkerId) -> Streams {
        let rank = worker.rank.0;
        let here = self.local_ranks_filter.as_ref().is_none_or(|ranks| ranks.contains(&rank))
            && self.role.is_none_or(|role| role == worker.role);
        let has = |map: &Option<StreamMap>, bit| map.as_ref().is_some_and(|map| map.of(rank) & bit != 0);
        let shown = |bit| here && (has(&self.tee, bit) || !has(&self.redirects, bit));
        Streams { stdout: shown(1), stderr: shown(2) }
    }
}

#[cfg(test)]
mod tests {
    use common::ids::Rank;

    use super::*;

    fn shown(output: &OutputArgs, rank: u32) -> (bool, bool) {
        let Streams { stdout, stderr } = output.shown(WorkerId { role: Role::Drafter, rank: Rank(rank) });
        (stdout, stderr)
    }

    #[test]
    fn what_is_redirected_is_hidden_unless_teed() {
        let map = |text: &str| Some(text.parse().unwrap());
        let output = OutputArgs { redirects: map("3"), tee: map("12:1,0:2"), ..OutputArgs::default() };
        assert_eq!(
            (shown(&output, 12), shown(&output, 0), shown(&output, 1)),
            ((true, false), (false, true), (false, false))
        );
        assert_eq!(shown(&OutputArgs::default(), 7), (true, true));
    }

    #[test]
    fn filters_hide_the_others() {
        let output = OutputArgs { local_ranks_filter: Some(vec![10]), ..OutputArgs::default() };
        assert_eq!((shown(&output, 10), shown(&output, 1)), ((true, true), (false, false)));
        let output = OutputArgs { role: Some(Role::Target), ..OutputArgs::default() };
        assert_eq!(shown(&output, 10), (false, false));
    }

    #[test]
    fn a_map_that_says_nothing_is_refused() {
        for text in ["", "4", "x", "0:", "0:4", "0:1,2"] {
            assert!(text.parse::<StreamMap>().unwrap_err().to_string().starts_with(&format!("'{text}'")));
        }
    }
}
