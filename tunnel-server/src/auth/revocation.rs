//! Revoked credentials: whether an entry of the revocation list, or one made by the operator, covers a credential.
//!
//! The revocation list is a TOML file. `kept_revocations.rs` keeps the operator's entries.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use serde::Deserialize;
use toml::Spanned;
use tunnel_directory::{AccountName, RuntimeName};
use tunnel_ops::config_file::TomlFile;
use tunnel_ops::faults::FaultCollector;

use super::credential::{CredentialId, CredentialKind, hash_digits};
use crate::runtimes::{Moment, RuntimesError};

/// Most entries that the operator may make. Each one copies all of them.
const OPERATOR_ENTRIES: usize = 10_000;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The revoked credentials.
    pub target: RevocationTarget,
    /// Revokes only credentials issued before this moment; `None` revokes all.
    pub before: Option<SystemTime>,
}

/// The operator has made the greatest number of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{OPERATOR_ENTRIES} revocations are kept, and no more: add them to the revocation list")]
pub struct RevocationsFull;

/// The credentials that an entry revokes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevocationTarget {
    /// One credential, by its public id: a token's id, a JSON Web Token's `jti` (or the first 16
    /// digits of the SHA-256 of its head and claims), the platform's id (or the first 16 digits of the SHA-256 of the whole
    /// token), a certificate's serial number.
    Credential(String),
    /// One credential by its public id, for this runtime alone.
    CredentialOf(AccountName, RuntimeName, String),
    /// All of one runtime.
    Runtime(AccountName, RuntimeName),
    /// All of one account.
    Account(AccountName),
}

/// All entries, indexed for lookups.
#[derive(Debug, Clone, Default)]
pub struct Revocations {
    ids: Ids,
    own_ids: HashMap<(AccountName, RuntimeName), Ids>,
    runtimes: HashMap<(AccountName, RuntimeName), Cut>,
    accounts: HashMap<AccountName, Cut>,
    entries: usize,
    fingerprint: String,
}

/// Credentials by their ids.
#[derive(Debug, Clone, Default)]
struct Ids {
    all: HashMap<String, Cut>,
    /// The ids that may be serial numbers, in normal form.
    serials: HashMap<String, Cut>,
}

/// Which credentials of its target an entry revokes; the greater one revokes more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cut {
    Before(SystemTime),
    All,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    revoked: Vec<Spanned<RawEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    id: Option<Spanned<String>>,
    account: Option<Spanned<String>>,
    runtime: Option<Spanned<String>>,
    before: Option<Moment>,
    /// A comment for readers of the file; not used.
    #[serde(rename = "note")]
    _note: Option<String>,
}

