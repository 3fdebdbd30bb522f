//! Verifies tokens that are listed in the runtimes file.
//!
//! The file has a token's public id and a hash of the whole token. The comparison takes constant time, also for an unknown
//! id.

use std::sync::Arc;
use std::time::SystemTime;

use subtle::ConstantTimeEq;

use super::credential::{CredentialId, CredentialKind};
use super::labels::NamedRuntime;
use super::refusal::AuthRefusal;
use super::{Verified, VerifiedCredential};
use crate::runtimes::{ListedToken, RuntimeEntry, RuntimeLimits, Runtimes};
use crate::token::{NotAToken, PREFIX, Token, TokenHash, TokenId};

/// The hash that a token with an unknown id is compared with, so that an unknown id takes as much time as a wrong secret. A
/// match is refused too.
const UNKNOWN_HASH: TokenHash = [0; 32];

/// Whether the text has the prefix of these tokens. Does not verify it.
pub(super) fn has_form(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// Returns the runtime of a token and the token's entry in the runtimes file. An unknown id and a wrong secret take equal
/// time and get one refusal; any other fault is revealed only to a holder of the secret.
///
/// # Errors
/// When the token is malformed, unknown, revoked or expired.
pub fn verify<'a>(
    runtimes: &'a Runtimes,
    presented: &str,
    now: SystemTime,
) -> Result<(&'a Arc<RuntimeEntry>, &'a ListedToken), AuthRefusal> {
    let token = Token::parse(presented).map_err(|NotAToken| AuthRefusal::NotAToken)?;
    let known = runtimes.token(token.id);
    let stored = known.map_or(&UNKNOWN_HASH, |(_, listed)| &listed.sha256);
    let equal = is_equal(&token.sha256, stored);
    let (runtime, listed) = match known {
        Some(known) if equal => known,
        _ => return Err(AuthRefusal::TokenRefused),
    };
    if listed.revoked {
        return Err(AuthRefusal::CredentialRevoked(id_of(listed)));
    }
    match listed.expires {
        Some(expired) if expired <= now => Err(AuthRefusal::TokenExpired { expired, now }),
        _ => Ok((runtime, listed)),
    }
}

/// The runtime that the id of a token belongs to, and whether the secret is right too.
pub(super) fn identify(
    runtimes: &Runtimes,
    presented: &str,
) -> Option<(NamedRuntime, CredentialId, bool)> {
    let token = Token::parse(presented).ok()?;
    let (runtime, listed) = runtimes.token(token.id)?;
    let is_proven = token.sha256.ct_eq(&listed.sha256).into();
    Some((named(runtime), id_of(listed), is_proven))
}

/// The public id in a text of the form of these tokens. Nothing is verified.
pub(super) fn id_in(presented: &str) -> Option<TokenId> {
    Token::parse(presented).ok().map(|token| token.id)
}

/// Takes constant time.
fn is_equal(one: &TokenHash, other: &TokenHash) -> bool {
    #[cfg(test)]
    tests::COMPARED.with(|times| times.set(times.get() + 1));
    one.ct_eq(other).into()
}

pub(super) fn verified(runtime: &RuntimeEntry, token: &ListedToken) -> Verified {
    Verified {
        named: named(runtime),
        credential: VerifiedCredential {
            id: id_of(token),
            issued: token.created,
            expires: token.expires,
            listed: Some((token.id, token.sha256)),
            signed_with: None,
            chain: None,
        },
        query: None,
        renew_at: None,
        renewable_end: None,
    }
}

/// Limits and networks come from the file whenever the grant is checked.
fn named(runtime: &RuntimeEntry) -> NamedRuntime {
    NamedRuntime {
        account: runtime.account.clone(),
        name: runtime.name.clone(),
        limits: RuntimeLimits::default(),
        allow_from: None,
    }
}

