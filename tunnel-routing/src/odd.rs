//! Odd parts of paths: those that upstreams read in more than one way.
//!
//! In: the bytes of a path as they are forwarded. Out: its odd parts, and its readings (readings.rs). A route takes only
//! the odd parts that its `allow_paths_with` names.

pub(crate) mod readings;

use std::fmt;
use std::str::FromStr;

use tunnel_ops::config_value::ValueError;

/// A set of odd parts.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct OddParts(u8);

/// Every odd part: its name in the configuration, and a description.
const PARTS: [(OddParts, &str, &str); 7] = [
    (
        OddParts::ENCODED_SLASH,
        "encoded_slash",
        "an encoded slash (`%2F`)",
    ),
    (
        OddParts::BACKSLASH,
        "backslash",
        "a backslash, encoded (`%5C`) or not",
    ),
    (
        OddParts::EMPTY_SEGMENT,
        "empty_segment",
        "an empty segment (`//`)",
    ),
    (OddParts::SEMICOLON, "semicolon", "a `;`"),
    (
        OddParts::DOT_SEGMENT,
        "dot_segment",
        "a segment `.` or `..`, encoded or not",
    ),
    (
        OddParts::ENCODED_UNRESERVED,
        "encoded_unreserved",
        "an encoded letter, digit, `-`, `.`, `_` or `~` (such as `%41`)",
    ),
    (
        OddParts::ENCODED_CONTROL,
        "encoded_control",
        "an encoded control character (such as `%00`)",
    ),
];

impl OddParts {
    /// No odd part.
    pub const NONE: Self = Self(0);
    /// `%2F`, which some upstreams decode before they split a path.
    pub const ENCODED_SLASH: Self = Self(1);
    /// `\` and `%5C`, which some upstreams take for `/`.
    pub const BACKSLASH: Self = Self(1 << 1);
    /// `//`, which some upstreams merge to `/`.
    pub const EMPTY_SEGMENT: Self = Self(1 << 2);
    /// `;`, from which on some upstreams ignore a segment in comparisons.
    pub const SEMICOLON: Self = Self(1 << 3);
    /// A segment `.` or `..`, also encoded or before parameters, which some upstreams resolve.
    pub const DOT_SEGMENT: Self = Self(1 << 4);
    /// An encoded character that is equal to the plain one (RFC 3986 section 6.2.2.2).
    pub const ENCODED_UNRESERVED: Self = Self(1 << 5);
    /// `%00` to `%1F`, and `%7F`.
    pub const ENCODED_CONTROL: Self = Self(1 << 6);
    /// All odd parts.
    pub const ALL: Self = Self((1 << PARTS.len()) - 1);

    /// The odd parts of a path.
    pub fn of(path: &[u8]) -> Self {
        // Most paths have none of these bytes; these loops have no branches.
        let is_double_slash =
            |found, (byte, next): (&u8, &u8)| found | (*byte == b'/' && next == byte);
        let after = path.get(1..).unwrap_or_default();
        let mut found = match path.iter().zip(after).fold(false, is_double_slash) {
            true => Self::EMPTY_SEGMENT,
            false => Self::NONE,
        };
        let may_be_odd = |found, byte: &u8| found | matches!(byte, b'.' | b'%' | b'\\' | b';');
        if !path.iter().fold(false, may_be_odd) {
            return found;
        }
        for (at, byte) in path.iter().enumerate() {
            found = found.with(match byte {
                b'\\' => Self::BACKSLASH,
                b';' => Self::SEMICOLON,
                b'%' => encoded(&path[at..]).map_or(Self::NONE, Self::of_encoded),
                _ => continue,
            });
        }
        match path.split(|byte| *byte == b'/').any(is_dot_segment) {
            true => found.with(Self::DOT_SEGMENT),
            false => found,
        }
    }

    fn of_encoded(byte: u8) -> Self {
        match byte {
            b'/' => Self::ENCODED_SLASH,
            b'\\' => Self::BACKSLASH,
            0..0x20 | 0x7f => Self::ENCODED_CONTROL,
            byte if is_unreserved(byte) => Self::ENCODED_UNRESERVED,
            _ => Self::NONE,
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// The union.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The difference.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Their names in the configuration.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.rows().map(|(_, name, _)| *name)
    }

    fn rows(self) -> impl Iterator<Item = &'static (Self, &'static str, &'static str)> {
        (PARTS.iter()).filter(move |(part, ..)| part.without(self).is_empty())
    }
}

