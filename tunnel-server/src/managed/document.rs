//! The document of one managed runtime: what it says, and the text of the next one.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, Item};
use tunnel_directory::managed::{RevokedCredentials, UNKNOWN_LIFE_MS};
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_proto::control::millis;

use super::ManagedError;
use crate::{
    runtimes::{
        HostName, Moment, RuntimeEntry, Runtimes,
        edit::{EditError, TokenAddition, TokenRevocation, add_token as with_token, revoke_tokens},
    },
    token::{Token, TokenId},
};

/// Most bytes of a document: a definition as large as a request may be, and all its tokens.
pub(super) const BYTES: usize = 256 << 10;

/// Most hosts of a runtime.
const HOSTS: usize = 100;

/// Most tokens of a runtime.
pub(crate) const TOKENS: usize = 100;

/// Most tokens of a runtime whose document was put together from two that nodes had changed apart.
pub(super) const MERGED_TOKENS: usize = 2 * TOKENS;

/// Most characters of a note.
const NOTE: usize = 200;

/// One document.
pub(super) struct Document {
    pub(super) text: String,
    /// The runtime with its tokens, or what is wrong with the document.
    pub(super) runtimes: Result<Runtimes, String>,
}

/// A runtime as the admin API is told to make it, without its tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Definition {
    pub(crate) account: String,
    pub(crate) name: String,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allow_from: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    limits: toml::Table,
}

/// What is known of a token before it is made.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    expires: Option<String>,
    note: Option<String>,
}

#[derive(Serialize)]
struct Written<'a> {
    runtime: [&'a Definition; 1],
}

impl Document {
    /// Reads the text of the document with this label.
    ///
    /// # Errors
    /// What is wrong with it: all faults, each with its key.
    pub(super) fn parse(label: &str, text: &str, domain: &HostName) -> Result<Runtimes, String> {
        if text.len() > BYTES {
            return Err(format!("it is larger than {BYTES} bytes"));
        }
        let read = Runtimes::parse(&TomlFile::from_text(label, text), domain);
        let runtimes = read.map_err(|error| {
            let faults: Vec<_> = error.faults().iter().map(fault).collect();
            faults.join("; ")
        })?;
        if runtimes.iter().len() > 1 {
            return Err("it holds more than one runtime".to_owned());
        }
        let Some(entry) = runtimes.iter().next() else {
            return Err("it holds no runtime".to_owned());
        };
        if entry.label.as_str() != label {
            let own = &entry.label;
            return Err(format!("account and name give the label `{own}`: use it"));
        }
        if entry.hosts.len() > HOSTS {
            return Err(format!("hosts: a managed runtime may have {HOSTS}"));
        }
        if runtimes.token_count() > MERGED_TOKENS {
            return Err(format!("token: a managed runtime may have {MERGED_TOKENS}"));
        }
        Ok(runtimes)
    }
}

/// A fault with its key, as in the body of a request: the text has no lines that anybody has written.
fn fault(fault: &ConfigFileError) -> String {
    let key = fault.key().unwrap_or_default();
    let key = key.strip_prefix("runtime.").unwrap_or(key);
    match key.is_empty() || key == "runtime" {
        true => fault.problem().to_owned(),
        false => format!("{key}: {}", fault.problem()),
    }
}

impl NewToken {
    /// When it is to expire.
    ///
    /// # Errors
    /// When that is no moment, or is past.
    pub(crate) fn moment(&self) -> Result<Option<Moment>, ManagedError> {
        let expires = self.expires.as_deref().map(str::parse::<Moment>);
        let expires = expires.transpose();
        let expires =
            expires.map_err(|error| ManagedError::Malformed(format!("expires: {error}")))?;
        match expires {
            Some(end) if SystemTime::from(end) <= SystemTime::now() => Err(
                ManagedError::Malformed("expires: it is in the past".to_owned()),
            ),
            _ => Ok(expires),
        }
    }

    fn note(&self) -> Result<Option<&str>, ManagedError> {
        match &self.note {
            Some(note) if note.chars().count() > NOTE => Err(ManagedError::Malformed(format!(
                "note: it may have {NOTE} characters"
            ))),
            note => Ok(note.as_deref()),
        }
    }
}

/// The text of a definition, with the tokens of the text before.
pub(super) fn define(
    definition: &Definition,
    before: Option<&str>,
) -> Result<String, ManagedError> {
    let written = toml::to_string(&Written {
        runtime: [definition],
    });
    let written = written.map_err(|error| ManagedError::Malformed(error.to_string()))?;
    let Some(before) = before else {
        return Ok(written);
    };
    let mut before = edited(before)?;
    let mut next = edited(&written)?;
    let tokens = first(&mut before).and_then(|runtime| runtime.remove("token"));
    if let Some((runtime, tokens)) = first(&mut next).zip(tokens) {
        runtime.insert("token", tokens);
    }
    Ok(next.to_string())
}