fn id_of(token: &ListedToken) -> CredentialId {
    CredentialId::new(CredentialKind::Token, token.id.as_str())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tunnel_ops::config_file::TomlFile;

    use super::*;
    use crate::runtimes::edit::{TokenAddition, add_token};

    thread_local! {
        /// How often hashes were compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    fn listed(token: &Token, rest: &str) -> Runtimes {
        let (account, runtime) = ("acme".parse().unwrap(), "prod".parse().unwrap());
        let addition = TokenAddition {
            account: &account,
            runtime: &runtime,
            hosts: &[],
            token,
            created: None,
            expires: None,
            note: None,
        };
        let text = add_token("", &addition).unwrap() + rest;
        Runtimes::parse(
            &TomlFile::from_text("r.toml", text),
            &"tunnels.localhost".parse().unwrap(),
        )
        .unwrap()
    }

    fn label(runtimes: &Runtimes, presented: &str) -> Result<String, &'static str> {
        verify(runtimes, presented, SystemTime::now())
            .map(|(runtime, _)| runtime.label.to_string())
            .map_err(|refusal| refusal.name())
    }

    #[test]
    fn a_listed_token_authenticates_its_runtime() {
        let token = Token::generate().unwrap();
        let runtimes = listed(&token, "");
        assert_eq!(label(&runtimes, token.expose()).as_deref(), Ok("acme-prod"));
    }

    #[test]
    fn an_unknown_id_and_a_wrong_secret_get_the_same_refusal() {
        let token = Token::generate().unwrap();
        let unlisted = Token::generate().unwrap();
        let last = if token.expose().ends_with('x') {
            "y"
        } else {
            "x"
        };
        let wrong_secret = format!("{}{last}", &token.expose()[..token.expose().len() - 1]);
        // The refusal does not disclose that the token was revoked or has expired.
        for rest in ["", "revoked = true", "expires = 2020-01-01T00:00:00Z"] {
            let runtimes = listed(&token, rest);
            let refusal = |text| verify(&runtimes, text, SystemTime::now()).unwrap_err();
            assert_eq!(refusal(unlisted.expose()), AuthRefusal::TokenRefused);
            assert_eq!(refusal(&wrong_secret), AuthRefusal::TokenRefused);
        }
    }

    #[test]
    fn an_expired_or_revoked_token_is_refused_by_name() {
        let token = Token::generate().unwrap();
        let name = |rest| label(&listed(&token, rest), token.expose());
        assert_eq!(name("revoked = true"), Err("credential_revoked"));
        assert_eq!(name("expires = 2020-01-01T00:00:00Z"), Err("token_expired"));
        assert!(name("expires = 2999-01-01T00:00:00Z").is_ok());
        let runtimes = listed(&token, "expires = 2999-01-01T00:00:00Z");
        let (_, listed) = runtimes.tokens().next().unwrap();
        let end = listed.expires.unwrap();
        let refusal = verify(&runtimes, token.expose(), end).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the token expired at 2999-01-01T00:00:00Z; this server's clock says 2999-01-01T00:00:00Z"
        );
    }

    #[test]
    fn every_token_is_hashed_and_compared_once() {
        let (token, unlisted) = (Token::generate().unwrap(), Token::generate().unwrap());
        let id_and_prefix = token.expose().rfind('_').unwrap();
        let secret = &unlisted.expose()[id_and_prefix..];
        let wrong_secret = format!("{}{secret}", &token.expose()[..id_and_prefix]);
        for rest in ["", "revoked = true", "expires = 2020-01-01T00:00:00Z"] {
            let runtimes = listed(&token, rest);
            for text in [token.expose(), unlisted.expose(), &wrong_secret] {
                COMPARED.set(0);
                let _ = verify(&runtimes, text, SystemTime::now());
                assert_eq!(COMPARED.get(), 1, "{rest}");
            }
        }
    }

    #[test]
    fn a_token_of_another_form_is_refused_as_such() {
        let token = Token::generate().unwrap();
        let runtimes = listed(&token, "");
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
            let refusal = verify(&runtimes, text, SystemTime::now()).unwrap_err();
            assert_eq!(refusal, AuthRefusal::NotAToken, "{text}");
            // With the right prefix, the refusal says what is missing.
            let form = "not a runtime token: expected `tnlrt_`, 16 hexadecimal digits";
            assert!(refusal.to_string().contains(form), "{refusal}");
        }
    }
}