impl FromStr for OddParts {
    type Err = ValueError;

    /// Reads one part by its name.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let found = PARTS.iter().find(|(_, name, _)| *name == text);
        found.map(|(part, ..)| *part).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.names().collect();
            ValueError::new(format!("expected one of {}", names.join(", ")))
        })
    }
}

/// Shows descriptions, for people.
impl fmt::Display for OddParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (_, _, what)) in self.rows().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(what)?;
        }
        Ok(())
    }
}

/// Shows the names.
impl fmt::Debug for OddParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

fn encode(segment: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in segment {
        match byte {
            byte if is_unreserved(*byte) || b"!$&'()*+,=:@;".contains(byte) => out.push(*byte),
            byte => {
                let digit = |digit: u8| HEX[usize::from(digit & 0xf)];
                out.extend([b'%', digit(byte >> 4), digit(*byte)]);
            }
        }
    }
}

/// The byte whose encoded form a text begins with.
fn encoded(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else {
        return None;
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// RFC 3986 section 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_dot_segment(segment: &[u8]) -> bool {
    let mut rest = segment;
    let mut dots = 0;
    loop {
        rest = match rest {
            [b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..] => rest,
            _ => break,
        };
        dots += 1;
    }
    matches!(dots, 1 | 2) && matches!(rest, [] | [b';', ..] | [b'%', b'3', b'b' | b'B', ..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_odd_part_of_a_path_is_found() {
        for (path, parts) in [
            ("/a/..", "dot_segment"),
            ("/../a", "dot_segment"),
            ("/./", "dot_segment"),
            ("/.", "dot_segment"),
            ("/a/%2e%2E/b", "dot_segment encoded_unreserved"),
            ("/.%2e", "dot_segment encoded_unreserved"),
            ("/a%2fb", "encoded_slash"),
            ("/a%2Fb", "encoded_slash"),
            ("/a%5Cb", "backslash"),
            ("/a\\b", "backslash"),
            ("/..;x/a", "semicolon dot_segment"),
            ("/%2e;", "semicolon dot_segment encoded_unreserved"),
            ("/.%3b", "dot_segment"),
            ("//", "empty_segment"),
            ("//a", "empty_segment"),
            ("/a//", "empty_segment"),
            ("/a//b", "empty_segment"),
            ("/a;x/b", "semicolon"),
            ("/;", "semicolon"),
            ("/%61dmin", "encoded_unreserved"),
            ("/%4a%5F", "encoded_unreserved"),
            ("/a%7E", "encoded_unreserved"),
            ("/a%00", "encoded_control"),
            ("/a%0d%0A", "encoded_control"),
            ("/%7f", "encoded_control"),
            ("/", ""),
            ("/a.b/c", ""),
            ("/...", ""),
            ("/.well-known/x", ""),
            ("/a..b/", ""),
            ("/a%20b", ""),
            ("/%252e%252e/", ""),
            ("*", ""),
            ("", ""),
            ("/a/", ""),
            ("/%3f", ""),
            ("/a%3bb", ""),
            ("/%C3%a4%40", ""),
            ("/x%2", ""),
            ("/%zz%", ""),
            ("/..a", ""),
        ] {
            let found: Vec<_> = OddParts::of(path.as_bytes()).names().collect();
            assert_eq!(found.join(" "), parts, "{path}");
        }
        for (part, name, _) in PARTS {
            assert_eq!(name.parse::<OddParts>().unwrap(), part);
        }
        assert!("letters".parse::<OddParts>().is_err());
    }

    proptest! {
        #[test]
        fn no_path_makes_it_panic(path in proptest::collection::vec(any::<u8>(), 0..40)) {
            OddParts::of(&path);
            prop_assert!(readings::canonical(&path).is_ascii());
            let _ = readings::find_reading(&path, |_| None::<()>);
        }
    }
}
