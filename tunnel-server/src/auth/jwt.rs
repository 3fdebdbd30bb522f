//! Verifies JSON Web Tokens (RFC 7519) of one trusted issuer: from a token to the runtime that its claims name.
//!
//! The signature is checked before any claim is used, and with a key for the token's algorithm. `exp`, `aud` and `iss`
//! are required; `nbf` is checked if it is present.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::credential::{CredentialId, CredentialKind, printable};
use super::jwks::remote::RemoteJwks;
use super::jwks::{self, Jwks, Key};
use super::labels::NamedRuntime;
use super::refusal::AuthRefusal;
use super::{Verified, VerifiedCredential};
use crate::config::{JwksSource, JwtSettings};
use tunnel_ops::https::HttpsClient;

/// Longest token, in bytes. The head of a request has a limit of its own.
const MOST_BYTES: usize = 16 * 1024;

/// Longest name from a token that is logged.
const LOGGED_CHARS: usize = 64;

/// Verifies the tokens of one issuer.
pub(super) struct JwtVerifier {
    settings: JwtSettings,
    keys: Keys,
}

enum Keys {
    File(ArcSwap<Jwks>),
    Remote(RemoteJwks),
}

/// The issuer's key that a token was signed with.
#[derive(Debug, Clone)]
pub(super) struct SigningKey {
    thumbprint: Arc<str>,
    /// The key's id in the token.
    kid: Option<Arc<str>>,
}

/// The fields of a token's header that are read.
#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    /// Critical extensions; none is supported.
    crit: Option<Value>,
}

/// The parts of a token, not verified yet.
struct Parts<'a> {
    algorithm: Algorithm,
    kid: Option<String>,
    /// Header and claims in the encoding that was signed.
    message: &'a str,
    claims: &'a str,
    signature: &'a str,
}

/// The claims of a token.
type Claims = Map<String, Value>;

impl Parts<'_> {
    fn claims(&self) -> Result<Claims, AuthRefusal> {
        decoded(self.claims, "its claims are not a JSON object")
    }

    /// The token's id. Computed without the signature, which can be encoded in several ways: a revoked token in another
    /// encoding would count as another credential.
    fn id(&self, claims: &Claims) -> CredentialId {
        let jti = claims.get("jti").and_then(Value::as_str);
        CredentialId::of_token(CredentialKind::Jwt, jti, self.message)
    }
}

