//! From what the TOML parser and serde say to what a person needs: what is wrong, and what to write instead.
//!
//! In: the parser's words, the keys on the way to the fault and the file's text. Out: one sentence. The parser's
//! words are known here and nowhere else; those that are not are passed on, so that nothing is ever hidden.

use std::ops::Range;

/// What [`crate::config_value::from_text`] expects.
pub(crate) const ONE_VALUE: &str = "one value";

/// What the parser says where it finds nothing that it knows.
const UNQUOTED: &str = "string values must be quoted";

const NO_VALUE: &str = "there is no value: write `key = value`";

/// Longest value that is repeated in a sentence.
const SHOWN: usize = 60;

/// A fault as the parser tells it.
pub(super) struct Told<'a> {
    /// The whole file.
    pub(super) text: &'a str,
    /// The parser's words.
    pub(super) message: &'a str,
    /// The bytes that they are about.
    pub(super) span: Range<usize>,
    /// The keys on the way there, with dots; empty at the top.
    pub(super) key: &'a str,
    /// The keys that can stand at the top.
    pub(super) top: &'a [String],
}

/// What a key wants to have.
enum Wanted<'a> {
    Text,
    Truth,
    Number,
    List,
    Table,
    /// Anything but lists and tables.
    OneValue,
    /// What its own type says.
    Other(&'a str),
}

/// What it was given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Text,
    Truth,
    Number,
    Moment,
    List,
    Table,
}

