//! Which credential it was: a kind and a public id, never a secret.
//!
//! For logs, the admin API and the list of revocations. Where a credential has no id of its own, the
//! first digits of its hash are one.

use std::fmt::{self, Write};
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Digits of a hash that stand for a credential: 64 bits, so that two do not meet by chance.
const HASH_DIGITS: usize = 16;

/// What kind of credential it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CredentialKind {
    /// A token listed in the runtimes file.
    Token,
    /// A JSON Web Token.
    Jwt,
    /// A token that the platform was asked about.
    Platform,
    /// A client certificate.
    Certificate,
}

/// Which credential it is. Shown as `token 0123456789abcdef`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CredentialId {
    kind: CredentialKind,
    id: Arc<str>,
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

    /// The issuer's id for the token, if it has one that is an id here. Otherwise the first digits of the hash of
    /// `whole`: the part of the token of which there is one spelling only.
    pub(super) fn of_token(kind: CredentialKind, given: Option<&str>, whole: &str) -> Self {
        match given.filter(|id| Self::is_id(id)) {
            Some(id) => Self::new(kind, id),
            None => Self::new(kind, hash_digits(whole.as_bytes())),
        }
    }

    /// Longest id taken from a credential, in bytes; one that is longer is known by its hash.
    pub(crate) const ID_BYTES: usize = 128;

    /// What an id has to be, as the error for one that is none says it.
    pub(crate) const EXPECTED: &str = "expected an id of 1 to 128 printable ASCII characters without spaces; a \
        credential whose own id is none is known by 16 digits of its hash, which the log and `runtimes show` have";

    /// Whether the text can be a credential's id.
    pub(crate) fn is_id(text: &str) -> bool {
        !text.is_empty()
            && text.len() <= Self::ID_BYTES
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// What kind of credential it is.
    #[must_use]
    pub fn kind(&self) -> CredentialKind {
        self.kind
    }

    /// The public id: what a list of revocations names.
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
        // Writing into a string has no way to fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// A text from outside in the form in which it is logged: printable ASCII, `most` characters at most, with `?` for
/// any other character.
pub(super) fn shown(text: &str, most: usize) -> String {
    let printable = |letter: char| match letter {
        ' '..='~' => letter,
        _ => '?',
    };
    text.chars().take(most).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_no_word_gives_way_to_the_hash() {
        let id = |given| CredentialId::of_token(CredentialKind::Jwt, given, "abc").to_string();
        assert_eq!(id(Some("a-1")), "jwt a-1");
        let hash = "jwt ba7816bf8f01cfea";
        for bad in [None, Some(""), Some("a b"), Some("a\n"), Some("é")] {
            assert_eq!(id(bad), hash);
        }
        assert_eq!(id(Some(&"x".repeat(129))), hash);
    }

    #[test]
    fn what_is_shown_is_short_and_printable() {
        assert_eq!(shown("a\u{1b}[31m\nä", 20), "a?[31m??");
        assert_eq!(shown("abcdef", 3), "abc");
    }
}
