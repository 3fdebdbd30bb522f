//! All that is secret in a run of tests, and the search for it in all that the programs say.
//!
//! ```text
//!   tokens, keys, passwords of all tests ──keep──▶ one set ◀──search── output, exit, answers, metrics
//! ```
//!
//! Whoever makes a secret keeps it here, and whoever has something that a program of ours said searches it
//! with [`assert_hidden`]: what one test makes must not be in anything that a program says in another
//! either. A hit ends the test; if that happens in a task whose panic is not noticed, all later tests end as well.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use parking_lot::Mutex;

/// Shorter texts could stand anywhere by chance.
const LEAST: usize = 10;

/// How much of the text around a hit is shown.
const AROUND: usize = 200;

static ALL: Mutex<Secrets> = Mutex::new(Secrets {
    kept: Vec::new(),
    search: None,
    hit: None,
});

struct Secrets {
    /// Each with what it is.
    kept: Vec<(String, String)>,
    /// For all of them, made when it is needed.
    search: Option<Arc<AhoCorasick>>,
    /// The first of all hits.
    hit: Option<String>,
}

/// Keeps a secret, whole and by its part that cannot be guessed; `what` is for messages.
///
/// # Panics
/// When it is so short that finding it would mean nothing.
pub fn keep(what: &str, secret: &str) {
    for secret in parts(secret) {
        assert!(
            secret.len() >= LEAST,
            "{what}: too short to be searched for"
        );
        let mut all = ALL.lock();
        if all.kept.iter().all(|(_, kept)| *kept != secret) {
            all.kept.push((what.to_owned(), secret));
            all.search = None;
        }
    }
}

/// The same of what stands in a file, if there is anything that could be one.
pub fn keep_file(path: &std::path::Path) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    if text.trim().len() >= 2 * LEAST {
        keep(&path.display().to_string(), &text);
    }
}

/// A whole token, and the last part of one that has a public part too.
fn parts(secret: &str) -> Vec<String> {
    let whole = secret.trim();
    if whole.starts_with("-----BEGIN") {
        let lines = whole.lines().filter(|line| line.len() >= 40);
        return lines.map(str::to_owned).collect();
    }
    let last = match () {
        () if whole.starts_with("tnlrt_") => whole.rsplit('_').next(),
        () if whole.starts_with("eyJ") => whole.rsplit('.').next(),
        () => None,
    };
    let last = last.filter(|last| last.len() >= LEAST);
    [Some(whole), last]
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .collect()
}

/// What is shown in this text that must not be, and where.
pub fn search(text: &str) -> Option<String> {
    let mut all = ALL.lock();
    if all.search.is_none() {
        let kept = all.kept.iter().map(|(_, secret)| secret);
        all.search = Some(Arc::new(AhoCorasick::new(kept).unwrap()));
    }
    let search = all.search.clone()?;
    drop(all);
    let found = search.find(text)?;
    let (what, _) = &ALL.lock().kept[found.pattern().as_usize()];
    let to = text.len().min(found.end() + AROUND);
    let around = &text.as_bytes()[found.start().saturating_sub(AROUND)..to];
    Some(format!("{what}: …{}…", String::from_utf8_lossy(around)))
}

/// Nothing of what `who` said is secret.
///
/// # Panics
/// When something is, by the name of the secret and with what stands around it; also when that happened
/// before, in whatever test.
pub fn assert_hidden(who: &str, text: &str) {
    if let Some(found) = search(text) {
        let hit = format!("{who} shows a secret, {found}");
        eprintln!("{hit}");
        let first = ALL.lock().hit.get_or_insert(hit).clone();
        panic!("{first}");
    }
    let hit = ALL.lock().hit.clone();
    assert!(hit.is_none(), "in some test, {}", hit.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_is_shown_is_found_whole_and_in_part() {
        let token = "tnlrt_0123456789abcdef_OfATestThatSearchesForSecrets000";
        let jwt = "eyJhbGciOiJ.eyJpc3MiOiJ.c2lnbmF0dXJlLW9mLWEtdGVzdA";
        keep("a token", token);
        keep("a JWT", jwt);
        for text in [
            format!("token={token}"),
            "…OfATestThatSearchesForSecrets000…".to_owned(),
            "signed by c2lnbmF0dXJlLW9mLWEtdGVzdA".to_owned(),
        ] {
            assert!(search(&text).is_some(), "{text}");
        }
        assert_eq!(search("the token 0123456789abcdef is public"), None);
        assert!(search(jwt).is_some_and(|found| found.starts_with("a JWT")));
    }
}
