//! Tokens that are listed in the runtimes file.
//!
//! What is kept of a token is its public id and a hash of the whole. The comparison takes the same time
//! whatever differs, and an unknown id is compared all the same.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use crate::runtimes::{RuntimeEntry, Runtimes};
use crate::token::{NotAToken, Token, TokenHash};

/// The hash compared with when no token has the id, so that an unknown id costs the same as a wrong
/// secret. Nobody knows a token with this hash, and a match would be refused all the same.
const NOBODY: TokenHash = [0; 32];

/// Why a presented token lets nobody in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenRefusal {
    /// It has not the form of a token.
    #[error("the credential is not a runtime token: it begins with `tnlrt_`")]
    NotAToken,
    /// It has the form, and is not one of those listed. Whether the id is known is not told.
    #[error("the token is not known or no longer good: ask for a new one")]
    Unknown,
}

/// The runtime that the presented text lets in. An unknown id and a wrong secret cost the same and
/// get the same refusal.
pub fn verify<'a>(
    runtimes: &'a Runtimes,
    presented: &str,
) -> Result<&'a Arc<RuntimeEntry>, TokenRefusal> {
    let token = Token::parse(presented).map_err(|NotAToken| TokenRefusal::NotAToken)?;
    let known = runtimes.token(token.id);
    let stored = known.map_or(&NOBODY, |(_, hash)| hash);
    let equal = bool::from(token.sha256.ct_eq(stored));
    match known {
        Some((runtime, _)) if equal => Ok(runtime),
        _ => Err(TokenRefusal::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use tunnel_ops::config_file::TomlFile;

    use super::*;
    use crate::runtimes::edit::{Addition, add_token};

    fn listed(token: &Token) -> Runtimes {
        let (account, runtime) = ("acme".parse().unwrap(), "prod".parse().unwrap());
        let addition = Addition {
            account: &account,
            runtime: &runtime,
            hosts: &[],
            token,
            note: None,
        };
        let text = add_token("", &addition).unwrap();
        Runtimes::parse(
            &TomlFile::from_text("r.toml", text),
            &"tunnels.localhost".parse().unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn a_listed_token_lets_its_runtime_in() {
        let token = Token::generate().unwrap();
        let runtimes = listed(&token);
        assert_eq!(
            verify(&runtimes, token.expose()).unwrap().label.as_str(),
            "acme-prod"
        );
    }

    #[test]
    fn an_unknown_id_and_a_wrong_secret_get_the_same_refusal() {
        let token = Token::generate().unwrap();
        let runtimes = listed(&token);
        let stranger = Token::generate().unwrap();
        let last = if token.expose().ends_with('x') {
            "y"
        } else {
            "x"
        };
        let wrong_secret = format!("{}{last}", &token.expose()[..token.expose().len() - 1]);
        assert_eq!(
            verify(&runtimes, stranger.expose()),
            Err(TokenRefusal::Unknown)
        );
        assert_eq!(verify(&runtimes, &wrong_secret), Err(TokenRefusal::Unknown));
    }

    #[test]
    fn what_has_not_the_form_is_refused_as_such() {
        let token = Token::generate().unwrap();
        let runtimes = listed(&token);
        let good = token.expose();
        for text in [
            "",
            "tnlrt_",
            "secret",
            &good[1..],
            &good[..good.len() - 1],
            &format!("{good}a"),
            &format!("{good}\n"),
        ] {
            assert_eq!(
                verify(&runtimes, text),
                Err(TokenRefusal::NotAToken),
                "{text}"
            );
        }
    }
}
