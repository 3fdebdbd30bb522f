//! Settings of a program: one table, from which everything that concerns a setting comes.
//!
//! In comes a table ([`settings!`](crate::settings!)), one row for each setting. Out come two structs, what was given
//! ([`GivenSettings`]) and what counts, and a [`Setting`] for each row: its flag with help, its environment variable, its
//! key in the configuration file, its default and bounds, whether a reload takes it over, what it is shown as, and which
//! files it names. What settings mean, and whether they fit together, is the program's business.

mod page;
mod value;

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::de::DeserializeOwned;

/// What reads a value of a flag; here so that a crate with such a value needs nothing else.
pub use clap::builder::ValueParser;

pub use self::page::page;
pub use self::value::{OneOrMorePaths, SettingValue, text_parser};
use crate::config_file::{ConfigFileError, TomlFile};
use crate::setting_origin::{SettingOrigin, SettingOrigins};

/// One row of the table. A setting has one name in three spellings: `ping_interval` in the file, `--ping-interval`,
/// `PROGRAM_PING_INTERVAL`.
#[derive(Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    /// What the program's environment variables begin with, such as `TUNNEL_SERVER_`.
    pub variables: &'static str,
    /// The section that help and page list it in.
    pub section: &'static str,
    /// What it is for; the first paragraph is the flag's help.
    pub doc: &'static str,
    /// What the help calls its value.
    pub value_name: &'static str,
    /// The default as it would be written, or what counts without the setting.
    pub default: fn() -> SettingDefault,
    /// The values that are possible, if the type does not say.
    pub bounds: fn() -> Option<String>,
    /// Adds to a flag what the setting's type needs.
    pub argument: fn(Arg) -> Arg,
    /// Whether a reload takes it over.
    pub reload: Reload,
}

/// What counts where a setting is not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingDefault {
    /// This value, as it would be written.
    Value(String),
    /// No value; the words say what that means.
    Without(&'static str),
}

/// Whether a running program takes over another value of a setting.
#[derive(Debug, Clone, Copy)]
pub enum Reload {
    /// It does, as soon as the file has changed.
    AtOnce,
    /// Only the next start does.
    Restart,
    /// The function tells whether it takes a restart to come from the first value to the second, both as they are
    /// shown; `None` is no value.
    Depends(fn(Option<&str>, Option<&str>) -> bool),
}

/// The struct of what was given: an `Option` for each row of the table, and what only the file has.
pub trait GivenSettings: Args + Clone + Default + DeserializeOwned {
    /// All rows.
    const SETTINGS: &'static [&'static Setting];
    /// What only the file has, by its keys.
    const FILE_ONLY: &'static [&'static str];
    /// What the program's environment variables begin with.
    const VARIABLES: &'static str;

    /// The origins of the settings.
    fn origins(&self) -> &SettingOrigins;

    /// The origins of the settings, for adding the file.
    fn origins_mut(&mut self) -> &mut SettingOrigins;

    /// What this says, and for the rest what the other says.
    #[must_use]
    fn or(self, other: Self) -> Self;

    /// Calls `each` with every file and folder that is named.
    fn each_path(&mut self, each: &mut dyn FnMut(Reload, &mut PathBuf));

    /// What a file says. Paths in it are relative to the file, so that it means the same wherever the program is
    /// started.
    ///
    /// # Errors
    /// When the file has an unknown key, or a value of another type.
    fn from_file(file: TomlFile) -> Result<Self, ConfigFileError> {
        let own = Self::SETTINGS.iter().map(|setting| setting.key);
        let known: Vec<_> = own.chain(Self::FILE_ONLY.iter().copied()).collect();
        file.check_keys(&known)?;
        let mut given: Self = file.parse()?;
        let folder = file.path().parent().unwrap_or_else(|| Path::new(""));
        given.each_path(&mut |_, path| *path = folder.join(&*path));
        given.origins_mut().set_file(file);
        Ok(given)
    }

    /// The origin of one setting.
    fn origin(&self, setting: &Setting) -> SettingOrigin {
        self.origins().origin(setting)
    }
}

