//! The settings of a program, defined in one table.
//!
//! In: a table ([`settings!`](crate::settings!)) with one row for each setting. Out: two structs, the
//! settings as given ([`GivenSettings`]) and the effective settings with defaults, and a [`Setting`] for
//! each row: its flag with help, its environment variable, its key in the configuration file, its default
//! and bounds, whether a reload applies it, how it is displayed, and which files it names. The programs
//! check what settings mean and whether they are consistent.

mod origin;
mod page;
mod value;

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::de::DeserializeOwned;

/// What reads a value of a flag; here so that a crate with such a value needs nothing else.
pub use clap::builder::ValueParser;

pub use self::origin::{SettingOrigin, SettingOrigins};
pub use self::page::page;
pub use self::value::{OneOrMore, OneOrMorePaths, SettingValue, text_parser};
use crate::config_file::{ConfigFileError, TomlFile};
use crate::faults::FaultyFile;

/// One row of the table. A setting has one name in three spellings: `ping_interval` in the file, `--ping-interval`,
/// `PROGRAM_PING_INTERVAL`.
#[derive(Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    /// The prefix of the program's environment variables, such as `TUNNEL_SERVER_`.
    pub variables: &'static str,
    /// The section of the help and the reference page that lists it.
    pub section: &'static str,
    /// Its documentation. The first paragraph is the flag's help.
    pub doc: &'static str,
    /// The placeholder of its value in the help.
    pub value_name: &'static str,
    /// The default in its text form, or what applies without the setting.
    pub default: fn() -> SettingDefault,
    /// The allowed values, if the type has bounds.
    pub bounds: fn() -> Option<String>,
    /// Configures the flag for the setting's type.
    pub argument: fn(Arg) -> Arg,
    /// Whether a reload applies it.
    pub reload: Reload,
}

/// What applies if a setting is not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingDefault {
    /// This value, in its text form.
    Value(String),
    /// No value. The text says what that means.
    Without(&'static str),
}

/// Whether a running program applies a changed value of a setting.
#[derive(Debug, Clone, Copy)]
pub enum Reload {
    /// Applied as soon as the file has changed.
    AtOnce,
    /// Applied at the next start.
    Restart,
    /// Depends on the change: the function returns whether going from the first value to the second needs a
    /// restart. Both are in their text form; `None` is no value.
    Depends(fn(Option<&str>, Option<&str>) -> bool),
}

