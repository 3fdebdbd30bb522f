//! The byte order mark that some editors put before a text, and that is no part of it.

/// The mark in UTF-8.
const MARK: &str = "\u{feff}";

/// A text without the mark.
#[must_use]
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// The bytes of a text without the mark.
#[must_use]
pub fn bytes_without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(MARK.as_bytes()).unwrap_or(bytes)
}
