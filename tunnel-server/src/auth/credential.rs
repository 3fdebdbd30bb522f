//! The public identity of a credential: its kind and an id, never a secret.
//!
//! Logs, the admin API and the revocation list use it. The id of a credential that has none of its own is the first
//! digits of its hash.

use std::fmt::{self, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Digits of a hash that identify a credential: 64 bits, which makes a collision by chance unlikely.
const HASH_DIGITS: usize = 16;

/// The kind of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CredentialKind {
    /// A token listed in the runtimes file.
    Token,
    /// A JSON Web Token.
    Jwt,
    /// A token that the platform verified.
    Platform,
    /// A client certificate.
    Certificate,
}

/// Identifies a credential. Displayed as `token 0123456789abcdef`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CredentialId {
    kind: CredentialKind,
    id: Arc<str>,
}

/// The public data of a credential, as the admin API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialView {
    /// Its kind: `token`, `jwt`, `platform` or `certificate`.
    pub kind: String,
    /// Its public id.
    pub id: String,
}

impl From<&CredentialId> for CredentialView {
    fn from(credential: &CredentialId) -> Self {
        Self {
            kind: credential.kind.name().to_owned(),
            id: credential.id.to_string(),
        }
    }
}

impl CredentialKind {
    /// The kind's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Jwt => "jwt",
            Self::Platform => "platform",
            Self::Certificate => "certificate",
        }
    }
}

impl CredentialId {
    pub(super) fn new(kind: CredentialKind, id: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            id: id.into(),
        }
    }

    /// The issuer's id for the token, if [`is_id`](Self::is_id) accepts it. Otherwise the first digits of the hash of
    /// `whole`, the part of the token that cannot be encoded in another way.
    pub(super) fn of_token(kind: CredentialKind, issuer_id: Option<&str>, whole: &str) -> Self {
        match issuer_id.filter(|id| Self::is_id(id)) {
            Some(id) => Self::new(kind, id),
            None => Self::new(kind, hash_digits(whole.as_bytes())),
        }
    }

    /// Longest id that is taken from a credential, in bytes. A longer one is replaced by the hash.
    pub(crate) const ID_BYTES: usize = 128;

    /// The advice in the error for an invalid id.
    pub(crate) const EXPECTED: &str = "expected an id of 1 to 128 printable ASCII characters without spaces; a \
        credential without such an id has 16 digits of its hash, shown in the log and by `runtimes show`";

    /// Whether the text can be a credential's id.
    pub(crate) fn is_id(text: &str) -> bool {
        !text.is_empty()
            && text.len() <= Self::ID_BYTES
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// The credential's kind.
    #[must_use]
    pub fn kind(&self) -> CredentialKind {
        self.kind
    }

    /// The public id, as in the revocation list.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.id)
    }
}

/// The first digits of a hash.
pub(super) fn hash_digits(whole: &[u8]) -> String {
    let mut digits = String::with_capacity(HASH_DIGITS);
    for byte in Sha256::digest(whole).iter().take(HASH_DIGITS / 2) {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// A text from outside in the form in which it is logged: printable ASCII, `most` characters at most, with `?` for
/// any other character.
pub(super) fn printable(text: &str, most: usize) -> String {
    let replaced = |letter: char| match letter {
        ' '..='~' => letter,
        _ => '?',
    };
    text.chars().take(most).map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_id_is_replaced_by_the_hash() {
        let id = |own| CredentialId::of_token(CredentialKind::Jwt, own, "abc").to_string();
        assert_eq!(id(Some("a-1")), "jwt a-1");
        let hash = "jwt ba7816bf8f01cfea";
        for bad in [None, Some(""), Some("a b"), Some("a\n"), Some("é")] {
            assert_eq!(id(bad), hash);
        }
        assert_eq!(id(Some(&"x".repeat(129))), hash);
    }

    #[test]
    fn logged_text_is_short_and_printable() {
        assert_eq!(printable("a\u{1b}[31m\nä", 20), "a?[31m??");
        assert_eq!(printable("abcdef", 3), "abc");
    }
}
