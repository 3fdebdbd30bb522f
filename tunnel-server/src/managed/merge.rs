//! One document from two that nodes have changed apart, since etcd had lost what one of them knew.

use std::{collections::BTreeSet, time::SystemTime};

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};
use tunnel_proto::control::millis;

use super::document::{MERGED_TOKENS, TOKENS, first};
use crate::runtimes::{Moment, edit::mark_revoked};

/// The newer definition with the tokens of both. Tokens that have expired by the wall clock in milliseconds, and revoked ones for
/// which there is no room, are not taken over. A text that cannot be read, or is of another runtime, adds nothing.
pub(crate) fn merge(newer: &str, older: &str, now_ms: u64) -> String {
    merged(newer, older, now_ms).unwrap_or_else(|| newer.to_owned())
}

/// `None` if the newer text has all.
fn merged(newer: &str, older: &str, now_ms: u64) -> Option<String> {
    let mut next: DocumentMut = newer.parse().ok()?;
    let mut older: DocumentMut = older.parse().ok()?;
    let (runtime, older) = (first(&mut next)?, first(&mut older)?);
    if name(runtime) != name(older) {
        return None;
    }
    let older: Vec<&Table> = tables(older).iter().flat_map(|them| them.iter()).collect();
    let revoked = older.iter().filter(|token| is_revoked(token));
    let revoked: BTreeSet<&str> = revoked.filter_map(|token| id(token)).collect();
    let tokens = runtime
        .entry("token")
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()))
        .as_array_of_tables_mut()?;
    let mut is_changed = false;
    for token in tokens.iter_mut() {
        if id(token).is_some_and(|id| revoked.contains(id)) {
            is_changed |= mark_revoked(token);
        }
    }
    for token in older {
        let is_there = tokens.iter().any(|own| id(own) == id(token));
        let room = match is_revoked(token) {
            true => TOKENS,
            false => MERGED_TOKENS,
        };
        if !is_there && !has_expired(token, now_ms) && tokens.len() < room {
            let mut token = token.clone();
            token.set_position(None);
            tokens.push(token);
            is_changed = true;
        }
    }
    is_changed.then(|| next.to_string())
}

fn name(runtime: &Table) -> (Option<&str>, Option<&str>) {
    let text = |key| runtime.get(key).and_then(Item::as_str);
    (text("account"), text("name"))
}

fn tables(runtime: &Table) -> Option<&ArrayOfTables> {
    runtime.get("token")?.as_array_of_tables()
}

fn id(token: &Table) -> Option<&str> {
    token.get("id")?.as_str()
}

fn is_revoked(token: &Table) -> bool {
    token.get("revoked").and_then(Item::as_bool) == Some(true)
}

fn has_expired(token: &Table, now_ms: u64) -> bool {
    let expires = token.get("expires").and_then(Item::as_datetime);
    let moment = expires.and_then(|moment| moment.to_string().parse::<Moment>().ok());
    let since = moment.and_then(|moment| {
        SystemTime::from(moment)
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()
    });
    since.is_some_and(|since| millis(since) <= now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_767_225_600_000; // 2026-01-01

    fn document(host: &str, tokens: &[(&str, &str)]) -> String {
        let runtime =
            format!("[[runtime]]\naccount = \"acme\"\nname = \"prod\"\nhosts = [\"{host}\"]\n");
        let tokens = tokens.iter();
        tokens.fold(runtime, |text, (id, more)| {
            format!("{text}\n[[runtime.token]]\nid = \"{id}\"\nsha256 = \"00\"\n{more}")
        })
    }

    fn ids(text: &str) -> Vec<(String, bool)> {
        let mut document: DocumentMut = text.parse().unwrap();
        let runtime = first(&mut document).unwrap();
        let tokens = tables(runtime).into_iter().flatten();
        tokens
            .map(|token| (id(token).unwrap().to_owned(), is_revoked(token)))
            .collect()
    }

    #[test]
    fn the_newer_definition_has_the_tokens_of_both() {
        let newer = document("new.test", &[("a", ""), ("b", "")]);
        let older = document(
            "old.test",
            &[
                ("b", "revoked = true\n"),
                ("c", ""),
                ("d", "expires = 2025-12-31T00:00:00Z\n"),
                ("e", "expires = 2026-01-02T00:00:00Z\n"),
                ("f", "revoked = true\n"),
            ],
        );
        let both = merge(&newer, &older, NOW_MS);
        assert!(both.contains("new.test") && !both.contains("old.test"));
        let expected = [
            ("a", false),
            ("b", true),
            ("c", false),
            ("e", false),
            ("f", true),
        ];
        let expected = expected.map(|(id, revoked)| (id.to_owned(), revoked));
        assert_eq!(ids(&both), expected);
        assert_eq!(merge(&both, &older, NOW_MS), both, "nothing is left to add");
        assert_eq!(merge(&both, &newer, NOW_MS), both);
    }

    #[test]
    fn what_cannot_be_read_or_is_another_runtime_s_adds_nothing() {
        let newer = document("new.test", &[("a", "")]);
        let other = document("x.test", &[("b", "")]).replace("\"prod\"", "\"test\"");
        for older in ["[[runtime", "", "[[runtime]]\n", &other] {
            assert_eq!(merge(&newer, older, NOW_MS), newer, "{older}");
        }
        assert_eq!(merge("x = ", &newer, NOW_MS), "x = ");
        let bare = document("new.test", &[]);
        assert_eq!(
            ids(&merge(&bare, &newer, NOW_MS)),
            [("a".to_owned(), false)]
        );
        assert_eq!(merge(&newer, &bare, NOW_MS), newer);
    }

    #[test]
    fn revoked_tokens_make_room() {
        let live: Vec<String> = (0..TOKENS).map(|number| format!("{number:x}")).collect();
        let live: Vec<(&str, &str)> = live.iter().map(|id| (id.as_str(), "")).collect();
        let newer = document("new.test", &live);
        let older = document("old.test", &[("y", "revoked = true\n"), ("z", "")]);
        let both = ids(&merge(&newer, &older, NOW_MS));
        assert_eq!(both.len(), TOKENS + 1);
        assert_eq!(both.last(), Some(&("z".to_owned(), false)));
    }
}
