//! The text of a document: lines of a definition, and of tokens that are live or revoked.

use std::collections::BTreeMap;

pub(super) const LIVE: &str = "live";
pub(super) const REVOKED: &str = "revoked";

/// Puts two documents together, as those of runtimes are.
pub(super) fn merge(newer: &str, older: &str, _now_ms: u64) -> String {
    let mut text: String = newer
        .lines()
        .map(|line| {
            let revoked = line.replace(&format!(" {LIVE}"), &format!(" {REVOKED}"));
            let is_revoked = older.lines().any(|other| other == revoked);
            format!("{}\n", if is_revoked { &revoked } else { line })
        })
        .collect();
    for (token, state) in tokens_of(older) {
        if !tokens_of(newer).contains_key(token) {
            text += &format!("token {token} {state}\n");
        }
    }
    match tokens_of(&text) == tokens_of(newer) {
        true => newer.to_owned(),
        false => text,
    }
}

/// The tokens in a document, each with its state.
pub(super) fn tokens_of(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("token "));
    lines.filter_map(|line| line.split_once(' ')).collect()
}
