//! Configuration files in TOML, and errors that say where in them the fault is.
//!
//! In comes a path and a serde type that refuses unknown fields; out comes the value, or an error
//! with file, line, column, key, what was expected and what to write instead. It never looks at what a
//! value means: a caller that finds a fault later asks [`TomlFile::error_at`] for an error with the same
//! shape.

pub(crate) mod explain;

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::de::DeTable;

use self::explain::Told;

/// A TOML file as read: its text is kept, so that faults found after parsing can still name their
/// line.
#[derive(Debug, Clone)]
pub struct TomlFile {
    path: PathBuf,
    text: String,
}

/// A fault in a configuration file, or the failure to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFileError {
    path: PathBuf,
    position: Option<Position>,
    key: Option<String>,
    problem: String,
}

/// A place in a file, both counted from one; columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Line, from one.
    pub line: usize,
    /// Column, from one.
    pub column: usize,
}

/// Reads `path` into `T`. `T` should refuse unknown fields, so that a misspelt key never goes
/// unnoticed.
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

    /// Takes text that is already in memory; `path` is only what errors call it.
    pub fn from_text(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    /// The file's name, as errors give it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text as read.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parses the text into `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigFileError> {
        toml::from_str(&self.text).map_err(|error| self.explain(error, &top_keys::<T>()))
    }

    /// An error about the bytes `span` of the text, as `toml::Spanned` gives them.
    pub fn error_at(
        &self,
        span: Range<usize>,
        key: &str,
        problem: impl Into<String>,
    ) -> ConfigFileError {
        ConfigFileError {
            path: self.path.clone(),
            position: Some(position(&self.text, span.start)),
            key: (!key.is_empty()).then(|| key.to_owned()),
            problem: problem.into(),
        }
    }

    /// Where a key of the top table stands, if it does and the text is TOML.
    pub fn position_of(&self, key: &str) -> Option<Position> {
        let table = DeTable::parse(&self.text).ok()?;
        let mut keys = table.get_ref().iter().map(|(key, _)| key);
        let found = keys.find(|found| found.get_ref().as_ref() == key)?;
        Some(position(&self.text, found.span().start))
    }

    fn explain(&self, mut error: toml::de::Error, top: &[String]) -> ConfigFileError {
        let message = one_line(error.message());
        let span = error.span();
        // The keys on the way to the fault are only in the text form, and only without the input.
        error.set_input(None);
        let keys = key_path(&error.to_string()).unwrap_or_default();
        let told = Told {
            text: &self.text,
            message: &message,
            span: span.clone().unwrap_or_default(),
            key: &keys,
            top,
        };
        let problem = told.sentence();
        // An unknown key is named by the sentence itself.
        let names_itself = explain::unknown_field(&message).is_some();
        ConfigFileError {
            path: self.path.clone(),
            position: span.map(|span| position(&self.text, span.start)),
            key: (!keys.is_empty() && !names_itself).then_some(keys),
            problem,
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

    /// The file the fault is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where in the file, when the fault has a place.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// The key whose value is at fault, when there is one.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
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

/// The keys that `T` knows, as it says itself of one that it cannot know; none where it takes any.
fn top_keys<T: DeserializeOwned>() -> Vec<String> {
    let error = toml::from_str::<T>("\"\" = 0").err();
    let message = error.map(|error| error.message().to_owned());
    let known = message.as_deref().and_then(explain::unknown_field);
    let known = known.map(|(_, known)| known).unwrap_or_default();
    known.into_iter().map(str::to_owned).collect()
}

/// The dotted key in the last line of the parser's text: "in `a.b`".
fn key_path(text: &str) -> Option<String> {
    let last = text.trim_end().lines().last()?;
    let key = last.strip_prefix("in `")?.strip_suffix('`')?;
    Some(key.to_owned())
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

fn position(text: &str, offset: usize) -> Position {
    let mut start = offset.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let before = text.get(..start).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    Position { line, column }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::explain::distance;
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
    fn an_unknown_key_is_named_with_its_place_and_the_likely_one() {
        check(
            "\nping_intervall = \"5s\"\n",
            "s.toml:2:1: unknown key `ping_intervall`, did you mean `ping_interval`?",
        );
        check(
            "ping-interval = \"5s\"\n",
            "s.toml:1:1: unknown key `ping-interval`, did you mean `ping_interval`?",
        );
        check(
            "colour = 1",
            "s.toml:1:1: unknown key `colour`, expected one of ping_interval, limits, thing",
        );
        check(
            "[limits]\n exchange = 1",
            "s.toml:2:2: unknown key `exchange`, did you mean `exchanges`?",
        );
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key_place_and_what_was_expected() {
        check(
            "# first\nping_interval = 5\n",
            "s.toml:2:17: ping_interval: a duration needs a unit, such as `5s`, `250ms` or `10m`",
        );
        check(
            "[limits]\nexchanges = \"many\"",
            "s.toml:2:13: limits.exchanges: expected a whole number such as `3`, not text",
        );
        check(
            "[limits]\nexchanges = \"7\"",
            "s.toml:2:13: limits.exchanges: expected a whole number without quotes: write `exchanges = 7`",
        );
        check(
            "ping_interval = true",
            "s.toml:1:17: ping_interval: expected a duration such as `5s`, `250ms` or `10m`: expected number at 0",
        );
        check(
            "ping_interval = 99999999999999999999",
            "s.toml:1:17: ping_interval: a duration needs a unit, such as `5s`, `250ms` or `10m`",
        );
        check(
            "ping_interval = 2026-11-22",
            "s.toml:1:17: ping_interval: expected one value, not a date or a time",
        );
        check(
            "ping_interval = [\"5s\"]",
            "s.toml:1:17: ping_interval: expected one value, not a list",
        );
    }

    #[test]
    fn what_has_the_wrong_form_is_told_how_to_be_written() {
        for (text, expected) in [
            (
                "[thing]\nname = \"a\"\n",
                "s.toml:1:1: thing: there can be several of them: write `[[thing]]`, in two pairs of brackets",
            ),
            (
                "[[limits]] # none\nexchanges = 1\n",
                "s.toml:1:1: limits: there is only one of it: write `[limits]`, in one pair of brackets",
            ),
            (
                "limits = 5\n",
                "s.toml:1:10: limits: expected a table, not a number: write `limits = { … }`",
            ),
            (
                "[[thing]]\nname = 5\n",
                "s.toml:2:8: thing.name: expected text in quotes, not a number: write `name = \"5\"`",
            ),
            (
                "[[thing]]\nname = \"a\"\nlist = \"GET\"\n",
                "s.toml:3:8: thing.list: expected a list, not text: write `list = [\"GET\"]`",
            ),
            (
                "[[thing]]\nname = \"a\"\nlist = [\"GET\", 5]\n",
                "s.toml:3:16: thing.list: expected text in quotes, not a number: write `\"5\"`",
            ),
            (
                "[[thing]]\nname = \"a\"\nis_on = \"yes\"\n",
                "s.toml:3:9: thing.is_on: expected `true` or `false` without quotes, not text",
            ),
            (
                "[[thing]]\n# no name\nlist = []\n",
                "s.toml:1:1: thing: `name` is missing: each `[[thing]]` needs it",
            ),
            (
                "thing = [{ list = [] }]\n",
                "s.toml:1:10: thing: `name` is missing in `thing`",
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn a_key_of_the_top_below_a_table_is_told_to_belong_to_the_top() {
        check(
            "[[thing]]\nname = \"a\"\nping_interval = \"5s\"\n",
            "s.toml:3:1: `ping_interval` belongs to the top of the file, above the first `[…]`",
        );
        check(
            "[[thing]]\nname = \"a\"\nping_intervall = \"5s\"\n",
            "s.toml:3:1: unknown key `ping_intervall`, expected one of name, list, is_on",
        );
    }

    #[test]
    fn what_stands_twice_is_named_with_both_places() {
        for (text, expected) in [
            (
                "# one\nping_interval = \"1s\"\n\nping_interval = \"2s\"\n",
                "s.toml:4:1: `ping_interval` stands twice, first in line 2: leave one of them out",
            ),
            (
                "[[thing]]\nname = \"a\"\n[[thing]]\nname = \"b\"\nname = \"c\"\n",
                "s.toml:5:1: `name` stands twice, first in line 4: leave one of them out",
            ),
            (
                "[thing]\nname = \"a\"\n[thing]\nname = \"b\"\n",
                "s.toml:3:2: `[thing]` stands twice, first in line 1: put all of it behind one of them, or write \
                 `[[thing]]` for each if there can be several",
            ),
            (
                "[thing]\nname = \"a\"\n[[thing]]\nname = \"b\"\n",
                "s.toml:3:3: `thing` is written in two ways, in line 1 as `[thing]`: write `[[thing]]` in both places \
                 if there can be several",
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn what_is_no_toml_is_told_in_words() {
        for (text, expected) in [
            (
                "ping_interval = 5s\n",
                "text must stand in quotes: write `ping_interval = \"…\"`",
            ),
            ("ping_interval\n", "there is no value: write `key = value`"),
            (
                "ping_interval = \n",
                "there is no value: write `key = value`",
            ),
            (
                "ping_interval = \"5s\n",
                "text in quotes ends with a quote on the same line",
            ),
            ("thing = [1, 2\n", "a list is not closed: it ends with `]`"),
            (
                "[thing\n",
                "the name of a table is not closed: it ends with `]`",
            ),
        ] {
            let error = TomlFile::from_text("s.toml", text)
                .parse::<Sample>()
                .unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
            assert_eq!(error.position().map(|place| place.line), Some(1), "{error}");
        }
    }

    #[test]
    fn a_key_of_the_top_is_found_and_no_other() {
        let text = "# ping_interval = 1\n\n  ping_interval = \"1s\"\n[limits]\nexchanges = 1\n";
        let file = TomlFile::from_text("s.toml", text);
        let place = file.position_of("ping_interval");
        assert_eq!(place, Some(Position { line: 3, column: 3 }));
        assert_eq!(file.position_of("exchanges"), None);
        assert_eq!(file.position_of("limits").map(|place| place.line), Some(4));
    }

    #[test]
    fn broken_toml_is_named_with_its_place() {
        let error = TomlFile::from_text("s.toml", "ok = 1\nü = [1\n")
            .parse::<Sample>()
            .unwrap_err();
        assert_eq!(error.position().map(|p| p.line), Some(2), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = load::<Sample>(Path::new("/nowhere/s.toml"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/nowhere/s.toml: cannot be read: "),
            "{error}"
        );
    }

    #[test]
    fn columns_count_characters_and_never_leave_the_text() {
        let text = "ä = \"ö\"\nü";
        assert_eq!(position(text, text.len()), Position { line: 2, column: 2 });
        assert_eq!(position(text, 3), Position { line: 1, column: 3 });
        assert_eq!(position(text, 1), Position { line: 1, column: 1 });
        assert_eq!(position("", 9), Position { line: 1, column: 1 });
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            let _ = TomlFile::from_text("s.toml", text).parse::<Sample>();
        }

        #[test]
        fn distance_is_symmetric(a in "[a-d]{0,8}", b in "[a-d]{0,8}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
        }
    }
}