/// What only the file has, since no flag could hold it.
pub trait FileOnly {
    /// The files that it names.
    fn paths(&mut self) -> Vec<&mut PathBuf>;
}

impl<T: FileOnly> FileOnly for Vec<T> {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.iter_mut().flat_map(FileOnly::paths).collect()
    }
}

/// What flags and environment say, and the file to read for the rest.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Given<S> {
    /// The file.
    pub config: Option<PathBuf>,
    /// What flags and environment say.
    pub source: S,
}

impl<S: GivenSettings> Given<S> {
    /// The file to read, and what counts before it.
    pub fn new(config: Option<PathBuf>, source: S) -> Self {
        Self { config, source }
    }

    /// What the flags and the environment say, and for the rest what the file says.
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub fn merge(self) -> Result<S, ConfigFileError> {
        match self.config {
            Some(path) => Ok(self.source.or(S::from_file(TomlFile::read(&path)?)?)),
            None => Ok(self.source),
        }
    }

    /// The files that a reload reads: the configuration, and those that settings name which it takes over. A
    /// configuration that cannot be read names none.
    pub fn watched(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = self.config.iter().cloned().collect();
        if let Ok(mut given) = self.clone().merge() {
            given.each_path(&mut |reload, path| {
                if !matches!(reload, Reload::Restart) {
                    paths.push(path.clone());
                }
            });
        }
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

impl<S: GivenSettings> Args for Given<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env(format!("{}CONFIG", S::VARIABLES))
            .value_parser(clap::value_parser!(PathBuf))
            .help("Read what the flags and the environment do not say from this TOML file");
        S::augment_args(command.arg(config))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: GivenSettings> FromArgMatches for Given<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            config: matches.get_one("config").cloned(),
            source: S::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Setting {
    /// The flag without dashes before it, which is also the name in the effective configuration.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("{}{}", self.variables, self.key.to_uppercase())
    }

    /// The flag as the command line takes it.
    pub fn to_argument(&self) -> Arg {
        let argument = Arg::new(self.key)
            .long(self.flag())
            .env(self.variable())
            .value_name(self.value_name)
            .help(self.help())
            .help_heading(self.section);
        (self.argument)(argument)
    }

    /// What a setting without a value that is needed is told by, with what it is for.
    pub fn missing(&self, purpose: &str) -> String {
        format!(
            "{self} is missing: {purpose} (or {}, or `{}` in the configuration file)",
            self.variable(),
            self.key
        )
    }

    fn help(&self) -> String {
        let mut help = self.paragraphs().next().unwrap_or_default();
        if let Some(bounds) = (self.bounds)() {
            help += &format!(" [{bounds}]");
        }
        match (self.default)() {
            SettingDefault::Value(value) => help + &format!(" [default: {value}]"),
            SettingDefault::Without("") => help,
            SettingDefault::Without(words) => help + &format!(" [{words}]"),
        }
    }

    /// The paragraphs of its documentation, each on one line.
    fn paragraphs(&self) -> impl Iterator<Item = String> {
        let lines: Vec<_> = self.doc.lines().map(str::trim).collect();
        let paragraphs: Vec<_> = (lines.split(|line| line.is_empty()))
            .filter(|lines| !lines.is_empty())
            .map(|lines| lines.join(" "))
            .collect();
        paragraphs.into_iter()
    }
}

/// The flag with its dashes, `--ping-interval`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.flag())
    }
}

impl Reload {
    /// Whether it takes a restart to come from the first value to the second, both as they are shown.
    pub fn needs_restart(self, before: Option<&str>, after: Option<&str>) -> bool {
        match self {
            Self::AtOnce => false,
            Self::Restart => true,
            Self::Depends(needs_restart) => needs_restart(before, after),
        }
    }
}