/// The settings as given: an `Option` for each row of the table, and the file-only values.
pub trait GivenSettings: Args + Clone + Default + DeserializeOwned {
    /// All rows.
    const SETTINGS: &'static [&'static Setting];
    /// The most used rows, first in the help, and the only ones in the short help.
    const COMMON: &'static [&'static Setting];
    /// The keys of the file-only values.
    const FILE_ONLY: &'static [&'static str];
    /// The prefix of the program's environment variables.
    const VARIABLES: &'static str;

    /// The origins of the settings.
    fn origins(&self) -> &SettingOrigins;

    /// The origins of the settings, for adding the file.
    fn origins_mut(&mut self) -> &mut SettingOrigins;

    /// These settings, completed by those of `other`.
    #[must_use]
    fn or(self, other: Self) -> Self;

    /// Calls `each` with every file and folder that the settings name, and the setting; without one for those of file-only
    /// values, which a reload applies.
    fn each_path(&mut self, each: &mut dyn FnMut(Option<&'static Setting>, &mut PathBuf));

    /// Reads the settings from a file. Its paths are relative to the file, and do not depend on the working
    /// directory.
    ///
    /// # Errors
    /// When the file has an unknown key or an invalid value.
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

    /// A warning for each file with a secret that every user of the machine can read.
    fn readable_secrets(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        self.clone().each_path(&mut |setting, path| {
            let Some(setting) = setting else { return };
            let is_secret = SECRET_ENDS.iter().any(|end| setting.key.ends_with(end));
            let metadata = fs::metadata(&*path).ok();
            let file = metadata.filter(fs::Metadata::is_file);
            let mode = file.map_or(0, |file| file.permissions().mode());
            if is_secret && mode & OTHERS_READ != 0 {
                let origin = self.origin(setting);
                let path = path.display();
                warnings.push(format!(
                    "{origin}: {path} can be read by every user of this machine: chmod o-r {path}"
                ));
            }
        });
        warnings
    }

    /// The origin of the setting that names this file, if one does; of several, of the first with the end of a key that the
    /// fault tells.
    fn origin_of_file(&self, file: FaultyFile<'_>) -> Option<SettingOrigin> {
        let mut naming = Vec::new();
        self.clone().each_path(&mut |setting, path| {
            if path == file.path {
                naming.extend(setting);
            }
        });
        let meant = naming
            .iter()
            .find(|setting| setting.key.ends_with(file.key_end));
        meant
            .or_else(|| naming.first())
            .map(|setting| self.origin(setting))
    }
}

/// How the keys of settings end that name a file with a secret.
const SECRET_ENDS: [&str; 7] = [
    "_key",
    "_key_file",
    "token_file",
    "password_file",
    "auth_file",
    "secret_file",
    "headers_file",
];

/// The bit of a file's mode by which all users may read it.
const OTHERS_READ: u32 = 0o004;

/// A file-only value, which has no flag because it is structured.
pub trait FileOnly {
    /// The files that it names.
    fn paths(&mut self) -> Vec<&mut PathBuf>;
}

impl<T: FileOnly> FileOnly for Vec<T> {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.iter_mut().flat_map(FileOnly::paths).collect()
    }
}

/// The settings from flags and environment, and the path of the file for the others.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Given<S> {
    /// The file.
    pub config: Option<PathBuf>,
    /// The settings from flags and environment.
    pub source: S,
}

impl<S: GivenSettings> Given<S> {
    /// Combines a path of a file with settings that take precedence over it.
    pub fn new(config: Option<PathBuf>, source: S) -> Self {
        Self { config, source }
    }

    /// The settings from flags and environment, completed by the file.
    ///
    /// # Errors
    /// When the file cannot be read or is invalid.
    pub fn merge(self) -> Result<S, ConfigFileError> {
        match self.config {
            Some(path) => Ok(self.source.or(S::from_file(TomlFile::read(&path)?)?)),
            None => Ok(self.source),
        }
    }

    /// The files that a reload reads: the configuration file, and those named by settings that a reload
    /// applies. If the configuration cannot be read, only that file.
    pub fn watched(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = self.config.iter().cloned().collect();
        if let Ok(mut given) = self.clone().merge() {
            given.each_path(&mut |setting, path| {
                if !setting.is_some_and(|setting| matches!(setting.reload, Reload::Restart)) {
                    paths.push(path.clone());
                }
            });
        }
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

/// The flags of a table: first the most used ones. `-h` shows these only, `--help` the others as well, by section.
pub fn arguments<S: GivenSettings>() -> impl Iterator<Item = Arg> {
    let is_common = |setting: &Setting| S::COMMON.iter().any(|common| common.key == setting.key);
    let common = (S::COMMON.iter()).map(|setting| setting.to_argument().help_heading("Most used"));
    let others = (S::SETTINGS.iter())
        .filter(move |setting| !is_common(setting))
        .map(|setting| setting.to_argument().hide_short_help(true));
    common.chain(others)
}

impl<S: GivenSettings> Args for Given<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env(format!("{}CONFIG", S::VARIABLES))
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file with the settings that neither flags nor the environment set");
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
    /// The flag without leading dashes, which is also the name in the effective configuration.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("{}{}", self.variables, self.key.to_uppercase())
    }

    /// The flag as a clap argument.
    pub fn to_argument(&self) -> Arg {
        let argument = Arg::new(self.key)
            .long(self.flag())
            .env(self.variable())
            .value_name(self.value_name)
            .help(self.help())
            .help_heading(self.section);
        (self.argument)(argument)
    }

