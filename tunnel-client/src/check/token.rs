//! What a token says without the server: its kind, its times if it has any, and who may read its file.
//!
//! No signature is verified, which only the server can do. Texts contain nothing of a token but its public parts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::text::{moment, printable, span};
use crate::token_file::{self, PREFIX, TokenFileError};

/// Digits of a runtime token's id, and letters of its secret.
const ID_DIGITS: usize = 16;
const SECRET_LETTERS: usize = 43;

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenEvidence {
    pub(super) path: PathBuf,
    pub(super) kind: TokenKind,
    /// When its validity begins and ends.
    pub(super) not_before: Option<SystemTime>,
    pub(super) expires: Option<SystemTime>,
    /// Whether every user of the machine may read the file, and its owner may change that.
    pub(super) is_readable_by_all: bool,
}

/// The kind of a token, by its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A token of the server's runtimes file.
    Runtime {
        /// Its public part.
        id: String,
    },
    /// Starts like a runtime token but is malformed.
    DamagedRuntime,
    /// A JSON Web Token.
    Jwt {
        /// Its claim `iss`.
        issuer: Option<String>,
    },
    /// Looks like a JSON Web Token but cannot be parsed.
    DamagedJwt,
    /// Any other, which only the platform knows.
    Opaque,
}

/// The claims of a JSON Web Token that are read.
#[derive(Deserialize)]
struct Claims {
    nbf: Option<Value>,
    exp: Option<Value>,
    iss: Option<Value>,
}

impl TokenEvidence {
    /// Reads the token in this file.
    pub(super) fn read(path: &Path) -> Result<Self, TokenFileError> {
        let token = token_file::read(path)?;
        let mut evidence = Self {
            path: path.to_owned(),
            kind: TokenKind::Opaque,
            not_before: None,
            expires: None,
            is_readable_by_all: is_readable_by_all(path),
        };
        evidence.classify(token.expose_secret());
        Ok(evidence)
    }

    fn classify(&mut self, token: &str) {
        if let Some(rest) = token.strip_prefix(PREFIX) {
            self.kind = match rest.split_once('_') {
                Some((id, secret)) if is_id(id) && is_secret(secret) => {
                    TokenKind::Runtime { id: id.to_owned() }
                }
                _ => TokenKind::DamagedRuntime,
            };
            return;
        }
        let parts: Vec<&str> = token.split('.').collect();
        let [head, claims, _] = parts[..] else {
            return;
        };
        if !(head.starts_with("ey") || head.starts_with("ew")) {
            return;
        }
        let head: Option<Map<String, Value>> = decoded(head);
        let (Some(_), Some(claims)) = (head, decoded::<Claims>(claims)) else {
            self.kind = TokenKind::DamagedJwt;
            return;
        };
        self.not_before = claims.nbf.as_ref().and_then(instant);
        self.expires = claims.exp.as_ref().and_then(instant);
        let issuer = claims.iss.as_ref().and_then(Value::as_str);
        self.kind = TokenKind::Jwt {
            issuer: issuer.map(printable),
        };
    }

    /// Whether it is expired at this moment, by its own claims.
    pub(super) fn is_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Whether it is not valid yet at this moment.
    pub(super) fn is_early(&self, now: SystemTime) -> bool {
        self.not_before.is_some_and(|begin| begin > now)
    }

    /// On one line.
    pub(super) fn line(&self, now: SystemTime) -> String {
        let kind = match &self.kind {
            TokenKind::Runtime { id } => format!("a runtime token, id {id}"),
            TokenKind::DamagedRuntime => {
                "starts like a runtime token but is malformed: is it complete?".to_owned()
            }
            TokenKind::Jwt {
                issuer: Some(issuer),
            } => format!("a JSON Web Token of {issuer}"),
            TokenKind::Jwt { issuer: None } => "a JSON Web Token".to_owned(),
            TokenKind::DamagedJwt => {
                "looks like a JSON Web Token but cannot be parsed: is it complete?".to_owned()
            }
            TokenKind::Opaque => {
                "neither a runtime token nor a JWT: whether it is valid, only the server can tell"
                    .to_owned()
            }
        };
        let times = match (self.not_before, self.expires) {
            (Some(begin), _) if begin > now => format!(", not valid before {}", moment(begin)),
            (_, Some(end)) => match end.duration_since(now) {
                Ok(left) => format!(", valid for {} more, to {}", span(left), moment(end)),
                Err(_) => format!(", EXPIRED at {}", moment(end)),
            },
            _ => String::new(),
        };
        let readers = match self.is_readable_by_all {
            true => "; every user of this machine can read the file: chmod 600",
            false => "",
        };
        format!("{}: {kind}{times}{readers}", self.path.display())
    }

    /// Whether a part of it seems to be missing.
    pub(super) fn is_damaged(&self) -> bool {
        matches!(self.kind, TokenKind::DamagedRuntime | TokenKind::DamagedJwt)
    }
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == ID_DIGITS && text.bytes().all(is_digit)
}

fn is_secret(text: &str) -> bool {
    text.len() == SECRET_LETTERS && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn decoded<T: DeserializeOwned>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&json).ok()
}

