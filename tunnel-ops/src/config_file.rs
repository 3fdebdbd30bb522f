//! Configuration files in TOML, with errors that locate the fault.
//!
//! In: a path and a serde type that refuses unknown fields. Out: the value, or an error with file, line,
//! column, key and what was expected. The meaning of values is not checked here: a caller that finds a
//! fault later creates such an error with [`TomlFile::error_at`].

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

/// The text of a TOML file, kept so that faults found after parsing can be located.
#[derive(Debug, Clone)]
pub struct TomlFile {
    path: PathBuf,
    text: String,
    /// The offset at which each line begins. Made for the first position that is asked for, so that a position costs
    /// no walk through the text.
    line_starts: OnceLock<Vec<usize>>,
}

/// A fault in a configuration file, or the failure to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFileError {
    path: PathBuf,
    position: Option<Position>,
    key: Option<String>,
    problem: String,
}

/// A position in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line, counted from one.
    pub line: usize,
    /// The column in characters, counted from one.
    pub column: usize,
}

/// Reads `path` into `T`, which should refuse unknown fields, so that misspelt keys are errors.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigFileError> {
    TomlFile::read(path)?.parse()
}

impl TomlFile {
    /// Reads the file's text.
    pub fn read(path: &Path) -> Result<Self, ConfigFileError> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self::from_text(path, text)),
            Err(error) => Err(ConfigFileError::unreadable(path, &error)),
        }
    }

    /// Wraps text that is already in memory; `path` is used in errors only.
    pub fn from_text(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
            line_starts: OnceLock::new(),
        }
    }

    /// The path of the file, as in errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parses the text into `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigFileError> {
        toml::from_str(&self.text).map_err(|error| self.error(&error))
    }

    /// Creates an error about the range `span` of the text, as `toml::Spanned` gives it.
    pub fn error_at(
        &self,
        span: Range<usize>,
        key: &str,
        problem: impl Into<String>,
    ) -> ConfigFileError {
        ConfigFileError {
            path: self.path.clone(),
            position: Some(self.position(span.start)),
            key: (!key.is_empty()).then(|| key.to_owned()),
            problem: problem.into(),
        }
    }

    /// The position of a key of the top-level table; `None` if it is missing or the text is not TOML.
    pub fn position_of(&self, key: &str) -> Option<Position> {
        let table = DeTable::parse(&self.text).ok()?;
        let mut keys = table.get_ref().iter().map(|(key, _)| key);
        let found = keys.find(|found| found.get_ref().as_ref() == key)?;
        Some(self.position(found.span().start))
    }

    /// The line of an offset in the text, counted from one.
    pub fn line_of(&self, offset: usize) -> usize {
        self.line_starts().partition_point(|start| *start <= offset)
    }

    fn position(&self, offset: usize) -> Position {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let line = self.line_of(end);
        let line_start = self.line_starts().get(line - 1).copied();
        let before = self.text.get(line_start.unwrap_or_default()..end);
        let column = before.unwrap_or_default().chars().count() + 1;
        Position { line, column }
    }

    fn line_starts(&self) -> &[usize] {
        self.line_starts.get_or_init(|| {
            let ends = self.text.bytes().enumerate();
            let after = ends.filter_map(|(at, byte)| (byte == b'\n').then_some(at + 1));
            std::iter::once(0).chain(after).collect()
        })
    }

    /// Refuses unknown keys of the top-level table. For the settings; other files rely on `deny_unknown_fields` of serde.
    ///
    /// # Errors
    /// Names the first unknown key, and the known one that was most likely meant.
    pub fn check_keys(&self, known: &[&str]) -> Result<(), ConfigFileError> {
        // Text that is not TOML has no keys. Parsing reports what is wrong with it.
        let Ok(table) = DeTable::parse(&self.text) else {
            return Ok(());
        };
        let keys = table.get_ref().iter().map(|(key, _)| key);
        let mut unknown: Vec<_> = keys
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .collect();
        unknown.sort_unstable_by_key(|key| key.span().start);
        match unknown.first() {
            Some(key) => {
                let problem = unknown_key(key.get_ref(), known);
                Err(self.error_at(key.span(), "", problem))
            }
            None => Ok(()),
        }
    }

    fn error(&self, error: &toml::de::Error) -> ConfigFileError {
        let span = error.span();
        let key = span
            .as_ref()
            .and_then(|span| key_at(&self.text, span.start));
        ConfigFileError {
            path: self.path.clone(),
            position: span.map(|span| self.position(span.start)),
            key,
            problem: one_line(error.message()),
        }
    }
}