/// The text with a new token, and the revoked tokens that have made room for it, which must not be good again.
pub(super) fn add_token(
    text: &str,
    runtimes: &Runtimes,
    new: &NewToken,
    token: &Token,
) -> Result<(String, RevokedCredentials), ManagedError> {
    let (expires, note) = (new.moment()?, new.note()?);
    let entry = entry(runtimes)?;
    let mut text = text.to_owned();
    let mut made_room = RevokedCredentials::default();
    if runtimes.token_count() >= TOKENS {
        (text, made_room) = without_ended(&text, runtimes)?
            .ok_or_else(|| ManagedError::TokensFull(entry.label.to_string()))?;
    }
    let addition = TokenAddition {
        account: &entry.account,
        runtime: &entry.name,
        hosts: &[],
        token,
        created: Some(SystemTime::now().into()),
        expires,
        note,
    };
    let text = with_token(&text, &addition).map_err(|error| faulty(&error))?;
    Ok((text, made_room))
}

/// The text with a token marked as revoked.
pub(super) fn revoke_token(
    text: &str,
    runtimes: &Runtimes,
    id: TokenId,
) -> Result<String, ManagedError> {
    let entry = entry(runtimes)?;
    let revocation = TokenRevocation {
        account: &entry.account,
        runtime: &entry.name,
        id: Some(id),
    };
    match revoke_tokens(text, &revocation) {
        Ok((text, _)) => Ok(text),
        Err(EditError::NoToken { .. }) => {
            let label = entry.label.to_string();
            Err(ManagedError::TokenUnknown { label, id })
        }
        Err(error) => Err(faulty(&error)),
    }
}

/// The text without the token that is revoked or expired for the longest time, as far as that is known: the first of them.
/// `None` if all are good. A revoked token is given back, too.
fn without_ended(
    text: &str,
    runtimes: &Runtimes,
) -> Result<Option<(String, RevokedCredentials)>, ManagedError> {
    let now = SystemTime::now();
    let mut tokens = runtimes.tokens().map(|(_, token)| token);
    let ended = tokens.find(|token| token.revoked || token.expires.is_some_and(|end| end <= now));
    let Some(ended) = ended else {
        return Ok(None);
    };
    let mut document = edited(text)?;
    let listed = first(&mut document).and_then(|runtime| runtime.get_mut("token"));
    if let Some(tables) = listed.and_then(Item::as_array_of_tables_mut) {
        tables.retain(|token| token.get("id").and_then(Item::as_str) != Some(ended.id.as_str()));
    }
    let revoked = match ended.revoked {
        true => RevokedCredentials::of_id(ended.id.as_str(), ended.expires.map(since_epoch)),
        false => RevokedCredentials::default(),
    };
    Ok(Some((document.to_string(), revoked)))
}

/// The wall clock in milliseconds until which it is kept that a runtime was removed: its tokens have expired by then, or are
/// in no snapshot of etcd that is restored.
pub(super) fn removed_until(runtimes: Option<&Runtimes>, now_ms: u64) -> u64 {
    let tokens = runtimes.into_iter().flat_map(Runtimes::tokens);
    let ends = tokens.filter_map(|(_, token)| token.expires.map(since_epoch));
    ends.fold(now_ms.saturating_add(UNKNOWN_LIFE_MS), u64::max)
}

/// A moment in milliseconds of the wall clock.
fn since_epoch(moment: SystemTime) -> u64 {
    millis(
        moment
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

fn entry(runtimes: &Runtimes) -> Result<&RuntimeEntry, ManagedError> {
    let entry = runtimes.iter().next();
    let entry = entry.ok_or_else(|| ManagedError::Faulty("it holds no runtime".to_owned()))?;
    Ok(entry)
}

fn edited(text: &str) -> Result<DocumentMut, ManagedError> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        ManagedError::Faulty(error.message().lines().collect::<Vec<_>>().join(" "))
    })
}

pub(super) fn first(document: &mut DocumentMut) -> Option<&mut toml_edit::Table> {
    document
        .get_mut("runtime")?
        .as_array_of_tables_mut()?
        .get_mut(0)
}