/// A NumericDate (RFC 7519 section 2).
fn instant(value: &Value) -> Option<SystemTime> {
    let seconds = value.as_u64().or_else(|| {
        let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0)?;
        Duration::try_from_secs_f64(seconds)
            .ok()
            .map(|time| time.as_secs())
    })?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(unix)]
fn is_readable_by_all(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    // A file of a Kubernetes volume has the mode of the volume, and only the pod can read it.
    let data = path.parent().map(|folder| folder.join("..data"));
    let is_of_a_volume = data.is_some_and(|data| data.symlink_metadata().is_ok());
    let metadata = fs::metadata(path);
    !is_of_a_volume && metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_readable_by_all(_path: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn evidence(token: &str) -> TokenEvidence {
        let mut evidence = TokenEvidence {
            path: "token".into(),
            kind: TokenKind::Opaque,
            not_before: None,
            expires: None,
            is_readable_by_all: false,
        };
        evidence.classify(token);
        evidence
    }

    fn jwt(claims: &str) -> String {
        let part = |json: &str| URL_SAFE_NO_PAD.encode(json);
        format!(
            "{}.{}.c2lnbmF0dXJl",
            part(r#"{"alg":"ES256"}"#),
            part(claims)
        )
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_is_known_by_its_form() {
        let secret = "a".repeat(SECRET_LETTERS);
        let good = format!("tnlrt_0123456789abcdef_{secret}");
        let id = "0123456789abcdef".to_owned();
        for (token, kind) in [
            (good.as_str(), TokenKind::Runtime { id }),
            (&good[..40], TokenKind::DamagedRuntime),
            ("tnlrt_", TokenKind::DamagedRuntime),
            ("eyJhbGciOiJFUzI1NiJ9.e30", TokenKind::Opaque),
            (
                "eyJhbGciOiJFUzI1NiJ9.e30.x",
                TokenKind::Jwt { issuer: None },
            ),
            ("eyJhbGci.e30.x", TokenKind::DamagedJwt),
            ("eyJhbGciOiJFUzI1NiJ9.e.x", TokenKind::DamagedJwt),
            ("a.b.c", TokenKind::Opaque),
            ("4f7c", TokenKind::Opaque),
        ] {
            assert_eq!(evidence(token).kind, kind, "{token}");
        }
    }

    #[test]
    fn a_json_web_token_says_when_it_is_valid() {
        let read = evidence(&jwt(
            r#"{"iss":"https://id.example","nbf":100,"exp":200.5}"#,
        ));
        assert_eq!(
            (read.not_before, read.expires),
            (Some(at(100)), Some(at(200)))
        );
        assert!(read.is_early(at(99)) && !read.is_early(at(100)));
        assert!(!read.is_expired(at(199)) && read.is_expired(at(200)));
        let line = read.line(at(300));
        assert!(
            line.contains("https://id.example") && line.contains("EXPIRED"),
            "{line}"
        );
        let line = read.line(at(140));
        assert!(
            line.contains("valid for 1m more, to 1970-01-01T00:03:20Z"),
            "{line}"
        );
        for odd in [
            r#"{"exp":"soon"}"#,
            r#"{"exp":-1}"#,
            r#"{"exp":1e300}"#,
            "{}",
        ] {
            assert_eq!(evidence(&jwt(odd)).expires, None, "{odd}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_rights_of_its_file_are_read_too() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let error = |path: &Path| TokenEvidence::read(path).unwrap_err();
        assert!(matches!(error(&path), TokenFileError::Unreadable { .. }));
        fs::write(&path, " \n").unwrap();
        assert!(matches!(error(&path), TokenFileError::Empty { .. }));
        fs::write(&path, "two words").unwrap();
        assert!(matches!(error(&path), TokenFileError::NotAToken { .. }));
        fs::write(&path, "secret").unwrap();
        for (mode, is_readable_by_all) in [(0o600, false), (0o640, false), (0o644, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let evidence = TokenEvidence::read(&path).unwrap();
            assert_eq!(evidence.is_readable_by_all, is_readable_by_all, "{mode:o}");
            assert_eq!(evidence.line(at(0)).contains("chmod"), is_readable_by_all);
            assert!(!evidence.line(at(0)).contains("secret"));
        }
        std::os::unix::fs::symlink("..2026", folder.path().join("..data")).unwrap();
        let evidence = TokenEvidence::read(&path).unwrap();
        assert!(
            !evidence.line(at(0)).contains("chmod"),
            "of a volume: {evidence:?}"
        );
        assert!(matches!(
            error(folder.path()),
            TokenFileError::NotAFile { .. }
        ));
    }

    proptest! {
        #[test]
        fn no_token_makes_it_panic_or_is_shown(secret in "[a-zA-Z0-9]{20,60}", form in 0..3) {
            let token = match form {
                0 => secret.clone(),
                1 => format!("tnlrt_{secret}"),
                _ => format!("ey{secret}.{secret}.{secret}"),
            };
            let evidence = evidence(&token);
            let text = format!("{evidence:?} {}", evidence.line(at(0)));
            prop_assert!(!text.contains(&secret));
        }
    }
}
