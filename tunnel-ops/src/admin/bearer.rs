//! Whether a request carries the operator's token.
//!
//! In: a file with the token, and the fields of requests. Out: yes, or the reason of a refusal. Only a hash of the
//! token is kept, and compared in constant time. Which requests need the token, and when the file is read again, is
//! decided by the programs.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::byte_order_mark::bytes_without_mark;

/// Fewer characters than this can be guessed.
const MIN_TOKEN: usize = 16;

/// Compares a request's bearer token with the hash of the operator's. Made anew when the file changes.
pub struct BearerGuard {
    hash: [u8; 32],
}

/// The token's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BearerFileError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is in the file is no token.
    #[error(
        "{}: holds no usable token: give one line of at least {MIN_TOKEN} letters, digits and signs, without spaces",
        .path.display()
    )]
    NoToken {
        /// The file.
        path: PathBuf,
    },
}

impl BearerFileError {
    /// The file at fault.
    #[must_use]
    pub fn file(&self) -> &Path {
        match self {
            Self::Unreadable { path, .. } | Self::NoToken { path } => path,
        }
    }
}

/// Why a request is refused. The answer to all of them is 401 with the [challenge](Self::challenge).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BearerRefusal {
    /// No credential.
    #[error("a token is needed: send `Authorization: Bearer` with the operator's token")]
    Missing,
    /// Something that is no bearer token, or two of them.
    #[error(
        "the credential cannot be understood: send one `Authorization: Bearer` with the operator's token"
    )]
    Malformed,
    /// Another token.
    #[error("the token is not the operator's")]
    Wrong,
}

impl BearerGuard {
    /// Reads the token from a file; space around it does not count.
    pub fn load(path: &Path) -> Result<Self, BearerFileError> {
        Ok(Self { hash: read(path)? })
    }

    /// Whether these are the fields of a request of the operator's.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), BearerRefusal> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let credential = match (given.next(), given.next()) {
            (None, _) => return Err(BearerRefusal::Missing),
            (Some(credential), None) => credential.as_bytes(),
            (Some(_), Some(_)) => return Err(BearerRefusal::Malformed),
        };
        let token = bearer(credential).ok_or(BearerRefusal::Malformed)?;
        match bool::from(hash(token).ct_eq(&self.hash)) {
            true => Ok(()),
            false => Err(BearerRefusal::Wrong),
        }
    }
}

impl BearerRefusal {
    /// The value of `WWW-Authenticate` in the answer.
    #[must_use]
    pub fn challenge(&self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Missing => "Bearer",
            Self::Malformed => "Bearer error=\"invalid_request\"",
            Self::Wrong => "Bearer error=\"invalid_token\"",
        })
    }
}

impl fmt::Debug for BearerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerGuard").finish_non_exhaustive()
    }
}

fn read(path: &Path) -> Result<[u8; 32], BearerFileError> {
    let text = fs::read(path).map_err(|source| BearerFileError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let token = bytes_without_mark(&text).trim_ascii();
    // What could not stand in a header field would never match.
    if token.len() < MIN_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
        return Err(BearerFileError::NoToken {
            path: path.to_owned(),
        });
    }
    Ok(hash(token))
}

fn bearer(credential: &[u8]) -> Option<&[u8]> {
    let space = credential.iter().position(|byte| *byte == b' ')?;
    let (scheme, token) = credential.split_at(space);
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then_some(token)
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "s3cret-s3cret-s3cret";

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[track_caller]
    fn check(guard: &BearerGuard, fields: &[&str], expected: Result<(), BearerRefusal>) {
        let value = |field: &&str| (AUTHORIZATION, HeaderValue::from_str(field).unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in fields.iter().map(value) {
            headers.append(name, value);
        }
        assert_eq!(guard.check(&headers), expected, "{fields:?}");
    }

    #[test]
    fn only_the_token_of_the_file_is_good() {
        let guard = BearerGuard::load(file(&format!(" {TOKEN}\n")).path()).unwrap();
        let good = format!("Bearer {TOKEN}");
        check(&guard, &[&good], Ok(()));
        check(&guard, &[&format!("bEARER  {TOKEN}")], Ok(()));
        check(&guard, &[], Err(BearerRefusal::Missing));
        check(&guard, &[&good, &good], Err(BearerRefusal::Malformed));
        check(&guard, &[TOKEN], Err(BearerRefusal::Malformed));
        let basic = format!("Basic {TOKEN}");
        check(&guard, &[&basic], Err(BearerRefusal::Malformed));
        check(&guard, &["Bearer "], Err(BearerRefusal::Malformed));
        check(&guard, &[&good[..20]], Err(BearerRefusal::Wrong));
        check(&guard, &[&format!("{good}x")], Err(BearerRefusal::Wrong));
    }

    #[test]
    fn what_is_no_token_is_refused_and_never_shown() {
        for text in [
            "",
            "\n",
            "short",
            "two words of some length",
            "länger-als-sechzehn",
        ] {
            let error = BearerGuard::load(file(text).path()).unwrap_err();
            let text = text.trim();
            assert!(matches!(error, BearerFileError::NoToken { .. }), "{text}");
            assert!(text.is_empty() || !error.to_string().contains(text));
        }
        let error = BearerGuard::load(Path::new("/nowhere/token")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("/nowhere/token: cannot be read")
        );
        let guard = BearerGuard::load(file(TOKEN).path()).unwrap();
        assert!(!format!("{guard:?}").contains("s3cret"));
    }
}