fn faulty(error: &EditError) -> ManagedError {
    ManagedError::Faulty(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(json: &str) -> Result<String, String> {
        let definition: Definition =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        let label = format!("{}-{}", definition.account, definition.name);
        let text = define(&definition, None).map_err(|error| error.to_string())?;
        read(&label, &text).map(|_| text)
    }

    fn read(label: &str, text: &str) -> Result<Runtimes, String> {
        Document::parse(label, text, &"t.example".parse().unwrap())
    }

    const FULL: &str = r#"{"account": "acme", "name": "prod", "hosts": ["a.example"], "allow_from": ["192.0.2.0/24"],
        "limits": {"exchanges": 7, "upload_rate": "1MiB"}}"#;

    #[test]
    fn a_definition_is_a_runtimes_file_and_its_faults_name_the_key() {
        let runtimes = read("acme-prod", &definition(FULL).unwrap()).unwrap();
        let entry = runtimes.iter().next().unwrap();
        assert_eq!(entry.limits.exchanges, Some(7));
        assert_eq!(entry.limits.upload_rate, Some(1 << 20));
        assert_eq!(entry.hosts[0].as_str(), "a.example");
        assert_eq!(entry.allow_from.as_ref().map(Vec::len), Some(1));
        for (json, fault) in [
            (
                r#"{"account": "a", "name": "b", "host": []}"#,
                "unknown field `host`",
            ),
            (
                r#"{"account": "A", "name": "b"}"#,
                "account: `A` is no name",
            ),
            (
                r#"{"account": "a", "name": "b", "hosts": ["x:1"]}"#,
                "hosts: `x:1` is no host",
            ),
            (
                r#"{"account": "a", "name": "b", "allow_from": ["x"]}"#,
                "allow_from",
            ),
            (
                r#"{"account": "a", "name": "b", "limits": {"exchanges": 0}}"#,
                "limits.exchanges: ",
            ),
            (
                r#"{"account": "a", "name": "b", "limits": {"exchange": 1}}"#,
                "limits.exchange: ",
            ),
            (
                r#"{"account": "a", "name": "b", "limits": {"exchanges": null}}"#,
                "null",
            ),
        ] {
            let given = definition(json).unwrap_err();
            assert!(given.contains(fault), "{json}: {given}");
        }
    }

    #[test]
    fn a_document_is_of_its_label() {
        let text = definition(FULL).unwrap();
        let other = read("acme-test", &text).unwrap_err();
        assert!(other.contains("`acme-prod`"), "{other}");
        assert!(read("acme-prod", "").is_err());
        assert!(
            read(
                "acme-prod",
                &(text + "\n[[runtime]]\naccount = \"a\"\nname = \"b\"\n")
            )
            .is_err()
        );
    }

    #[test]
    fn tokens_stay_with_another_definition_and_ended_ones_make_room() {
        let mut text = definition(FULL).unwrap();
        let add = |text: &str| {
            let token = Token::generate().unwrap();
            let runtimes = read("acme-prod", text).unwrap();
            let added = add_token(text, &runtimes, &NewToken::default(), &token);
            added.map(|(text, made_room)| (text, token.id(), made_room))
        };
        let (with_one, first, _) = add(&text).unwrap();
        text = with_one;
        for _ in 1..TOKENS {
            text = add(&text).unwrap().0;
        }
        assert!(matches!(add(&text), Err(ManagedError::TokensFull(_))));
        let runtimes = read("acme-prod", &text).unwrap();
        text = revoke_token(&text, &runtimes, first).unwrap();
        let definition = Definition {
            account: "acme".into(),
            name: "prod".into(),
            hosts: Vec::new(),
            allow_from: None,
            limits: toml::Table::new(),
        };
        text = define(&definition, Some(&text)).unwrap();
        let runtimes = read("acme-prod", &text).unwrap();
        assert!(runtimes.token(first).unwrap().1.revoked);
        assert!(runtimes.iter().next().unwrap().hosts.is_empty());
        let (text, last, made_room) = add(&text).unwrap();
        assert_eq!(made_room, RevokedCredentials::of_id(first.as_str(), None));
        let runtimes = read("acme-prod", &text).unwrap();
        assert!(runtimes.token(first).is_none() && runtimes.token(last).is_some());
        assert_eq!(runtimes.token_count(), TOKENS);
    }

    #[test]
    fn a_token_that_could_not_be_used_is_not_made() {
        let text = definition(FULL).unwrap();
        let runtimes = read("acme-prod", &text).unwrap();
        let token = Token::generate().unwrap();
        for (expires, note, key) in [
            (Some("2020-01-01T00:00:00Z"), None, "expires"),
            (Some("tomorrow"), None, "expires"),
            (None, Some("x".repeat(NOTE + 1)), "note"),
        ] {
            let new = NewToken {
                expires: expires.map(str::to_owned),
                note,
            };
            let refused = add_token(&text, &runtimes, &new, &token).unwrap_err();
            assert!(refused.to_string().starts_with(key), "{refused}");
        }
        let unknown = revoke_token(&text, &runtimes, token.id());
        assert!(matches!(unknown, Err(ManagedError::TokenUnknown { .. })));
    }
}
