//! The login for a proxy, and the file that holds it.
//!
//! In: a path, at each dial, since passwords may change while a client runs. Out: user and password. No error or log
//! contains them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use tunnel_ops::byte_order_mark::bytes_without_mark;

/// Largest file that is read: far more than any login.
const MAX_BYTES: u64 = 16 * 1024;

/// The user name and password for a proxy.
#[derive(Clone)]
pub struct ProxyLogin {
    /// The user, without a colon or control characters.
    pub user: String,
    /// The password, without control characters.
    pub password: SecretString,
}

impl PartialEq for ProxyLogin {
    fn eq(&self, other: &Self) -> bool {
        self.user == other.user && self.password.expose_secret() == other.password.expose_secret()
    }
}

impl Eq for ProxyLogin {}

/// Why there is no login.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// The file cannot be read.
    #[error("the proxy's login file {} cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file does not hold a login.
    #[error("the proxy's login file {} holds no login: put `user:password` into it, on one line and alone", .path.display())]
    NotALogin {
        /// The file.
        path: PathBuf,
    },
}

impl LoginError {
    /// The file at fault.
    pub(super) fn file(&self) -> &Path {
        match self {
            Self::Unreadable { path, .. } | Self::NotALogin { path } => path,
        }
    }
}

/// Reads `user:password`. The end of the line is removed, other white space is kept.
pub(crate) fn read(path: &Path) -> Result<ProxyLogin, LoginError> {
    let unreadable = |source| LoginError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    login_in(&bytes).ok_or_else(|| LoginError::NotALogin {
        path: path.to_owned(),
    })
}

fn login_in(bytes: &[u8]) -> Option<ProxyLogin> {
    if bytes.len() as u64 > MAX_BYTES {
        return None;
    }
    let text = std::str::from_utf8(bytes_without_mark(bytes)).ok()?;
    let (user, password) = text.trim_end_matches(['\r', '\n']).split_once(':')?;
    check(user, password)
}

/// Checks a login; `None` if it cannot be sent to a proxy: no scheme supports a colon in the user's name, and control
/// characters are a mistake or an attack.
pub(crate) fn check(user: &str, password: &str) -> Option<ProxyLogin> {
    let is_possible = !user.is_empty()
        && !user.contains(':')
        && !user.contains(char::is_control)
        && !password.contains(char::is_control);
    is_possible.then(|| ProxyLogin {
        user: user.to_owned(),
        password: SecretString::from(password),
    })
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn read_bytes(bytes: &[u8]) -> Result<ProxyLogin, LoginError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("login");
        std::fs::write(&path, bytes).unwrap();
        read(&path)
    }

    #[test]
    fn the_first_colon_parts_user_and_password() {
        for (text, user, password) in [
            ("me:secret", "me", "secret"),
            ("CORP\\me:se:cr et\r\n", "CORP\\me", "se:cr et"),
            ("me:\n", "me", ""),
            ("\u{feff}me:secret", "me", "secret"),
        ] {
            let login = read_bytes(text.as_bytes()).unwrap();
            assert_eq!(
                (login.user.as_str(), login.password.expose_secret()),
                (user, password)
            );
        }
    }

    #[test]
    fn what_is_no_login_is_refused_and_not_shown() {
        for bytes in [
            &b""[..],
            b"secret",
            b":secret",
            b"me:secret\nmore",
            b"me:\xffsecret",
            &[b':'; 20_000],
        ] {
            let error = read_bytes(bytes).unwrap_err();
            assert!(matches!(error, LoginError::NotALogin { .. }), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let missing = read(Path::new("/nowhere/login")).unwrap_err().to_string();
        assert!(
            missing.contains("/nowhere/login cannot be read"),
            "{missing}"
        );
    }
}
