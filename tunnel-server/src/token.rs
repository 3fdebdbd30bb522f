//! Runtime tokens, with which tunnel clients authenticate.
//!
//! ```text
//!   tnlrt_ 0123456789abcdef _ 43 letters and digits
//!   prefix public id          secret, 256 bits
//! ```
//!
//! The prefix is for secret scanners, the id for people and files. Only the SHA-256 of the whole
//! token is ever stored. Only [`Token::expose`] returns a token's text: no `Debug`, error or log
//! shows it.

use std::fmt;
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

/// The prefix, which identifies the kind of secret.
pub(crate) const PREFIX: &str = "tnlrt_";

/// Hexadecimal digits of the public id: 64 bits, so that random ids do not collide.
const ID_DIGITS: usize = 16;

/// Characters of the secret: 43 of an alphabet of 62 have 256 bits.
const SECRET_LETTERS: usize = 43;

const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// SHA-256 of a whole token's text.
pub type TokenHash = [u8; 32];

/// The public part of a token: 16 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId([u8; ID_DIGITS]);

/// A new token, with its secret.
pub struct Token {
    id: TokenId,
    text: SecretString,
}

/// A presented token: its id and its hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParsedToken {
    /// The id in the text.
    pub id: TokenId,
    /// SHA-256 of the text.
    pub sha256: TokenHash,
}

/// The text does not have the form of a token. The error does not repeat it, since it may still be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a runtime token: expected `tnlrt_`, 16 hexadecimal digits, `_` and 43 letters and digits"
)]
pub struct NotAToken;

impl Token {
    /// Generates a new token.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let id = TokenId(hex_digits(getrandom::u64()?));
        let text = format!("{PREFIX}{id}_{}", secret()?);
        Ok(Self {
            id,
            text: text.into(),
        })
    }

    /// Parses a presented text.
    pub fn parse(text: &str) -> Result<ParsedToken, NotAToken> {
        let rest = text.strip_prefix(PREFIX).ok_or(NotAToken)?;
        let (id, secret) = rest.split_once('_').ok_or(NotAToken)?;
        let id = id.parse()?;
        if secret.len() != SECRET_LETTERS
            || !secret.bytes().all(|letter| letter.is_ascii_alphanumeric())
        {
            return Err(NotAToken);
        }
        Ok(ParsedToken {
            id,
            sha256: sha256(text),
        })
    }

    /// The public id.
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// The hash, which is what is stored of the token.
    pub fn sha256(&self) -> TokenHash {
        sha256(self.text.expose_secret())
    }

    /// The token itself, which is shown once to its owner.
    pub fn expose(&self) -> &str {
        self.text.expose_secret()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ParsedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParsedToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl TokenId {
    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl FromStr for TokenId {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let digits: [u8; ID_DIGITS] = text.as_bytes().try_into().map_err(|_| NotAToken)?;
        match digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        {
            true => Ok(Self(digits)),
            false => Err(NotAToken),
        }
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub(crate) fn sha256(text: &str) -> TokenHash {
    Sha256::digest(text.as_bytes()).into()
}

fn secret() -> Result<String, getrandom::Error> {
    let mut letters = String::with_capacity(SECRET_LETTERS);
    let mut random = [0; 2 * SECRET_LETTERS];
    while letters.len() < SECRET_LETTERS {
        getrandom::fill(&mut random)?;
        // Six bits choose among 64 values; the two without a character are rejected, so that all
        // are equally likely.
        let drawn = random
            .iter()
            .filter_map(|byte| LETTERS.get(usize::from(byte & 63)));
        let missing = SECRET_LETTERS - letters.len();
        letters.extend(drawn.take(missing).map(|letter| char::from(*letter)));
    }
    Ok(letters)
}

fn hex_digits(mut number: u64) -> [u8; ID_DIGITS] {
    let mut digits = [0; ID_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = match (number & 0xf) as u8 {
            value @ 0..=9 => b'0' + value,
            value => b'a' + value - 10,
        };
        number >>= 4;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_has_the_form_is_a_token() {
        let token = Token::generate().unwrap();
        let good = token.expose();
        assert!(Token::parse(good).is_ok());
        for text in ["", "tnlrt_", "secret", &good[1..], &good[..good.len() - 1]] {
            assert_eq!(Token::parse(text), Err(NotAToken), "{text}");
        }
        for text in [format!("{good}a"), format!("{good}\n"), good.to_uppercase()] {
            assert_eq!(Token::parse(&text), Err(NotAToken), "{text}");
        }
    }

    #[test]
    fn tokens_have_the_form_that_scanners_know_and_never_repeat() {
        let (one, other) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert_ne!(one.expose(), other.expose());
        assert_ne!(one.id(), other.id());
        assert_eq!(
            one.expose().len(),
            PREFIX.len() + ID_DIGITS + 1 + SECRET_LETTERS
        );
        let parsed = Token::parse(one.expose()).unwrap();
        assert_eq!((parsed.id, parsed.sha256), (one.id(), one.sha256()));
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = Token::generate().unwrap();
        let secret = token.expose().rsplit('_').next().unwrap();
        let parsed = Token::parse(token.expose()).unwrap();
        let shown = format!("{token:?} {parsed:?}");
        assert!(
            shown.contains(token.id().as_str()) && !shown.contains(secret),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(tnlrt_)?\\PC{0,70}") {
            let _ = Token::parse(&text);
        }
    }
}