impl Revocations {
    /// Reads the file.
    ///
    /// # Errors
    /// As [`Self::parse`], and when the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, RuntimesError> {
        Self::parse(&TomlFile::read(path)?)
    }

    /// Reads the text of a revocations file.
    ///
    /// # Errors
    /// When it is not valid TOML, or an entry is invalid; faults are reported with their lines.
    pub fn parse(file: &TomlFile) -> Result<Self, RuntimesError> {
        let raw: RawFile = file.parse()?;
        let mut revocations = Self {
            fingerprint: hash_digits(file.text().as_bytes()),
            ..Self::default()
        };
        let mut faults = FaultCollector::default();
        for entry in raw.revoked {
            let span = entry.span();
            match revocation(span, entry.into_inner()) {
                Ok(revocation) => revocations.insert(revocation),
                Err(fault) => {
                    faults.add(|| file.error_at(fault.span, fault.key, fault.problem));
                }
            }
        }
        Ok(faults.finish(revocations)?)
    }

    /// These entries alone.
    pub(super) fn of(entries: &[Revocation]) -> Self {
        let mut revocations = Self::default();
        for entry in entries {
            revocations.insert(entry.clone());
        }
        revocations
    }

    /// Returns a copy with more revocations of the operator.
    ///
    /// # Errors
    /// When the copy would have more than [`OPERATOR_ENTRIES`].
    pub(super) fn with(&self, revocations: &[Revocation]) -> Result<Self, RevocationsFull> {
        let more = self.clone().with_all(&Self::of(revocations));
        if more.entries > OPERATOR_ENTRIES && more.entries > self.entries {
            return Err(RevocationsFull);
        }
        Ok(more)
    }

    /// Adds an entry; one with the target of another is merged with it.
    fn insert(&mut self, revocation: Revocation) {
        let cut = revocation.before.map_or(Cut::All, Cut::Before);
        let is_new = match revocation.target {
            RevocationTarget::Credential(id) => self.ids.insert(id, cut),
            RevocationTarget::CredentialOf(account, runtime, id) => {
                let ids = self.own_ids.entry((account, runtime)).or_default();
                ids.insert(id, cut)
            }
            RevocationTarget::Runtime(account, runtime) => {
                add(&mut self.runtimes, (account, runtime), cut)
            }
            RevocationTarget::Account(account) => add(&mut self.accounts, account, cut),
        };
        self.entries += usize::from(is_new);
    }

    /// These entries, and those of `other` that are not among them.
    #[must_use]
    pub(crate) fn with_all(mut self, other: &Self) -> Self {
        self.entries += self.ids.add_all(&other.ids);
        for (pair, ids) in &other.own_ids {
            let own = self.own_ids.entry(pair.clone()).or_default();
            self.entries += own.add_all(ids);
        }
        self.entries += add_all(&mut self.runtimes, &other.runtimes);
        self.entries += add_all(&mut self.accounts, &other.accounts);
        self
    }

    /// Whether these entries revoke all that those of `other` revoke.
    #[must_use]
    pub(crate) fn includes(&self, other: &Self) -> bool {
        let none = Ids::default();
        let mut own_ids = other.own_ids.iter();
        includes(&self.ids.all, &other.ids.all)
            && includes(&self.runtimes, &other.runtimes)
            && includes(&self.accounts, &other.accounts)
            && own_ids
                .all(|(pair, ids)| includes(&self.own_ids.get(pair).unwrap_or(&none).all, &ids.all))
    }

    /// The number of entries, after merging.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// The first 16 hexadecimal digits of the file's SHA-256, which tell versions of the file apart; empty if there is
    /// no file.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Whether an entry revokes this credential of this runtime. A credential without a time of issue counts as
    /// issued before any moment.
    #[must_use]
    pub(super) fn cover(
        &self,
        credential: &CredentialId,
        issued: Option<SystemTime>,
        (account, name): (&AccountName, &RuntimeName),
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let pair = (account.clone(), name.clone());
        let own_ids = self.own_ids.get(&pair);
        [
            self.ids.get(credential),
            own_ids.and_then(|ids| ids.get(credential)),
            self.runtimes.get(&pair),
            self.accounts.get(account),
        ]
        .into_iter()
        .flatten()
        .any(|cut| match cut {
            Cut::All => true,
            Cut::Before(moment) => issued.is_none_or(|issued| issued < *moment),
        })
    }
}

impl Ids {
    /// Adds all of `more`. Returns how many ids are new.
    fn add_all(&mut self, more: &Self) -> usize {
        add_all(&mut self.serials, &more.serials);
        add_all(&mut self.all, &more.all)
    }

    fn insert(&mut self, id: String, cut: Cut) -> bool {
        if let Some(serial) = serial(&id) {
            add(&mut self.serials, serial, cut);
        }
        add(&mut self.all, id, cut)
    }

    fn get(&self, credential: &CredentialId) -> Option<&Cut> {
        match credential.kind() {
            CredentialKind::Certificate => self.serials.get(credential.id()),
            _ => self.all.get(credential.id()),
        }
    }
}

/// Normalises a serial number to lower-case digits without colons and leading zeros, as credentials have it; `None`
/// if it is not hexadecimal.
pub(crate) fn serial(text: &str) -> Option<String> {
    let is_digit = |letter: char| letter.is_ascii_hexdigit() || letter == ':';
    if text.is_empty() || !text.chars().all(is_digit) {
        return None;
    }
    let digits = text.replace(':', "").to_ascii_lowercase();
    Some(digits.trim_start_matches('0').to_owned())
}

/// Adds an entry, or keeps the stronger of the old and the new one. Returns whether the key is new.
fn add<K: Eq + std::hash::Hash>(cuts: &mut HashMap<K, Cut>, key: K, cut: Cut) -> bool {
    let stronger = cuts.get(&key).map_or(cut, |old| cut.max(*old));
    cuts.insert(key, stronger).is_none()
}

/// Adds all of `more`, as [`add`] does. Returns how many keys are new.
fn add_all<K: Eq + std::hash::Hash + Clone>(
    cuts: &mut HashMap<K, Cut>,
    more: &HashMap<K, Cut>,
) -> usize {
    let more = more.iter();
    more.filter(|(key, cut)| add(cuts, (*key).clone(), **cut))
        .count()
}

/// Whether `cuts` revokes all that `others` revokes.
fn includes<K: Eq + std::hash::Hash>(cuts: &HashMap<K, Cut>, others: &HashMap<K, Cut>) -> bool {
    let mut others = others.iter();
    others.all(|(key, cut)| cuts.get(key).is_some_and(|own| own >= cut))
}

