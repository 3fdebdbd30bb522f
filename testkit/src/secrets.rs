//! The secrets of a test process, and the check that no program shows one of them.
//!
//! ```text
//!   tokens, keys, passwords of all tests ──keep──▶ one set ◀──search── output, responses, metrics of programs
//! ```
//!
//! Code that makes a secret calls [`keep`]; code that receives output of a program calls [`assert_hidden`]. The set is
//! shared by all tests of the process, so a secret of one test must not occur in the output of another either. A hit
//! fails the test, and all later tests too, in case it happens in a task whose panic nobody notices.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use parking_lot::Mutex;

/// Length of the shortest secret: shorter texts could occur by chance.
const MIN_LENGTH: usize = 10;

/// How much of the text around a hit is shown.
const AROUND: usize = 200;

static ALL: Mutex<Secrets> = Mutex::new(Secrets {
    kept: Vec::new(),
    search: None,
    hit: None,
});

struct Secrets {
    /// What each is, for messages, and the secret.
    kept: Vec<(String, String)>,
    /// The search for all of them; made when it is needed.
    search: Option<Arc<AhoCorasick>>,
    /// The first of all hits.
    hit: Option<String>,
}

/// Adds a secret to the set, and the part of it that cannot be guessed; `what` describes it in messages.
///
/// # Panics
/// When it is so short that it could occur by chance.
pub fn keep(what: &str, secret: &str) {
    for secret in parts(secret) {
        assert!(
            secret.len() >= MIN_LENGTH,
            "{what}: too short to be searched for"
        );
        let mut all = ALL.lock();
        if all.kept.iter().all(|(_, kept)| *kept != secret) {
            all.kept.push((what.to_owned(), secret));
            all.search = None;
        }
    }
}

/// Adds the content of a file to the set, if it is long enough for a secret.
pub fn keep_file(path: &std::path::Path) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    if text.trim().len() >= 2 * MIN_LENGTH {
        keep(&path.display().to_string(), &text);
    }
}

/// The texts to search for: the lines of a PEM key; a token, and its last part if the rest of it is public.
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
    let last = last.filter(|last| last.len() >= MIN_LENGTH);
    [Some(whole), last]
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .collect()
}

/// The first secret in this text, by its description, with the text around it.
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

/// Asserts that the output `text` of the program `who` contains no secret.
///
/// # Panics
/// When it contains one, or when an earlier text of any test did. The message describes the secret and shows the text
/// around it.
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