impl Told<'_> {
    /// The sentence.
    pub(super) fn sentence(&self) -> String {
        let message = self.message;
        if let Some((key, known)) = unknown_field(message) {
            let is_of_top = !self.key.is_empty() && self.top.iter().any(|top| top == key);
            return match is_of_top {
                // All that stands below a table's header is the table's.
                true => format!("`{key}` belongs to the top of the file, above the first `[…]`"),
                false => unknown_key(key, &known),
            };
        }
        if message == "duplicate key" {
            return self.stands_twice();
        }
        if let Some(name) = quoted_after(message, "missing field `") {
            return self.lacks(name);
        }
        if let Some((found, expected)) = typed(message) {
            // A moment is handed over as a table.
            let found = match self.raw().starts_with(|first: char| first.is_ascii_digit()) {
                true if found == Found::Table => Found::Moment,
                _ => found,
            };
            return self.mistyped(found, &wanted(expected));
        }
        if let Some(known) = message.strip_prefix("unknown variant ") {
            let known = known.split_once(", ").map_or(known, |(_, known)| known);
            return known.to_owned();
        }
        match self.key.is_empty() {
            true if self.raw().is_empty() && message.starts_with(UNQUOTED) => NO_VALUE.to_owned(),
            true if message.starts_with(UNQUOTED) => {
                // Not the text itself, in which there may be a password.
                let key = self
                    .line()
                    .split_once('=')
                    .map_or("key", |(key, _)| key.trim());
                format!("text must stand in quotes: write `{key} = \"…\"`")
            }
            true => syntax(message).unwrap_or_else(|| message.to_owned()),
            false => message.to_owned(),
        }
    }

    /// The text that it is about.
    fn raw(&self) -> &str {
        self.text.get(self.span.clone()).unwrap_or_default().trim()
    }

    /// The line in which it begins.
    fn line(&self) -> &str {
        let before = self.text.get(..self.span.start).unwrap_or_default();
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let rest = self.text.get(begin..).unwrap_or_default();
        rest.lines().next().unwrap_or_default().trim()
    }

    /// The last of its keys.
    fn last_key(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or_default()
    }

    /// The table header that it is about, such as `[route]`, if it is about one.
    fn header(&self) -> Option<&str> {
        let is_own = self.raw().starts_with('[') || header_name(self.line()).is_some();
        let line = self.line();
        header_name(line).filter(|_| is_own).map(|_| line)
    }

    /// How it should be written, with its key where it stands right behind that.
    fn written(&self, value: &str) -> String {
        let before = self.text.get(..self.span.start).unwrap_or_default();
        match before.trim_end().ends_with('=') {
            true => format!("write `{} = {value}`", self.last_key()),
            false => format!("write `{value}`"),
        }
    }

    /// Its text, if that can be repeated, else something in its place.
    fn shown<'s>(&'s self, instead: &'s str) -> &'s str {
        let raw = self.raw();
        let fits = !raw.is_empty() && raw.len() <= SHOWN && !raw.contains(char::is_control);
        if fits { raw } else { instead }
    }

    fn stands_twice(&self) -> String {
        let (line, first) = (self.line(), self.first_line());
        let place = first.map_or_else(String::new, |(number, _)| {
            format!(", first in line {number}")
        });
        let Some(name) = header_name(line) else {
            let key = self.shown("it");
            return format!("`{key}` stands twice{place}: leave one of them out");
        };
        match first {
            // One of the two was meant to be as the other is.
            Some((number, before)) if before.starts_with("[[") != line.starts_with("[[") => {
                format!(
                    "`{name}` is written in two ways, in line {number} as `{before}`: write `[[{name}]]` in both places \
                 if there can be several"
                )
            }
            _ => format!(
                "`[{name}]` stands twice{place}: put all of it behind one of them, or write `[[{name}]]` for each if \
                 there can be several"
            ),
        }
    }

    /// Where the key of this line stood before, and the line.
    fn first_line(&self) -> Option<(usize, &str)> {
        let before = self.text.get(..self.span.start)?;
        let count = before.matches('\n').count();
        let lines = || self.text.lines().zip(1..).take(count);
        let own = header_name(self.line());
        if let Some(own) = own {
            let same = |line: &&str| header_name(line).is_some_and(|name| name == own);
            return lines()
                .map(|(line, number)| (number, line.trim()))
                .find(|(_, line)| same(line));
        }
        // Within the same table.
        let mut found = None;
        for (line, number) in lines() {
            let line = line.trim();
            if header_name(line).is_some() {
                found = None;
            }
            let key = line.split_once('=').map(|(key, _)| key.trim());
            if found.is_none() && key == Some(self.raw()) {
                found = Some((number, line));
            }
        }
        found
    }

    fn lacks(&self, name: &str) -> String {
        match (self.header(), self.key) {
            (Some(header), _) if header.starts_with("[[") => {
                format!(
                    "`{name}` is missing: each `{}` needs it",
                    without_comment(header)
                )
            }
            (Some(header), _) => {
                format!(
                    "`{name}` is missing: `{}` needs it",
                    without_comment(header)
                )
            }
            (None, "") => format!("`{name}` is missing: add it at the top of the file"),
            (None, _) => format!("`{name}` is missing in `{}`", self.last_key()),
        }
    }

    fn mistyped(&self, found: Found, wanted: &Wanted<'_>) -> String {
        let (key, header) = (self.last_key(), self.header());
        let name = header.and_then(header_name);
        match (wanted, found, name) {
            (_, Found::Table | Found::List, Some(name)) if header.is_some_and(is_of_several) => {
                return format!(
                    "there is only one of it: write `[{name}]`, in one pair of brackets"
                );
            }
            (Wanted::List, Found::Table, Some(name)) => {
                return format!(
                    "there can be several of them: write `[[{name}]]`, in two pairs of brackets"
                );
            }
            (Wanted::List, ..) => {}
            (Wanted::Table, ..) => {}
            (_, Found::Table, Some(_)) => {
                let header = header.unwrap_or_default();
                return format!(
                    "expected a value, and `{header}` begins a table: write `{key} = …` above it"
                );
            }
            _ => {}
        }
        let not = found.words();
        match wanted {
            Wanted::Text => {
                let text = match found {
                    Found::List | Found::Table => "\"…\"".to_owned(),
                    _ => format!("\"{}\"", self.shown("…").trim_matches(['"', '\''])),
                };
                format!(
                    "expected text in quotes, not {not}: {}",
                    self.written(&text)
                )
            }
            Wanted::Truth => format!("expected `true` or `false` without quotes, not {not}"),
            Wanted::Number => {
                let raw = self.raw().trim_matches(['"', '\'']);
                let is_number = raw.parse::<i64>().is_ok();
                match is_number {
                    true => format!(
                        "expected a whole number without quotes: {}",
                        self.written(raw)
                    ),
                    false => format!("expected a whole number such as `3`, not {not}"),
                }
            }
            Wanted::List => {
                let list = format!("[{}]", self.shown("…"));
                format!("expected a list, not {not}: {}", self.written(&list))
            }
            Wanted::Table => {
                format!("expected a table, not {not}: {}", self.written("{ … }"))
            }
            Wanted::OneValue => format!("expected one value, not {not}"),
            Wanted::Other(words) => format!("expected {words}, not {not}"),
        }
    }
}