    /// The error text for a required setting that is not given. `purpose` says what it is for.
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

    /// The paragraphs of its documentation, each as one line.
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
    /// Whether going from the first value to the second needs a restart. Both are in their text form.
    pub fn needs_restart(self, before: Option<&str>, after: Option<&str>) -> bool {
        match self {
            Self::AtOnce => false,
            Self::Restart => true,
            Self::Depends(needs_restart) => needs_restart(before, after),
        }
    }
}

/// Expands to its second argument. The first only drives the repetition in [`settings!`](crate::settings!).
#[doc(hidden)]
#[macro_export]
macro_rules! __second {
    ($first:expr, $($second:tt)*) => { $($second)* };
}

/// Expands a table of settings to the struct of the given settings, the struct of the effective settings,
/// and a module with a [`Setting`] for each row.
///
/// A row is `name: Type …, "VALUE", reload;` after its documentation, where `VALUE` is the placeholder in
/// the help, `reload` is `AtOnce`, `Restart` or `Depends(function)` (see [`Reload`]), and `…` is one of
///
/// - `= default`: the default, of the type [`SettingValue::Plain`];
/// - `, else "words"`: no default; the text says what that means, and may be empty;
/// - `, given "words"`: as with `else`, but only the struct of the given settings has it, for values that
///   the program converts itself.
///
/// `common` names the most used rows ([`GivenSettings::COMMON`]).
#[macro_export]
macro_rules! settings {
    (
        variables $variables:literal;
        $(#[$given_attribute:meta])* given $Given:ident;
        $(#[$settings_attribute:meta])* settings $Settings:ident;
        file_only { $($(#[doc = $only_doc:literal])+ $only:ident: $only_type:ty;)* }
        common { $($common:ident),+ }
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
            pub origins: $crate::settings::SettingOrigins,
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
            /// The effective settings: those that are given, and the defaults of the others.
            pub fn settings(&self) -> $Settings {
                use $crate::settings::SettingValue;
                $Settings {
                    $($(
                        $($name: self.$name.clone().map_or_else(|| $default, SettingValue::plain),)?
                        $($name: $crate::__second!($without, self.$name.clone().map(SettingValue::plain)),)?
                    )+)+
                }
            }

            /// The settings that differ from `other`. File-only values are not compared.
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
            /// Calls `each` with every setting that has a value, and the value in its text form.
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

            /// Keeps the values of `started` for settings whose change needs a restart.
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
            const COMMON: &'static [&'static $crate::settings::Setting] = &[$(&setting::$common),+];
            const FILE_ONLY: &'static [&'static str] = &[$(stringify!($only)),*];
            const VARIABLES: &'static str = $variables;

            fn origins(&self) -> &$crate::settings::SettingOrigins {
                &self.origins
            }

            fn origins_mut(&mut self) -> &mut $crate::settings::SettingOrigins {
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
                each: &mut dyn FnMut(
                    Option<&'static $crate::settings::Setting>,
                    &mut ::std::path::PathBuf,
                ),
            ) {
                use $crate::settings::SettingValue;
                $(for path in $crate::settings::FileOnly::paths(&mut self.$only) {
                    each(None, path);
                })*
                $($(
                    for path in self.$name.iter_mut().flat_map(SettingValue::paths) {
                        each(Some(&setting::$name), path);
                    }
                )+)+
            }
        }

        impl ::clap::FromArgMatches for $Given {
            fn from_arg_matches(matches: &::clap::ArgMatches) -> Result<Self, ::clap::Error> {
                use $crate::settings::SettingValue;
                Ok(Self {
                    origins: $crate::settings::SettingOrigins::from_matches(matches),
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
                command.args($crate::settings::arguments::<Self>())
            }

            fn augment_args_for_update(command: ::clap::Command) -> ::clap::Command {
                Self::augment_args(command)
            }
        }
    };
}

#[cfg(test)]
mod tests;
