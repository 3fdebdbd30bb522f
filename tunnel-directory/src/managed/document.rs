//! A document of a managed runtime with what orders it: a first line that versions without it read as a comment.
//!
//! ```text
//!   # written 1764321000123 1f2e3d4c5b6a7988
//! ```
//!
//! The number is the wall clock of the last write in milliseconds, or one more than that of the write before. The names are
//! those of the makings that this document descends from: one, unless two nodes have made it apart. A removal names them.

use std::collections::BTreeSet;

/// Puts two texts of one document together, of which the first is the newer one: its definition, and the tokens of both, each
/// revoked if it is in one of them. A token that has expired by the wall clock, in milliseconds, is not taken over.
pub type Merge = fn(newer: &str, older: &str, now_ms: u64) -> String;

const LINE: &str = "# written ";

/// Most names of a first line.
const NAMES: usize = 16;

/// A document as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document {
    /// Without the first line.
    pub(super) text: String,
    pub(super) written_ms: u64,
    pub(super) makings: BTreeSet<String>,
}

impl Document {
    /// A document in a value; without names if it has no first line.
    pub(super) fn read(value: &[u8]) -> Self {
        // Bytes that are no text become characters that no document has, which makes it faulty.
        let whole = String::from_utf8_lossy(value);
        let line = whole.split_once('\n');
        let read = line.and_then(|(line, text)| {
            let mut words = line.strip_prefix(LINE)?.split(' ');
            let written_ms = words.next()?.parse().ok()?;
            let makings: BTreeSet<String> = words.take(NAMES).map(str::to_owned).collect();
            let are_names = makings.iter().all(|name| !name.is_empty());
            (are_names && !makings.is_empty()).then(|| Self {
                text: text.to_owned(),
                written_ms,
                makings,
            })
        });
        read.unwrap_or_else(|| Self {
            text: whole.into_owned(),
            written_ms: 0,
            makings: BTreeSet::new(),
        })
    }

    /// The value that it is written as.
    pub(super) fn value(&self) -> String {
        let names: Vec<&str> = self.makings.iter().map(String::as_str).collect();
        let names = names.join(" ");
        format!("{LINE}{} {names}\n{}", self.written_ms, self.text)
    }

    /// This one with another one that is older.
    pub(super) fn merged(&self, older: &Self, merge: Merge, now_ms: u64) -> Self {
        let text = match self.text == older.text {
            true => self.text.clone(),
            false => merge(&self.text, &older.text, now_ms),
        };
        let makings: BTreeSet<String> = self.makings.union(&older.makings).cloned().collect();
        let is_same = text == self.text && makings == self.makings;
        Self {
            written_ms: match is_same {
                true => self.written_ms,
                false => self.written_ms.max(older.written_ms).saturating_add(1),
            },
            text,
            makings,
        }
    }
}
