//! The file that holds only the token.
//!
//! In: its path, at each dial, since tokens may change while a client runs. Out: the token, whose kind only the server
//! knows. No error or log contains a part of it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use tunnel_ops::byte_order_mark::bytes_without_mark;

/// Largest file that is read: far more than any token, and within the limit of a request's head.
const MAX_BYTES: u64 = 16 * 1024;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The path is a token, which the error does not contain.
    #[error(
        "the token itself was given (not shown) in place of its file: put it into a file; others on this machine may \
         have seen it, so have it replaced"
    )]
    TokenItself,
    /// The file cannot be read.
    #[error("the token file `{}` cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is a pipe, a folder, or something else that cannot be read again at the next dial.
    #[error(
        "the token file `{}` is not a regular file: put the token into one, which is read at each dial",
        .path.display()
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is empty.
    #[error("the token file `{}` is empty: put the token into it", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file does not hold a token.
    #[error("the token file `{}` holds something else: put the token into it, on one line and alone", .path.display())]
    NotAToken {
        /// The file.
        path: PathBuf,
    },
}

impl TokenFileError {
    /// The file; `None` if the path is a secret.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::TokenItself => None,
            Self::Unreadable { path, .. }
            | Self::NotAFile { path }
            | Self::Empty { path }
            | Self::NotAToken { path } => Some(path),
        }
    }
}

/// The beginning of a runtime token.
pub(crate) const PREFIX: &str = "tnlrt_";

/// Reads the token, without white space around it.
pub fn read(path: &Path) -> Result<SecretString, TokenFileError> {
    let unreadable = |source| TokenFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    if is_token(path) {
        return Err(TokenFileError::TokenItself);
    }
    // Checked first, since opening a pipe without a writer blocks.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(TokenFileError::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    let token = bytes_without_mark(&bytes).trim_ascii();
    if token.is_empty() {
        return Err(TokenFileError::Empty {
            path: path.to_owned(),
        });
    }
    // Other bytes are not allowed in an `Authorization` field.
    let fits = bytes.len() as u64 <= MAX_BYTES && token.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(token) {
        Ok(token) if fits => Ok(token.into()),
        _ => Err(TokenFileError::NotAToken {
            path: path.to_owned(),
        }),
    }
}

/// Whether the path is itself a token: a runtime token, or a JSON Web Token.
fn is_token(path: &Path) -> bool {
    let Some(text) = path.to_str().filter(|text| !text.contains('/')) else {
        return false;
    };
    let is_jwt = text.starts_with("ey") && text.len() > 64 && text.split('.').count() == 3;
    text.trim_ascii_start().starts_with(PREFIX) || is_jwt
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn read_bytes(bytes: &[u8]) -> Result<SecretString, TokenFileError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, bytes).unwrap();
        read(&path)
    }

    #[test]
    fn a_token_is_read_without_the_white_space_around_it() {
        for text in [
            "tnlrt_1_a",
            "tnlrt_1_a\n",
            "  tnlrt_1_a\r\n",
            "\u{feff}tnlrt_1_a\r\n",
        ] {
            assert_eq!(
                read_bytes(text.as_bytes()).unwrap().expose_secret(),
                "tnlrt_1_a"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_token_is_read_through_links_and_from_nothing_but_files() {
        let folder = tempfile::tempdir().unwrap();
        let (link, token) = (folder.path().join("link"), folder.path().join("token"));
        fs::write(&token, "tnlrt_1_a").unwrap();
        std::os::unix::fs::symlink("token", &link).unwrap();
        assert_eq!(read(&link).unwrap().expose_secret(), "tnlrt_1_a");
        for other in [folder.path(), Path::new("/dev/null")] {
            let error = read(other).unwrap_err();
            assert!(matches!(error, TokenFileError::NotAFile { .. }), "{error}");
        }
    }

    #[test]
    fn a_token_in_place_of_its_file_is_not_shown() {
        let jwt = format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln", "A".repeat(64));
        for token in ["tnlrt_0123_secret", jwt.as_str()] {
            let error = read(Path::new(token)).unwrap_err();
            assert!(matches!(error, TokenFileError::TokenItself), "{error}");
            assert!(!format!("{error} {error:?}").contains(token), "{error:?}");
        }
        let error = read(Path::new("./tnlrt_0123_secret")).unwrap_err();
        assert!(matches!(error, TokenFileError::Unreadable { .. }));
    }

    #[test]
    fn what_is_no_token_is_refused_and_not_shown() {
        assert!(matches!(
            read_bytes(b" \n"),
            Err(TokenFileError::Empty { .. })
        ));
        for bytes in [
            &b"two words"[..],
            b"two\nlines",
            b"t\xc3\xb6ken",
            b"\xff",
            &[b'x'; 20_000],
        ] {
            let error = read_bytes(bytes).unwrap_err();
            assert!(matches!(error, TokenFileError::NotAToken { .. }), "{error}");
            assert!(!error.to_string().contains("two"), "{error}");
        }
        let missing = read(Path::new("/nowhere/token")).unwrap_err().to_string();
        assert!(
            missing.starts_with("the token file `/nowhere/token` cannot be read"),
            "{missing}"
        );
    }
}