impl ConfigFileError {
    fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self {
            path: path.to_owned(),
            position: None,
            key: None,
            problem: format!("cannot be read: {error}"),
        }
    }

    /// The file with the fault.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The position of the fault, if it has one.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// The key whose value is at fault, if there is one.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The fault, without its place.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for ConfigFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some(Position { line, column }) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        if let Some(key) = &self.key {
            write!(f, " {key}:")?;
        }
        write!(f, " {}", self.problem)
    }
}

impl std::error::Error for ConfigFileError {}

/// The dotted key whose own text or value contains this offset; `None` if the text is not TOML.
fn key_at(text: &str, offset: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    let mut keys = keys_at(table.get_ref(), offset)?;
    keys.reverse();
    Some(keys.join("."))
}

/// The path of keys from `table` to `offset`, the innermost first; `None` if no key or value is there.
fn keys_at(table: &DeTable<'_>, offset: usize) -> Option<Vec<String>> {
    for (key, value) in table {
        let within = value_keys_at(value.get_ref(), offset);
        let is_here = || {
            [key.span(), value.span()]
                .iter()
                .any(|span| span.contains(&offset))
        };
        if let Some(mut keys) = within.or_else(|| is_here().then(Vec::new)) {
            keys.push(key.get_ref().to_string());
            return Some(keys);
        }
    }
    None
}

fn value_keys_at(value: &DeValue<'_>, offset: usize) -> Option<Vec<String>> {
    match value {
        DeValue::Table(table) => keys_at(table, offset),
        DeValue::Array(values) => values.iter().find_map(|value| {
            let here = || value.span().contains(&offset).then(Vec::new);
            value_keys_at(value.get_ref(), offset).or_else(here)
        }),
        _ => None,
    }
}

/// Most known keys that an error lists: with more of them nobody finds the one.
const LISTED_KEYS: usize = 12;

fn unknown_key(key: &str, known: &[&str]) -> String {
    let in_file = format!("{key}_file");
    if known.contains(&&*in_file) {
        return format!(
            "unknown key `{key}`: put the value into a file of its own, and name that as `{in_file}`"
        );
    }
    match closest(key, known) {
        Some(name) => format!("unknown key `{key}`, did you mean `{name}`?"),
        None if known.len() > LISTED_KEYS => {
            format!(
                "unknown key `{key}`: `--help` lists the settings, whose names here have `_` in place of `-`"
            )
        }
        None => format!("unknown key `{key}`, expected one of {}", known.join(", ")),
    }
}

