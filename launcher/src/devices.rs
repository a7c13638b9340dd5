//! Devices on the command line: how many pairs, or which device each worker gets.

use std::str::FromStr;

/// `--pairs`: a number, or target and drafter device of each pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// So many of each, on the devices of their ranks.
    Number(u32),
    /// `0:1,2:3`: targets on 0 and 2, their drafters on 1 and 3.
    Devices(Vec<(u32, u32)>),
}

/// A text that says no pairs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairsError {
    /// Neither form.
    #[error("'{0}' is neither a number of pairs nor a list TARGET:DRAFTER,TARGET:DRAFTER of device numbers")]
    Form(String),
    /// One worker a device and role.
    #[error("device {device} is there twice among the {role}s: each worker of a role needs a device of its own")]
    Twice {
        /// The device.
        device: u32,
        /// `target` or `drafter`.
        role: &'static str,
    },
}

impl FromStr for Pairs {
    type Err = PairsError;

    fn from_str(text: &str) -> Result<Pairs, PairsError> {
        let refused = || PairsError::Form(text.to_owned());
        if !text.contains(':') {
            return text.parse().map(Pairs::Number).map_err(|_| refused());
        }
        let pair = |pair: &str| {
            let (target, drafter) = pair.split_once(':')?;
            Some((target.parse().ok()?, drafter.parse().ok()?))
        };
        let pairs: Vec<(u32, u32)> = text.split(',').map(pair).collect::<Option<_>>().ok_or_else(refused)?;
        once("target", pairs.iter().map(|(target, _)| *target))?;
        once("drafter", pairs.iter().map(|(_, drafter)| *drafter))?;
        Ok(Pairs::Devices(pairs))
    }
}

fn once(role: &'static str, devices: impl Iterator<Item = u32>) -> Result<(), PairsError> {
    let mut seen = Vec::new();
    for device in devices {
        if seen.contains(&device) {
            return Err(PairsError::Twice { device, role });
        }
        seen.push(device);
    }
    Ok(())
}

impl Pairs {
    /// As `[run]` keys with their values. A number leaves no list standing, which would win over it.
    pub(crate) fn keys(&self) -> Vec<(&'static str, String)> {
        match self {
            Pairs::Number(pairs) => {
                vec![("pairs", pairs.to_string()), ("targets", String::new()), ("drafters", String::new())]
            }
            Pairs::Devices(pairs) => {
                let (targets, drafters): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
                vec![("targets", format!("{targets:?}")), ("drafters", format!("{drafters:?}"))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_a_number_or_the_devices_of_each() {
        assert_eq!("4".parse(), Ok(Pairs::Number(4)));
        let pairs: Pairs = "0:1,2:13".parse().unwrap();
        assert_eq!(pairs, Pairs::Devices(vec![(0, 1), (2, 13)]));
        assert_eq!(pairs.keys(), [("targets", "[0, 2]".into()), ("drafters", "[1, 13]".into())]);
        assert_eq!("0:0,1:1".parse(), Ok(Pairs::Devices(vec![(0, 0), (1, 1)])), "a pair may share a device");
    }

    #[test]
    fn what_says_no_pairs_is_refused_with_the_reason() {
        for text in ["", "-1", "x", "0:", ":1", "0:1,", "0:1,2", "0:1:2", "0-1", "0:a"] {
            assert_eq!(text.parse::<Pairs>(), Err(PairsError::Form(text.into())));
        }
        let twice = |text: &str| text.parse::<Pairs>().unwrap_err().to_string();
        assert!(twice("0:1,0:2").starts_with("device 0 is there twice among the targets"));
        assert!(twice("0:2,1:2").starts_with("device 2 is there twice among the drafters"));
    }
}
