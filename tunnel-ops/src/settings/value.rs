//! The types of settings: how each is parsed from a flag, the type that the program uses, and its text
//! form.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{BoolValueParser, PathBufValueParser, StringValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches};
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, SeqAccess, Visitor};

/// A type of settings. In a file it is read by its `Deserialize`.
pub trait SettingValue: Clone + PartialEq + Send + Sync + 'static {
    /// The type that the program uses.
    type Plain: Clone;

    /// Converts the value into the type that the program uses.
    fn plain(self) -> Self::Plain;

    /// The text form of a value, for the effective configuration and the help. Contains no secret.
    fn show(plain: &Self::Plain) -> String;

    /// The parser of a value, or of each value of a list, in a flag or a variable.
    fn parser() -> ValueParser;

    /// The allowed values, for the help.
    fn bounds() -> Option<String> {
        None
    }

    /// The files and folders that the value names.
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }

    /// Configures the flag for this type.
    fn argument(argument: Arg) -> Arg {
        argument.value_parser(Self::parser())
    }

    /// The value from a flag or a variable.
    fn given(matches: &ArgMatches, key: &str) -> Option<Self> {
        matches.get_one(key).cloned()
    }
}

/// A parser of flags by `FromStr`.
pub fn text_parser<T>() -> ValueParser
where
    T: FromStr<Err: std::error::Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    ValueParser::new(T::from_str)
}

/// Implements `Deserialize` and [`SettingValue`] for a type with `FromStr`. The program uses the type
/// itself, whose text form is made by `Display` or by `show`; or another type, given with its conversion,
/// its text form and optionally its bounds.
#[macro_export]
macro_rules! text_value {
    (@impl [$($generics:tt)*] $type:ty, $plain:ty, $show:expr $(, $bounds:expr)?) => {
        impl<'de, $($generics)*> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::config_value::from_text(deserializer)
            }
        }

        impl<$($generics)*> $crate::settings::SettingValue for $type {
            type Plain = $plain;

            fn plain(self) -> Self::Plain {
                self.into()
            }

            fn show(plain: &Self::Plain) -> String {
                let show: fn(&Self::Plain) -> String = $show;
                show(plain)
            }

            fn parser() -> $crate::settings::ValueParser {
                $crate::settings::text_parser::<Self>()
            }

            $(fn bounds() -> Option<String> {
                Some($bounds)
            })?
        }
    };
    (for [$($generics:tt)*] $type:ty as $plain:ty, $into:expr, $show:expr $(, $bounds:expr)?) => {
        impl<$($generics)*> From<$type> for $plain {
            fn from(value: $type) -> Self {
                let into: fn($type) -> Self = $into;
                into(value)
            }
        }

        $crate::text_value!(@impl [$($generics)*] $type, $plain, $show $(, $bounds)?);
    };
    ($type:ty as $plain:ty, $into:expr, $show:expr $(, $bounds:expr)?) => {
        $crate::text_value!(for [] $type as $plain, $into, $show $(, $bounds)?);
    };
    ($type:ty, show = $show:expr) => {
        $crate::text_value!(@impl [] $type, Self, $show);
    };
    ($type:ty $(, $bounds:expr)?) => {
        $crate::text_value!(@impl [] $type, Self, Self::to_string $(, $bounds)?);
    };
}

/// Implements `FromStr`, `Display` and [`SettingValue`] for an enum, with one word for each variant.
#[macro_export]
macro_rules! word_value {
    ($type:ty { $($word:literal => $variant:path),+ $(,)? }) => {
        impl ::std::str::FromStr for $type {
            type Err = $crate::config_value::ValueError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok($variant),)+
                    _ => {
                        let words = $crate::config_value::one_of(&[$($word),+]);
                        Err($crate::config_value::ValueError::new(format!("expected {words}")))
                    }
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    $($variant => $word,)+
                })
            }
        }

        $crate::text_value!($type, $crate::config_value::one_of(&[$($word),+]));
    };
}

/// One or more values. In a file, a single one needs no list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneOrMore<T>(Vec<T>);

/// One or more paths.
pub type OneOrMorePaths = OneOrMore<PathBuf>;

impl<T> OneOrMore<T> {
    /// All values.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> From<Vec<T>> for OneOrMore<T> {
    fn from(values: Vec<T>) -> Self {
        Self(values)
    }
}

impl<T: SettingValue> SettingValue for OneOrMore<T> {
    type Plain = Vec<T::Plain>;

    fn plain(self) -> Self::Plain {
        self.0.plain()
    }

    fn show(plain: &Self::Plain) -> String {
        Vec::<T>::show(plain)
    }

    fn parser() -> ValueParser {
        T::parser()
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.0.paths()
    }

    fn argument(argument: Arg) -> Arg {
        Vec::<T>::argument(argument)
    }

    fn given(matches: &ArgMatches, key: &str) -> Option<Self> {
        Vec::given(matches, key).map(Self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Values<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(text.into_deserializer()).map(|value| vec![value])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(values)
            }
        }

        deserializer.deserialize_any(Values(PhantomData)).map(Self)
    }
}

impl<T: SettingValue> SettingValue for Vec<T> {
    type Plain = Vec<T::Plain>;

    fn plain(self) -> Self::Plain {
        self.into_iter().map(T::plain).collect()
    }

    fn show(plain: &Self::Plain) -> String {
        let values: Vec<_> = plain.iter().map(T::show).collect();
        match values.is_empty() {
            true => "none".to_owned(),
            false => values.join(" "),
        }
    }

    fn parser() -> ValueParser {
        T::parser()
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.iter_mut().flat_map(T::paths).collect()
    }

    fn argument(argument: Arg) -> Arg {
        T::argument(argument)
            .action(ArgAction::Append)
            .value_delimiter(',')
    }

    fn given(matches: &ArgMatches, key: &str) -> Option<Self> {
        let values = matches.get_many(key)?;
        Some(values.cloned().collect())
    }
}

impl SettingValue for PathBuf {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    /// The absolute path, which does not depend on the working directory.
    fn show(path: &Self) -> String {
        let absolute = std::path::absolute(path);
        let path = absolute.as_deref().unwrap_or(path);
        Path::display(path).to_string()
    }

    fn parser() -> ValueParser {
        PathBufValueParser::new().into()
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        vec![self]
    }
}

impl SettingValue for String {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn show(text: &Self) -> String {
        text.clone()
    }

    fn parser() -> ValueParser {
        StringValueParser::new().into()
    }
}

impl SettingValue for bool {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn show(truth: &Self) -> String {
        truth.to_string()
    }

    fn parser() -> ValueParser {
        BoolValueParser::new().into()
    }

    /// The flag alone means true.
    fn argument(argument: Arg) -> Arg {
        argument
            .value_parser(Self::parser())
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
    }
}
