//! Where managed runtimes are kept (`--managed-runtimes`), and revocations by the admin API.

use std::{path::PathBuf, str::FromStr};

use clap::builder::ValueParser;
use serde::{Deserialize, Deserializer};
use tunnel_ops::{
    config_value::{self, ValueError},
    settings::{SettingValue, text_parser},
};

use super::{ConfigFault, Settings, Source, setting};

/// The value that is no folder.
const ETCD: &str = "etcd";

/// Where the runtimes are kept that the admin API makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagedPlace {
    /// In a folder of this server alone.
    Folder(PathBuf),
    /// In the etcd that nodes share.
    Etcd,
}

/// Checks that a server that stands alone has a folder or a file, and nodes share etcd.
pub(super) fn check(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    let is_alone = settings.etcd.is_empty();
    if settings.admin_revocations.is_some() && !is_alone {
        let problem =
            "with --etcd, revocations by the admin API are kept there, for all nodes: leave it out";
        faults.push(source.fault(&setting::admin_revocations, problem));
    }
    let problem = match &settings.managed_runtimes {
        Some(ManagedPlace::Etcd) if is_alone => {
            "there is no --etcd: name its members, or a folder here (`./etcd` if that is its name)"
        }
        Some(ManagedPlace::Folder(_)) if !is_alone => {
            "the nodes have to share managed runtimes: with --etcd it can only be `etcd`"
        }
        _ => return,
    };
    faults.push(source.fault(&setting::managed_runtimes, problem));
}

impl FromStr for ManagedPlace {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err(ValueError::new("expected a folder, or `etcd`")),
            ETCD => Ok(Self::Etcd),
            folder => Ok(Self::Folder(folder.into())),
        }
    }
}

impl SettingValue for ManagedPlace {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn show(place: &Self) -> String {
        match place {
            Self::Folder(path) => PathBuf::show(path),
            Self::Etcd => ETCD.to_owned(),
        }
    }

    fn parser() -> ValueParser {
        text_parser::<Self>()
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Folder(path) => vec![path],
            Self::Etcd => Vec::new(),
        }
    }
}

impl<'de> Deserialize<'de> for ManagedPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(place: &str, has_etcd: bool) -> Vec<String> {
        let source = Source {
            managed_runtimes: Some(place.parse().unwrap()),
            etcd: has_etcd.then(|| vec!["http://localhost:1".parse().unwrap()]),
            ..Source::default()
        };
        let mut faults = Vec::new();
        check(&source, &source.settings(), &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_share_etcd_and_a_single_server_has_a_folder() {
        assert!(faults("managed", false).is_empty() && faults("etcd", true).is_empty());
        for (place, has_etcd) in [("etcd", false), ("managed", true)] {
            let given = faults(place, has_etcd);
            assert!(given[0].starts_with("--managed-runtimes: "), "{given:?}");
        }
        assert!("".parse::<ManagedPlace>().is_err());
    }
}