/// Its second argument; the first is only named, which the repetitions of [`settings!`](crate::settings!) need.
#[doc(hidden)]
#[macro_export]
macro_rules! __second {
    ($first:expr, $($second:tt)*) => { $($second)* };
}

/// Makes of a table of settings the struct of what was given, the struct of what counts, and a module with a
/// [`Setting`] for each row.
///
/// A row is `name: Type …, "VALUE", reload;` below its documentation, where `VALUE` is what the help calls the value,
/// `reload` is `AtOnce`, `Restart` or `Depends(function)` (see [`Reload`]), and `…` one of
///
/// - `= default`: without the setting this value counts, of the type [`SettingValue::Plain`];
/// - `, else "words"`: without it there is none, and the words say what that means (no words: nothing is said);
/// - `, given "words"`: as before, and only the struct of what was given has it: the program makes something else of it.
#[macro_export]
macro_rules! settings {
    (
        variables $variables:literal;
        $(#[$given_attribute:meta])* given $Given:ident;
        $(#[$settings_attribute:meta])* settings $Settings:ident;
        file_only { $($(#[doc = $only_doc:literal])+ $only:ident: $only_type:ty;)* }
        $($section:literal {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $type:ty
                    $(= $default:expr)?
                    $(, else $without:literal)?
                    $(, given $given_without:literal)?,
                    $value:literal,
                    $reload:ident $(($depends:path))?;
            )+
        })+
    ) => {
        $(#[$given_attribute])*
        #[derive(Debug, Clone, Default, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Given {
            /// The origin of each setting.
            #[serde(skip)]
            pub origins: $crate::setting_origin::SettingOrigins,
            $($(#[doc = $only_doc])+ pub $only: $only_type,)*
            $($($(#[doc = $doc])+ pub $name: Option<$type>,)+)+
        }

        $(#[$settings_attribute])*
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct $Settings {
            $($(
                $(
                    #[doc = concat!(
                        "See [`", stringify!($Given), "::", stringify!($name), "`]; default `",
                        stringify!($default), "`."
                    )]
                    pub $name: <$type as $crate::settings::SettingValue>::Plain,
                )?
                $(
                    #[doc = concat!(
                        "See [`", stringify!($Given), "::", stringify!($name), "`]; no default. ",
                        $without
                    )]
                    pub $name: Option<<$type as $crate::settings::SettingValue>::Plain>,
                )?
            )+)+
        }

        /// The rows of the table, by the names of the settings.
        #[allow(non_upper_case_globals, reason = "they are named as the settings are")]
        pub mod setting {
            #[allow(unused_imports, reason = "what types and defaults need")]
            use super::*;
            use $crate::settings::{Reload, Setting, SettingDefault, SettingValue};

            $($(
                $(#[doc = $doc])+
                pub static $name: Setting = Setting {
                    key: stringify!($name),
                    variables: $variables,
                    section: $section,
                    doc: concat!($($doc, "\n"),+),
                    value_name: $value,
                    $(default: || SettingDefault::Value(<$type as SettingValue>::show(&$default)),)?
                    $(default: || SettingDefault::Without($without),)?
                    $(default: || SettingDefault::Without($given_without),)?
                    bounds: <$type as SettingValue>::bounds,
                    argument: <$type as SettingValue>::argument,
                    reload: Reload::$reload $(($depends))?,
                };
            )+)+
        }

        impl $Given {
            /// What counts: the settings that were given, and the defaults of the others.
            pub fn settings(&self) -> $Settings {
                use $crate::settings::SettingValue;
                $Settings {
                    $($(
                        $($name: self.$name.clone().map_or_else(|| $default, SettingValue::plain),)?
                        $($name: $crate::__second!($without, self.$name.clone().map(SettingValue::plain)),)?
                    )+)+
                }
            }

            /// The settings that the other has not alike. What only the file has is not compared.
            pub fn differences(&self, other: &Self) -> Vec<&'static $crate::settings::Setting> {
                let mut differences = Vec::new();
                $($(
                    if self.$name != other.$name {
                        differences.push(&setting::$name);
                    }
                )+)+
                differences
            }
        }

        impl $Settings {
            /// Calls `each` with every setting that has a value, and that value as it is shown.
            pub fn each_shown(&self, each: &mut dyn FnMut(&'static $crate::settings::Setting, String)) {
                use $crate::settings::SettingValue;
                $($(
                    $(each(
                        &setting::$name,
                        $crate::__second!($default, <$type as SettingValue>::show(&self.$name)),
                    );)?
                    $(if let Some(value) = $crate::__second!($without, &self.$name) {
                        each(&setting::$name, <$type as SettingValue>::show(value));
                    })?
                )+)+
            }

            /// Takes from the settings that are in force those that only the next start takes over.
            pub fn keep_started(&mut self, started: &Self) {
                use $crate::settings::SettingValue;
                $($(
                    $({
                        let show = |settings: &Self| {
                            $crate::__second!($default, <$type as SettingValue>::show(&settings.$name))
                        };
                        let (before, after) = (show(started), show(self));
                        if setting::$name.reload.needs_restart(Some(&before), Some(&after)) {
                            self.$name.clone_from(&started.$name);
                        }
                    })?
                    $({
                        let show = |settings: &Self| {
                            let value = $crate::__second!($without, settings.$name.as_ref());
                            value.map(<$type as SettingValue>::show)
                        };
                        let (before, after) = (show(started), show(self));
                        if setting::$name.reload.needs_restart(before.as_deref(), after.as_deref()) {
                            self.$name.clone_from(&started.$name);
                        }
                    })?
                )+)+
            }
        }

        impl Default for $Settings {
            fn default() -> Self {
                $Given::default().settings()
            }
        }

        impl $crate::settings::GivenSettings for $Given {
            const SETTINGS: &'static [&'static $crate::settings::Setting] =
                &[$($(&setting::$name,)+)+];
            const FILE_ONLY: &'static [&'static str] = &[$(stringify!($only)),*];
            const VARIABLES: &'static str = $variables;

            fn origins(&self) -> &$crate::setting_origin::SettingOrigins {
                &self.origins
            }

            fn origins_mut(&mut self) -> &mut $crate::setting_origin::SettingOrigins {
                &mut self.origins
            }

            fn or(self, other: Self) -> Self {
                Self {
                    origins: self.origins.or(other.origins),
                    $($only: other.$only,)*
                    $($($name: self.$name.or(other.$name),)+)+
                }
            }

            fn each_path(
                &mut self,
                each: &mut dyn FnMut($crate::settings::Reload, &mut ::std::path::PathBuf),
            ) {
                use $crate::settings::SettingValue;
                $(for path in $crate::settings::FileOnly::paths(&mut self.$only) {
                    each($crate::settings::Reload::AtOnce, path);
                })*
                $($(
                    for path in self.$name.iter_mut().flat_map(SettingValue::paths) {
                        each(setting::$name.reload, path);
                    }
                )+)+
            }
        }

        impl ::clap::FromArgMatches for $Given {
            fn from_arg_matches(matches: &::clap::ArgMatches) -> Result<Self, ::clap::Error> {
                use $crate::settings::SettingValue;
                Ok(Self {
                    origins: $crate::setting_origin::SettingOrigins::from_matches(matches),
                    $($only: Default::default(),)*
                    $($($name: <$type>::given(matches, stringify!($name)),)+)+
                })
            }

            fn update_from_arg_matches(
                &mut self,
                matches: &::clap::ArgMatches,
            ) -> Result<(), ::clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl ::clap::Args for $Given {
            fn augment_args(command: ::clap::Command) -> ::clap::Command {
                use $crate::settings::GivenSettings;
                command.args(Self::SETTINGS.iter().map(|setting| setting.to_argument()))
            }

            fn augment_args_for_update(command: ::clap::Command) -> ::clap::Command {
                Self::augment_args(command)
            }
        }
    };
}

#[cfg(test)]
mod tests;