/// Whether the text has the form of a signed JSON Web Token. Does not verify it.
pub(super) fn has_form(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // A header is a JSON object: base64 of `{"`, or of `{` and white space.
    (text.starts_with("ey") || text.starts_with("ew"))
        && text.bytes().all(is_letter)
        && text.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl JwtVerifier {
    /// Uses the keys of a file, which has been read already, or of a URL. `changes` is increased when a key of the URL is
    /// removed.
    pub(super) fn new(
        settings: JwtSettings,
        file: Option<Jwks>,
        client: Option<&HttpsClient>,
        changes: &watch::Sender<u64>,
    ) -> Option<Self> {
        let keys = match (&settings.keys, file, client) {
            (JwksSource::File(_), Some(keys), _) => Keys::File(ArcSwap::from_pointee(keys)),
            (JwksSource::Url(url), _, Some(client)) => Keys::Remote(RemoteJwks::new(
                url.clone(),
                client.clone(),
                changes.clone(),
            )),
            _ => return None,
        };
        Some(Self { settings, keys })
    }

    /// Starts to fetch keys from a URL; without effect for those of a file.
    pub(super) fn start(&self) {
        if let Keys::Remote(remote) = &self.keys {
            remote.start();
        }
    }

    /// Replaces the keys of a file; without effect for those of a URL.
    pub(super) fn replace(&self, keys: Jwks) {
        if let Keys::File(current) = &self.keys {
            current.store(Arc::new(keys));
        }
    }

    /// The keys of a file; `None` if they come from a URL.
    pub(super) fn of_file(&self) -> Option<Arc<Jwks>> {
        match &self.keys {
            Keys::File(keys) => Some(keys.load_full()),
            Keys::Remote(_) => None,
        }
    }

    /// The current number of keys.
    pub(super) fn key_count(&self) -> usize {
        self.known().map_or(0, |keys| keys.len())
    }

    /// Checks that the key is still one of the issuer's. Succeeds while no keys are known.
    pub(super) fn check_key(&self, key: &SigningKey) -> Result<(), AuthRefusal> {
        let known = self.known().filter(|keys| !keys.is_empty());
        match known.is_none_or(|keys| keys.contains(&key.thumbprint)) {
            true => Ok(()),
            false => Err(key_unknown(key.kid.as_deref())),
        }
    }

    /// Verifies a token.
    ///
    /// # Errors
    /// When the token is not valid, or the keys could not be fetched yet.
    pub(super) async fn verify(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Verified, AuthRefusal> {
        let parts = parts(token)?;
        let mut keys = self.keys_for(parts.kid.as_deref()).await?;
        if check_signature(&keys, &parts).is_err() {
            keys = self.newer_keys(keys, parts.kid.as_deref()).await?;
        }
        let key = check_signature(&keys, &parts)?;
        let signed_with = SigningKey {
            thumbprint: key.thumbprint.clone(),
            kid: parts.kid.as_deref().map(Into::into),
        };
        let claims = parts.claims()?;
        let (issued, expires) = self.check_claims(&claims, now)?;
        Ok(Verified {
            named: self.named(&claims)?,
            credential: VerifiedCredential {
                id: parts.id(&claims),
                issued,
                expires: Some(expires),
                listed: None,
                signed_with: Some(signed_with),
                chain: None,
            },
            query: None,
            renew_at: None,
            renewable_end: None,
        })
    }

    /// How far the issuer's clock may be ahead of this one.
    pub(super) fn leeway(&self) -> Duration {
        self.settings.leeway
    }

    /// The runtime and the id of a token whose signature is good; nothing else is checked, and no key is fetched.
    pub(super) fn identify(&self, token: &str) -> Option<(NamedRuntime, CredentialId)> {
        let parts = parts(token).ok()?;
        check_signature(&*self.known()?, &parts).ok()?;
        let claims = parts.claims().ok()?;
        Some((self.named(&claims).ok()?, parts.id(&claims)))
    }

    /// The runtime that the claims name.
    fn named(&self, claims: &Claims) -> Result<NamedRuntime, AuthRefusal> {
        let claim = |name: &str| match claims.get(name).and_then(Value::as_str) {
            Some(text) => Ok(text),
            None => Err(malformed(format!(
                "it has no claim `{name}` that is a string"
            ))),
        };
        let account = claim(&self.settings.account_claim)?;
        let runtime = claim(&self.settings.runtime_claim)?;
        NamedRuntime::new(account, runtime)
            .map_err(|error| malformed(printable(&error.to_string(), 4 * LOGGED_CHARS)))
    }

    fn known(&self) -> Option<Arc<Jwks>> {
        match &self.keys {
            Keys::File(keys) => Some(keys.load_full()),
            Keys::Remote(remote) => remote.get(),
        }
    }

    async fn keys_for(&self, kid: Option<&str>) -> Result<Arc<Jwks>, AuthRefusal> {
        let mut keys = self.known();
        let has_it = |keys: &Option<Arc<Jwks>>| keys.as_ref().is_some_and(|keys| keys.has(kid));
        if let (false, Keys::Remote(remote)) = (has_it(&keys), &self.keys) {
            keys = remote.refetch().await;
        }
        let Some(keys) = keys else {
            let why = "the keys of JSON Web Tokens could not be fetched yet";
            return Err(AuthRefusal::AuthUnavailable(why));
        };
        match keys.has(kid) {
            true => Ok(keys),
            false => Err(key_unknown(kid)),
        }
    }

    /// The keys of a URL, fetched again, for a token that none of these has signed: the issuer may have replaced a key without
    /// a name, or by one of the same name. The keys of a file are current.
    ///
    /// # Errors
    /// When they were fetched a moment ago: a key may be newer than that.
    async fn newer_keys(
        &self,
        keys: Arc<Jwks>,
        kid: Option<&str>,
    ) -> Result<Arc<Jwks>, AuthRefusal> {
        let Keys::Remote(remote) = &self.keys else {
            return Ok(keys);
        };
        let fetched = remote.fetched();
        let newer = remote.refetch().await.unwrap_or(keys);
        match remote.fetched() == fetched {
            true => Err(key_unknown(kid)),
            false => Ok(newer),
        }
    }

    /// Checks issuer, audience and times. Returns when the token was issued and when it expires.
    fn check_claims(
        &self,
        claims: &Claims,
        now: SystemTime,
    ) -> Result<(Option<SystemTime>, SystemTime), AuthRefusal> {
        let JwtSettings {
            issuer,
            audience,
            leeway,
            ..
        } = &self.settings;
        if claims.get("iss").and_then(Value::as_str) != Some(issuer) {
            return Err(AuthRefusal::TokenIssuer {
                expected: issuer.clone(),
            });
        }
        let is_ours = |value: &Value| value.as_str() == Some(audience);
        let is_for_us = match claims.get("aud") {
            Some(Value::Array(all)) => all.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if !is_for_us {
            return Err(AuthRefusal::TokenAudience {
                expected: audience.clone(),
            });
        }
        let expired = moment(claims, "exp")?.ok_or_else(|| malformed("it has no `exp`"))?;
        // With the leeway for clocks that differ.
        let expires = expired.checked_add(*leeway).unwrap_or(expired);
        if expires <= now {
            return Err(AuthRefusal::TokenExpired { expired, now });
        }
        if let Some(valid_from) = moment(claims, "nbf")?
            && valid_from > now.checked_add(*leeway).unwrap_or(now)
        {
            return Err(AuthRefusal::TokenNotYetValid { valid_from, now });
        }
        Ok((moment(claims, "iat")?, expires))
    }
}

fn parts(token: &str) -> Result<Parts<'_>, AuthRefusal> {
    let malformed_form = || malformed("it does not have the form of a signed JSON Web Token");
    if token.len() > MOST_BYTES || !has_form(token) {
        return Err(malformed_form());
    }
    let (message, signature) = token.rsplit_once('.').ok_or_else(malformed_form)?;
    let (head, claims) = message.split_once('.').ok_or_else(malformed_form)?;
    let head: Head = decoded(head, "its header is not a JSON object with `alg`")?;
    let Some(algorithm) = jwks::algorithm(&head.alg) else {
        return Err(AuthRefusal::TokenAlgorithm(printable(
            &head.alg,
            LOGGED_CHARS,
        )));
    };
    if head.crit.is_some() {
        return Err(malformed(
            "it has critical extensions (`crit`), which are not supported",
        ));
    }
    Ok(Parts {
        algorithm,
        kid: head.kid,
        message,
        claims,
        signature,
    })
}

/// Returns the key that the signature was made with.
fn check_signature<'a>(keys: &'a Jwks, parts: &Parts<'_>) -> Result<&'a Key, AuthRefusal> {
    let message = parts.message.as_bytes();
    let mut has_candidate = false;
    for key in keys.candidates(parts.kid.as_deref(), parts.algorithm) {
        has_candidate = true;
        let good =
            jsonwebtoken::crypto::verify(parts.signature, message, &key.verifying, parts.algorithm);
        if good.is_ok_and(|good| good) {
            return Ok(key);
        }
    }
    match (has_candidate, &parts.kid) {
        (true, _) => Err(AuthRefusal::TokenSignature),
        (false, Some(_)) => Err(AuthRefusal::TokenAlgorithm(format!(
            "{:?}",
            parts.algorithm
        ))),
        (false, None) => Err(key_unknown(None)),
    }
}

fn key_unknown(kid: Option<&str>) -> AuthRefusal {
    let named = kid.map(|kid| format!("`{}`", printable(kid, LOGGED_CHARS)));
    AuthRefusal::TokenKeyUnknown(named.unwrap_or_else(|| "(none)".into()))
}

fn malformed(why: impl Into<String>) -> AuthRefusal {
    AuthRefusal::TokenMalformed(why.into())
}

fn decoded<T: for<'de> Deserialize<'de>>(part: &str, fault: &str) -> Result<T, AuthRefusal> {
    let json = URL_SAFE_NO_PAD.decode(part);
    json.ok()
        .and_then(|json| serde_json::from_slice(&json).ok())
        .ok_or_else(|| malformed(fault))
}

/// Parses a claim that is a number of seconds since 1970; a fraction is dropped.
fn moment(claims: &Claims, name: &str) -> Result<Option<SystemTime>, AuthRefusal> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let seconds = match value.as_u64() {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => value
            .as_f64()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds.floor()).ok()),
    };
    let moment = seconds.and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(seconds));
    match moment {
        Some(moment) => Ok(Some(moment)),
        None => Err(malformed(format!(
            "its `{name}` is not a number of seconds"
        ))),
    }
}

#[cfg(test)]
mod tests;
