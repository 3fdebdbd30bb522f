//! Where the value of a setting comes from: a flag, an environment variable, the configuration file, or its
//! default.
//!
//! In: clap's matches and the file. Out: the origin of each setting, as an error names it. A setting has
//! one name in three spellings: `--ping-interval`, `PROGRAM_PING_INTERVAL` and `ping_interval`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::Setting;
use crate::config_file::{Position, TomlFile};

/// The origins of all settings: which of them the command line and the environment set, and the file.
#[derive(Debug, Clone, Default)]
pub struct SettingOrigins {
    given_by: BTreeMap<String, GivenBy>,
    file: Option<TomlFile>,
}

/// What set a setting ahead of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenBy {
    Flag,
    Variable,
}

/// Where the value of one setting comes from. Its `Display` begins an error about the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingOrigin {
    /// On the command line.
    Flag(String),
    /// In the environment.
    Variable(String),
    /// In the file.
    File {
        /// The file.
        path: PathBuf,
        /// Where in it.
        position: Position,
        /// The key.
        key: String,
    },
    /// Not set: the default applies. Holds the flag that would change it.
    Default(String),
}

impl SettingOrigins {
    /// The settings that the command line and the environment set. The ids of the arguments are the
    /// settings' keys.
    pub fn from_matches(matches: &ArgMatches) -> Self {
        let given_by = |id: &str| match matches.value_source(id)? {
            ValueSource::CommandLine => Some(GivenBy::Flag),
            ValueSource::EnvVariable => Some(GivenBy::Variable),
            _ => None,
        };
        let given = matches.ids().map(clap::Id::as_str);
        let given = given.filter_map(|id| Some((id.to_owned(), given_by(id)?)));
        Self {
            given_by: given.collect(),
            file: None,
        }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&TomlFile> {
        self.file.as_ref()
    }

    /// Sets the file, which is the origin of its keys that neither a flag nor a variable sets.
    pub fn set_file(&mut self, file: TomlFile) {
        self.file = Some(file);
    }

    /// The flags and variables of `self` with the file of `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            given_by: self.given_by,
            file: others.file,
        }
    }

    /// The origin of one setting.
    pub fn origin(&self, setting: &Setting) -> SettingOrigin {
        let key = setting.key;
        match self.given_by.get(key) {
            Some(GivenBy::Flag) => SettingOrigin::Flag(setting.flag()),
            Some(GivenBy::Variable) => SettingOrigin::Variable(setting.variable()),
            None => {
                match (self.file.as_ref()).and_then(|file| Some((file, file.position_of(key)?))) {
                    Some((file, position)) => SettingOrigin::File {
                        path: file.path().to_owned(),
                        position,
                        key: key.to_owned(),
                    },
                    None => SettingOrigin::Default(setting.flag()),
                }
            }
        }
    }
}

impl SettingOrigin {
    /// Names the origin within a sentence about another setting.
    pub fn mention(&self) -> String {
        match self {
            Self::Flag(flag) | Self::Default(flag) => format!("--{flag}"),
            Self::Variable(name) => name.clone(),
            Self::File {
                path,
                position,
                key,
            } => format!("`{key}` in line {} of {}", position.line, path.display()),
        }
    }

    /// Names the origin as [`mention`](Self::mention) does, or the default of a setting that is not set.
    pub fn mention_or_default(&self) -> String {
        match self {
            Self::Default(flag) => format!("the default of --{flag}"),
            given => given.mention(),
        }
    }

    /// Whether the setting is set at all.
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Default(_))
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) | Self::Default(flag) => write!(f, "--{flag}"),
            Self::Variable(name) => write!(f, "the environment variable {name}"),
            Self::File {
                path,
                position: Position { line, column },
                key,
            } => write!(f, "{}:{line}:{column}: {key}", path.display()),
        }
    }
}
