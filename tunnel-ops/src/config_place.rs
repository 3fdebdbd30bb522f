//! Where a setting was given: by a flag, by an environment variable, in the configuration file, or nowhere.
//!
//! In come clap's matches and the file; out comes the place of each setting, as an error names it. A setting has
//! one name in three spellings: `--ping-interval`, `PROGRAM_PING_INTERVAL` and `ping_interval`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::config_file::{Position, TomlFile};

/// Which settings the command line and the environment gave. As the first field of the struct that clap fills,
/// flattened, it sees them all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places(BTreeMap<String, By>);

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
    /// Where the setting with this flag, without dashes before it, was given. `prefix` is what the program's
    /// variables begin with, such as `TUNNEL_CLIENT_`; `file` is the configuration file, if there is one.
    pub fn place(&self, prefix: &str, flag: &str, file: Option<&TomlFile>) -> Place {
        let key = flag.replace('-', "_");
        match self.0.get(&key) {
            Some(By::Flag) => Place::Flag(flag.to_owned()),
            Some(By::Variable) => Place::Variable(format!("{prefix}{}", key.to_uppercase())),
            None => match file.and_then(|file| Some((file, file.position_of(&key)?))) {
                Some((file, position)) => Place::File {
                    path: file.path().to_owned(),
                    position,
                    key,
                },
                None => Place::Nowhere(flag.to_owned()),
            },
        }
    }
}

impl Place {
    /// The same within a sentence about another setting.
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

    /// The same, which says of a setting that was not given that its default counts.
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

impl FromArgMatches for Places {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let by = |id: &str| match matches.value_source(id)? {
            ValueSource::CommandLine => Some(By::Flag),
            ValueSource::EnvVariable => Some(By::Variable),
            _ => None,
        };
        let given = matches.ids().map(clap::Id::as_str);
        let given = given.filter_map(|id| Some((id.to_owned(), by(id)?)));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Places {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        places: Places,
        #[arg(long)]
        by_flag: Option<u8>,
        // One that is set wherever these tests run.
        #[arg(long, env = "CARGO_PKG_VERSION_MAJOR")]
        by_variable: Option<u8>,
        #[arg(long)]
        by_file: Option<u8>,
        #[arg(long)]
        by_nobody: Option<u8>,
    }

    #[test]
    fn each_setting_has_the_place_where_it_was_given() {
        let flags = Flags::parse_from(["", "--by-flag=1"]);
        let text = "by_flag = 2\nby_variable = 2\n\n by_file = 2\n";
        let file = TomlFile::from_text("c.toml", text);
        for (flag, place, mention, is_given) in [
            ("by-flag", "--by-flag", "--by-flag", true),
            (
                "by-variable",
                "the environment variable OPS_BY_VARIABLE",
                "OPS_BY_VARIABLE",
                true,
            ),
            (
                "by-file",
                "c.toml:4:2: by_file",
                "`by_file` in line 4 of c.toml",
                true,
            ),
            (
                "by-nobody",
                "--by-nobody",
                "the default of --by-nobody",
                false,
            ),
        ] {
            let found = flags.places.place("OPS_", flag, Some(&file));
            assert_eq!(found.to_string(), place);
            assert_eq!(found.mention_or_default(), mention);
            assert_eq!(found.is_given(), is_given, "{flag}");
        }
        let nobody = flags.places.place("OPS_", "by-file", None);
        assert_eq!(nobody, Place::Nowhere("by-file".to_owned()));
        assert_eq!((flags.by_flag, flags.by_file), (Some(1), None));
        assert_eq!(flags.by_nobody, None);
        assert!(flags.by_variable.is_some());
        Flags::command().debug_assert();
    }
}