/// The known name that was most likely meant by `given`.
fn closest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    // A third of the letters may differ: enough for a typing error, too few for a nonsensical suggestion.
    let limit = (given.chars().count() / 3).max(1);
    let given = given.to_lowercase().replace('-', "_");
    known
        .iter()
        .map(|name| (distance(&given, name), *name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// The Levenshtein distance: letters to add, remove or change.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.chars().enumerate() {
        let mut diagonal = i;
        let mut previous = i + 1;
        for (slot, r) in row.iter_mut().skip(1).zip(&right) {
            let change = diagonal + usize::from(l != *r);
            diagonal = *slot;
            *slot = change.min(previous + 1).min(diagonal + 1);
            previous = *slot;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::config_value::DurationText;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[expect(dead_code, reason = "only parsed")]
        ping_interval: Option<DurationText>,
        #[expect(dead_code, reason = "only parsed")]
        limits: Option<Limits>,
        #[expect(dead_code, reason = "only parsed")]
        #[serde(default)]
        thing: Vec<Thing>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        #[expect(dead_code, reason = "only parsed")]
        name: String,
        #[expect(dead_code, reason = "only parsed")]
        list: Option<Vec<String>>,
        #[expect(dead_code, reason = "only parsed")]
        is_on: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Limits {
        #[expect(dead_code, reason = "only parsed")]
        exchanges: Option<u32>,
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let error = TomlFile::from_text("s.toml", text)
            .parse::<Sample>()
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_error_names_position_and_key() {
        check(
            "# first\nping_interval = 5\n",
            "s.toml:2:17: ping_interval: a duration needs a unit, such as `5s`, `250ms` or `10m`",
        );
        check(
            "ping_interval = true",
            "s.toml:1:17: ping_interval: expected a duration such as `5s`, `250ms` or `10m`: expected number at 0",
        );
        check(
            "ping_interval = 99999999999999999999",
            "s.toml:1:17: ping_interval: a duration needs a unit, such as `5s`, `250ms` or `10m`",
        );
        // The message is the parser's; file, line, column and key are added here.
        for (text, place) in [
            ("[limits]\nexchanges = \"many\"", "2:13: limits.exchanges: "),
            ("[limits]\n exchange = 1", "2:2: limits.exchange: "),
            ("ping_interval = [\"5s\"]", "1:17: ping_interval: "),
            ("[[thing]]\nname = 5\n", "2:8: thing.name: "),
            ("thing = [{ name = 5 }]\n", "1:19: thing.name: "),
            (
                "[[thing]]\nname = \"a\"\nlist = [\"GET\", 5]\n",
                "3:16: thing.list: ",
            ),
            ("[thing]\nname = \"a\"\n", "1:1: thing: "),
            ("[[thing]]\n# no name\nlist = []\n", "1:1: thing: "),
        ] {
            let error = TomlFile::from_text("s.toml", text)
                .parse::<Sample>()
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("s.toml:{place}")),
                "{text}{error}"
            );
        }
    }

    #[test]
    fn only_top_level_keys_are_found() {
        let text = "# ping_interval = 1\n\n  ping_interval = \"1s\"\n[limits]\nexchanges = 1\n";
        let file = TomlFile::from_text("s.toml", text);
        let place = file.position_of("ping_interval");
        assert_eq!(place, Some(Position { line: 3, column: 3 }));
        assert_eq!(file.position_of("exchanges"), None);
        assert_eq!(file.position_of("limits").map(|place| place.line), Some(4));
    }

    #[test]
    fn invalid_toml_is_reported_with_its_position() {
        let error = TomlFile::from_text("s.toml", "ok = 1\nü = [1\n")
            .parse::<Sample>()
            .unwrap_err();
        assert_eq!(error.position().map(|p| p.line), Some(2), "{error}");
    }

    #[test]
    fn an_error_names_a_missing_file() {
        let error = load::<Sample>(Path::new("/nowhere/s.toml"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/nowhere/s.toml: cannot be read: "),
            "{error}"
        );
    }

    #[test]
    fn columns_count_characters_and_stay_within_the_text() {
        let text = "ä = \"ö\"\nü";
        let position = |text: &str, offset| TomlFile::from_text("s.toml", text).position(offset);
        assert_eq!(position(text, text.len()), Position { line: 2, column: 2 });
        assert_eq!(position(text, 3), Position { line: 1, column: 3 });
        assert_eq!(position(text, 1), Position { line: 1, column: 1 });
        assert_eq!(position("", 9), Position { line: 1, column: 1 });
        // The line break belongs to the line that it ends.
        assert_eq!(position("a\n\nb", 1), Position { line: 1, column: 2 });
        assert_eq!(position("a\n\nb", 2), Position { line: 2, column: 1 });
        assert_eq!(position("a\n\nb", 3), Position { line: 3, column: 1 });
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,80}") {
            let _ = TomlFile::from_text("s.toml", text).parse::<Sample>();
        }

        #[test]
        fn distance_is_symmetric(a in "[a-d]{0,8}", b in "[a-d]{0,8}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
        }
    }
}