/// A fault in an entry, not located yet.
struct EntryFault {
    span: Range<usize>,
    key: &'static str,
    problem: String,
}

impl EntryFault {
    fn new(span: Range<usize>, key: &'static str, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self { span, key, problem }
    }
}

fn revocation(span: Range<usize>, raw: RawEntry) -> Result<Revocation, EntryFault> {
    let target = match (raw.id, raw.account, raw.runtime) {
        (Some(id), None, None) => {
            // It would match no credential and revoke nothing.
            if !CredentialId::is_id(id.get_ref()) {
                let expected = CredentialId::EXPECTED;
                return Err(EntryFault::new(id.span(), "revoked.id", expected));
            }
            // The whole token would disclose the secret in the file, and would match no credential.
            if id.get_ref().starts_with("tnlrt_") {
                let problem = "expected the token's id, its 16 digits after `tnlrt_`, alone";
                return Err(EntryFault::new(id.span(), "revoked.id", problem));
            }
            RevocationTarget::Credential(id.into_inner())
        }
        (None, Some(account), None) => {
            RevocationTarget::Account(name(&account, "revoked.account")?)
        }
        (None, Some(account), Some(runtime)) => RevocationTarget::Runtime(
            name(&account, "revoked.account")?,
            name(&runtime, "revoked.runtime")?,
        ),
        _ => {
            let problem = "expected either `id`, or `account` with or without `runtime`";
            return Err(EntryFault::new(span, "revoked", problem));
        }
    };
    Ok(Revocation {
        target,
        before: raw.before.map(Into::into),
    })
}

