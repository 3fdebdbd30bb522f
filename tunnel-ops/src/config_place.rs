//! Where a setting was given: by a flag, by an environment variable, in the configuration file, or nowhere.
//!
//! In come clap's matches and the file; out comes the place of each setting, as an error names it. A setting has
//! one name in three spellings: `--ping-interval`, `PROGRAM_PING_INTERVAL` and `ping_interval`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::config_file::{Position, TomlFile};
use crate::settings::Setting;

/// Where settings were given: which of them the command line and the environment gave, and the file.
#[derive(Debug, Clone, Default)]
pub struct Places {
    by: BTreeMap<String, By>,
    file: Option<TomlFile>,
}

/// By what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Flag,
    Variable,
}

/// Where a setting was given, as the first words of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
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
    /// Nowhere: its default counts. The flag that would change it.
    Nowhere(String),
}

impl Places {
    /// Which settings the command line and the environment gave; the arguments have the settings' keys as their ids.
    pub fn from_matches(matches: &ArgMatches) -> Self {
        let by = |id: &str| match matches.value_source(id)? {
            ValueSource::CommandLine => Some(By::Flag),
            ValueSource::EnvVariable => Some(By::Variable),
            _ => None,
        };
        let given = matches.ids().map(clap::Id::as_str);
        let given = given.filter_map(|id| Some((id.to_owned(), by(id)?)));
        Self {
            by: given.collect(),
            file: None,
        }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&TomlFile> {
        self.file.as_ref()
    }

    /// This file gave all that flags and variables did not.
    pub fn set_file(&mut self, file: TomlFile) {
        self.file = Some(file);
    }

    /// The flags and variables of these, and the file of the others.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            by: self.by,
            file: others.file,
        }
    }

    /// Where a setting was given.
    pub fn place(&self, setting: &Setting) -> Place {
        let key = setting.key;
        match self.by.get(key) {
            Some(By::Flag) => Place::Flag(setting.flag()),
            Some(By::Variable) => Place::Variable(setting.variable()),
            None => {
                match (self.file.as_ref()).and_then(|file| Some((file, file.position_of(key)?))) {
                    Some((file, position)) => Place::File {
                        path: file.path().to_owned(),
                        position,
                        key: key.to_owned(),
                    },
                    None => Place::Nowhere(setting.flag()),
                }
            }
        }
    }
}

impl Place {
    /// Names the place within a sentence about another setting.
    pub fn mention(&self) -> String {
        match self {
            Self::Flag(flag) | Self::Nowhere(flag) => format!("--{flag}"),
            Self::Variable(name) => name.clone(),
            Self::File {
                path,
                position,
                key,
            } => format!("`{key}` in line {} of {}", position.line, path.display()),
        }
    }

    /// Names the place as [`mention`](Self::mention) does; of a setting that was not given it names the default.
    pub fn mention_or_default(&self) -> String {
        match self {
            Self::Nowhere(flag) => format!("the default of --{flag}"),
            given => given.mention(),
        }
    }

    /// Whether it was given at all.
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Nowhere(_))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) | Self::Nowhere(flag) => write!(f, "--{flag}"),
            Self::Variable(name) => write!(f, "the environment variable {name}"),
            Self::File {
                path,
                position: Position { line, column },
                key,
            } => write!(f, "{}:{line}:{column}: {key}", path.display()),
        }
    }
}