impl Found {
    fn words(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Truth => "`true` or `false`",
            Self::Number => "a number",
            Self::Moment => "a date or a time",
            Self::List => "a list",
            Self::Table => "a table",
        }
    }
}

/// What serde's words for a wrong type say was found and expected; "invalid length" is about lists given where
/// a table should be.
fn typed(message: &str) -> Option<(Found, &str)> {
    if let Some(rest) = message.strip_prefix("invalid length ") {
        return Some((Found::List, rest.split_once(", expected ")?.1));
    }
    let rest = (message.strip_prefix("invalid type: "))
        .or_else(|| message.strip_prefix("invalid value: "))?;
    // A text that was found may hold anything, what is expected is ours.
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let found = match found.split([' ', ',']).next()? {
        "string" | "character" => Found::Text,
        "boolean" => Found::Truth,
        "integer" | "floating" => Found::Number,
        "sequence" => Found::List,
        "map" => Found::Table,
        "datetime" | "date" | "time" => Found::Moment,
        _ => return None,
    };
    Some((found, expected))
}

fn wanted(expected: &str) -> Wanted<'_> {
    match expected {
        "a string" | "path string" | "a character" => Wanted::Text,
        "a boolean" => Wanted::Truth,
        "a sequence" => Wanted::List,
        "a map" => Wanted::Table,
        ONE_VALUE => Wanted::OneValue,
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => {
            Wanted::Number
        }
        words if words.starts_with("struct ") => Wanted::Table,
        words => Wanted::Other(words),
    }
}

/// What is wrong with a text that is no TOML; `None` where the parser's own words are good.
fn syntax(message: &str) -> Option<String> {
    let known = [
        ("key with no value", NO_VALUE),
        ("missing value for key", NO_VALUE),
        (
            "invalid basic string",
            "text in quotes ends with a quote on the same line, and a backslash in it is written twice",
        ),
        (
            "invalid literal string",
            "text in quotes ends with a quote on the same line",
        ),
        (
            "missing opening quote",
            "this text ends with a quote and begins without one",
        ),
        ("unclosed array", "a list is not closed: it ends with `]`"),
        (
            "unclosed inline table",
            "a table is not closed: it ends with `}`",
        ),
        (
            "unclosed table",
            "the name of a table is not closed: it ends with `]`",
        ),
        ("missing comma between", "a comma is missing before this"),
        (
            "invalid unquoted key",
            "a key has letters, digits, `_` and `-` alone",
        ),
        (
            "unexpected key or value",
            "one line holds one `key = value`, and this is more",
        ),
    ];
    let (_, words) = known.iter().find(|(begin, _)| message.starts_with(begin))?;
    Some((*words).to_owned())
}

/// The name in a table's header, `[name]` or `[[name]]`.
fn header_name(line: &str) -> Option<&str> {
    let line = without_comment(line);
    let several = line
        .strip_prefix("[[")
        .and_then(|rest| rest.strip_suffix("]]"));
    let one = || {
        line.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
    };
    let name = several.or_else(one)?.trim();
    let is_name = |letter: char| letter.is_alphanumeric() || "_-. \"'".contains(letter);
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

fn is_of_several(header: &str) -> bool {
    header.starts_with("[[")
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// The known name that `given` was most likely meant to be.
fn closest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    // A third of the letters may be wrong: enough for a slip, too little to suggest nonsense.
    let limit = (given.chars().count() / 3).max(1);
    let given = given.to_lowercase().replace('-', "_");
    known
        .iter()
        .map(|name| (distance(&given, name), *name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

fn unknown_key(key: &str, known: &[&str]) -> String {
    match closest(key, known) {
        Some(name) => format!("unknown key `{key}`, did you mean `{name}`?"),
        None => format!("unknown key `{key}`, expected one of {}", known.join(", ")),
    }
}

/// Takes serde's text for an unknown field apart: the field, and the known ones.
pub(super) fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (key, rest) = rest.split_once('`')?;
    let known = rest.split('`').skip(1).step_by(2).collect();
    Some((key, known))
}

fn quoted_after<'a>(message: &'a str, begin: &str) -> Option<&'a str> {
    let (name, _) = message.strip_prefix(begin)?.split_once('`')?;
    Some(name)
}

/// Levenshtein's distance: letters to add, drop or change.
pub(super) fn distance(left: &str, right: &str) -> usize {
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