fn name<T>(text: &Spanned<String>, key: &'static str) -> Result<T, EntryFault>
where
    T: std::str::FromStr<Err: ToString>,
{
    let parsed = text.get_ref().parse();
    parsed.map_err(|error: T::Err| EntryFault::new(text.span(), key, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::auth::labels::tests::entry;
    use crate::runtimes::RuntimeEntry;

    fn pair(entry: &RuntimeEntry) -> (&AccountName, &RuntimeName) {
        (&entry.account, &entry.name)
    }

    fn read(text: &str) -> Result<Revocations, RuntimesError> {
        Revocations::parse(&TomlFile::from_text("v.toml", text))
    }

    fn moment(text: &str) -> SystemTime {
        text.parse::<Moment>().unwrap().into()
    }

    #[test]
    fn the_operator_s_entries_are_bounded_and_duplicates_are_merged() {
        let revocation = |id: usize| Revocation {
            target: RevocationTarget::Credential(format!("{id:x}-")),
            before: None,
        };
        let mut list = Revocations::default();
        for id in 0..OPERATOR_ENTRIES {
            list.insert(revocation(id));
        }
        let again = list.with(&[revocation(1)]).unwrap();
        assert_eq!(again.len(), OPERATOR_ENTRIES);
        let full = list.with(&[revocation(OPERATOR_ENTRIES)]);
        assert_eq!(full.unwrap_err(), RevocationsFull);
    }

    #[test]
    fn each_entry_covers_what_it_names_and_nothing_else() {
        let list = read(
            "[[revoked]]\nid = \"0123456789abcdef\"\nnote = \"lost\"\n\
             [[revoked]]\nid = \"0A:FF:01\"\n\
             [[revoked]]\naccount = \"gone\"\n\
             [[revoked]]\naccount = \"acme\"\nruntime = \"test\"\nbefore = 2026-01-01T00:00:00Z\n",
        )
        .unwrap();
        assert_eq!(list.len(), 4);
        let covers = |kind, id: &str, (account, name), issued| {
            list.cover(
                &CredentialId::new(kind, id),
                issued,
                pair(&entry(account, name)),
            )
        };
        use CredentialKind::{Certificate, Jwt, Token};
        let prod = ("acme", "prod");
        assert!(covers(Token, "0123456789abcdef", prod, None));
        assert!(covers(Jwt, "0123456789abcdef", prod, None));
        assert!(!covers(Token, "1123456789abcdef", prod, None));
        assert!(covers(Certificate, "aff01", prod, None));
        assert!(!covers(Jwt, "aff01", prod, None));
        assert!(covers(Jwt, "x", ("gone", "any"), None));
        let test = ("acme", "test");
        let before = moment("2026-01-01T00:00:00Z");
        assert!(covers(Jwt, "x", test, None), "fails closed");
        assert!(covers(
            Jwt,
            "x",
            test,
            Some(before - Duration::from_secs(1))
        ));
        assert!(!covers(Jwt, "x", test, Some(before)));
        assert!(!covers(Jwt, "x", prod, None));
    }

    #[test]
    fn an_id_of_one_runtime_stays_valid_elsewhere() {
        let mut list = Revocations::default();
        for id in ["a-1", "0A:FF"] {
            let (account, name) = ("acme".parse().unwrap(), "prod".parse().unwrap());
            list.insert(Revocation {
                target: RevocationTarget::CredentialOf(account, name, id.to_owned()),
                before: None,
            });
        }
        use CredentialKind::{Certificate, Jwt};
        for (kind, id, account, name, covered) in [
            (Jwt, "a-1", "acme", "prod", true),
            (Certificate, "aff", "acme", "prod", true),
            (Jwt, "a-2", "acme", "prod", false),
            (Jwt, "a-1", "acme", "test", false),
            (Jwt, "a-1", "globex", "prod", false),
            (Certificate, "aff", "globex", "prod", false),
        ] {
            let given = list.cover(
                &CredentialId::new(kind, id),
                None,
                pair(&entry(account, name)),
            );
            assert_eq!(given, covered, "{id} of {account}-{name}");
        }
    }

    #[test]
    fn entries_of_two_lists_are_put_together() {
        let id = |id: &str| format!("[[revoked]]\nid = \"{id}\"\n");
        let early = "[[revoked]]\naccount = \"a\"\nbefore = 2026-01-01T00:00:00Z\n";
        let late = early.replace("2026", "2027");
        let one = read(&(id("0a:ff") + early)).unwrap();
        let other = read(&(id("x") + &late)).unwrap();
        assert!(!one.includes(&other) && !other.includes(&one));
        let both = one.clone().with_all(&other);
        assert_eq!(both.len(), 3);
        assert!(both.includes(&one) && both.includes(&other) && !one.includes(&both));
        let serial = CredentialId::new(CredentialKind::Certificate, "aff");
        let covers = |list: &Revocations| list.cover(&serial, None, pair(&entry("b", "c")));
        assert!(covers(&both) && covers(&other.with_all(&one)));
    }

    #[test]
    fn the_stronger_of_two_entries_counts() {
        let early = "[[revoked]]\naccount = \"a\"\nbefore = 2026-01-01T00:00:00Z\n";
        let late = early.replace("2026", "2027");
        let all = "[[revoked]]\naccount = \"a\"\n";
        let issued = Some(moment("2026-06-01T00:00:00Z"));
        let id = CredentialId::new(CredentialKind::Jwt, "x");
        for (text, covered) in [
            (early.to_owned(), false),
            (format!("{early}{late}"), true),
            (format!("{late}{early}"), true),
            (format!("{early}{all}"), true),
            (format!("{all}{early}"), true),
        ] {
            let list = read(&text).unwrap();
            assert_eq!(
                list.cover(&id, issued, pair(&entry("a", "b"))),
                covered,
                "{text}"
            );
        }
    }

    /// An id of another form belongs to no credential: a credential with such an id is identified by its hash.
    #[test]
    fn an_entry_that_cannot_match_a_credential_is_refused() {
        for bad in [String::new(), "a b".into(), "é".into(), "x".repeat(129)] {
            let error = read(&format!("[[revoked]]\nid = \"{bad}\"\n"))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("v.toml:2:6: revoked.id: expected an id of 1 to 128"),
                "{error}"
            );
        }
        assert!(read(&format!("[[revoked]]\nid = \"{}\"\n", "x".repeat(128))).is_ok());
    }

    #[test]
    fn every_fault_is_reported_with_its_line() {
        let error = read(
            "[[revoked]]\nruntime = \"b\"\n[[revoked]]\nid = \"x\"\naccount = \"a\"\n\
             [[revoked]]\naccount = \"A\"\n[[revoked]]\nid = \"tnlrt_secret\"\n",
        )
        .unwrap_err()
        .to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 4, "{error}");
        assert!(lines[0].starts_with("v.toml:1:1: revoked: expected either"));
        assert!(lines[2].starts_with("v.toml:7:11: revoked.account: `A` is no name"));
        assert!(lines[3].starts_with("v.toml:9:6: revoked.id: ") && !error.contains("secret"));
        let unknown = read("[[revoked]]\nids = \"x\"\n").unwrap_err().to_string();
        assert!(
            unknown.starts_with("v.toml:2:1: revoked.ids: "),
            "{unknown}"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\[\\[revoked\\]\\]\n)?\\PC{0,80}") {
            let _ = read(&text);
            let _ = serial(&text);
        }
    }
}
