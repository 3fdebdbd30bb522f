//! The keys that JSON Web Tokens are verified with (JWK set, RFC 7517).
//!
//! Parses a set's JSON into public keys, each with its algorithms. Keys of other kinds are ignored, as the RFC requires; a
//! set without a usable key is an error.

pub(super) mod remote;

use std::path::Path;
use std::sync::Arc;

use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse, ThumbprintHash,
};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;

use super::credential::hash_digits;

/// Largest set, in bytes: some hundred keys with their certificates.
pub(super) const MOST_BYTES: usize = 256 * 1024;

/// Most keys in a set. A token that names no key is tried with each key for its algorithm.
const MOST_KEYS: usize = 64;

/// Algorithms that are accepted. Only asymmetric ones: with a symmetric one, a party that can check a token could
/// make one, and a public key could be passed off as a secret.
const ACCEPTED: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// The keys of one issuer.
#[derive(Debug, Clone)]
pub struct Jwks {
    keys: Vec<Key>,
    fingerprint: String,
}

/// One key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    kid: Option<String>,
    /// The key's hash (RFC 7638), which does not depend on `kid`.
    pub(super) thumbprint: Arc<str>,
    /// The accepted algorithms for the key's type and its own `alg`.
    algorithms: Vec<Algorithm>,
    pub(super) verifying: DecodingKey,
}

/// Why a set of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwksError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The set is too large.
    #[error("is larger than {} KiB", MOST_BYTES / 1024)]
    TooLarge,
    /// The text is not a set of keys.
    #[error("is not a JWK set: expected JSON such as `{{\"keys\": [...]}}`: {0}")]
    Malformed(String),
    /// The set has too many keys.
    #[error("holds more than {MOST_KEYS} keys")]
    TooMany,
    /// The set has no usable key.
    #[error(
        "holds no usable key: expected public RSA, P-256, P-384 or Ed25519 keys for signatures"
    )]
    NoKey,
}

#[derive(Deserialize)]
struct RawSet {
    keys: Vec<serde_json::Value>,
}

impl Jwks {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not a set of usable keys.
    pub fn load(path: &Path) -> Result<Self, JwksError> {
        use std::io::Read;
        let mut text = Vec::new();
        let most = MOST_BYTES as u64 + 1;
        std::fs::File::open(path)?
            .take(most)
            .read_to_end(&mut text)?;
        Self::parse(tunnel_ops::byte_order_mark::bytes_without_mark(&text))
    }

    /// Parses the bytes of a set of keys.
    ///
    /// # Errors
    /// When they are not a set of usable keys.
    pub fn parse(json: &[u8]) -> Result<Self, JwksError> {
        if json.len() > MOST_BYTES {
            return Err(JwksError::TooLarge);
        }
        let raw: RawSet = serde_json::from_slice(json)
            .map_err(|error| JwksError::Malformed(error.to_string()))?;
        if raw.keys.len() > MOST_KEYS {
            return Err(JwksError::TooMany);
        }
        let keys: Vec<Key> = raw.keys.into_iter().filter_map(key).collect();
        match keys.is_empty() {
            true => Err(JwksError::NoKey),
            false => Ok(Self {
                keys,
                fingerprint: hash_digits(json),
            }),
        }
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The first 16 hexadecimal digits of the set's SHA-256, to distinguish one from another.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether there are no keys. A parsed set always has one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether the set has the key that a token names; true if it names none.
    pub(super) fn has(&self, kid: Option<&str>) -> bool {
        kid.is_none() || self.keys.iter().any(|key| key.kid.as_deref() == kid)
    }

    /// Whether the set has the key with this thumbprint.
    pub(super) fn contains(&self, thumbprint: &str) -> bool {
        self.keys.iter().any(|key| *key.thumbprint == *thumbprint)
    }

    /// Whether the other set has all keys of this one.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.keys.iter().all(|key| other.contains(&key.thumbprint))
    }

    /// The keys that a token may have been signed with.
    pub(super) fn candidates<'a>(
        &'a self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &'a Key> {
        self.keys
            .iter()
            .filter(move |key| kid.is_none() || key.kid.as_deref() == kid)
            .filter(move |key| key.algorithms.contains(&algorithm))
    }
}

/// The algorithm of this name, if it is accepted.
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    let algorithm = name.parse().ok()?;
    ACCEPTED.contains(&algorithm).then_some(algorithm)
}

/// Parses one key; `None` if it cannot verify signatures.
fn key(raw: serde_json::Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(raw).ok()?;
    if !matches!(
        jwk.common.public_key_use,
        None | Some(PublicKeyUse::Signature)
    ) {
        return None;
    }
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => ACCEPTED[..6].to_vec(),
        AlgorithmParameters::EllipticCurve(parameters) => match parameters.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(parameters) => match parameters.curve {
            EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
            _ => return None,
        },
        _ => return None,
    };
    if let Some(own) = jwk.common.key_algorithm {
        algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == own);
    }
    if algorithms.is_empty() {
        return None;
    }
    Some(Key {
        kid: jwk.common.key_id.clone(),
        thumbprint: jwk.thumbprint(ThumbprintHash::SHA256).ok()?.into(),
        algorithms,
        verifying: DecodingKey::from_jwk(&jwk).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn set(keys: serde_json::Value) -> Result<Jwks, JwksError> {
        Jwks::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn only_keys_for_asymmetric_signatures_are_kept() {
        let rsa = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "r", "alg": "RS256"});
        let ec = json!({"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB", "kid": "e"});
        let secret = json!({"kty": "oct", "k": "c2VjcmV0", "kid": "o", "alg": "HS256"});
        let crossed =
            json!({"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB", "alg": "RS256"});
        let sealing = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB", "use": "enc"});
        let curve = json!({"kty": "EC", "crv": "P-521", "x": "AQAB", "y": "AQAB"});
        let strange = json!({"kty": "new", "x": 7});
        let jwks = set(json!([rsa, ec, secret, crossed, sealing, curve, strange])).unwrap();
        assert_eq!(jwks.len(), 2);
        let fits = |kid, algorithm| jwks.candidates(kid, algorithm).count();
        assert_eq!(fits(Some("r"), Algorithm::RS256), 1);
        assert_eq!(fits(Some("r"), Algorithm::RS512), 0, "the key says which");
        assert_eq!(fits(Some("e"), Algorithm::ES256), 1);
        assert_eq!(fits(Some("e"), Algorithm::ES384), 0, "the curve says which");
        assert_eq!(fits(None, Algorithm::ES256), 1);
        assert!(jwks.has(Some("e")) && !jwks.has(Some("o")));
        for refused in [json!([]), json!([secret])] {
            assert!(matches!(set(refused), Err(JwksError::NoKey)));
        }
        let many = vec![rsa; MOST_KEYS + 1];
        assert!(matches!(set(json!(many)), Err(JwksError::TooMany)));
    }

    #[test]
    fn keys_are_compared_without_their_ids() {
        let key = |x, kid| json!({"kty": "EC", "crv": "P-256", "x": x, "y": "AQAB", "kid": kid});
        let one = set(json!([key("AQAB", "a")])).unwrap();
        let both = set(json!([key("AQAB", "b"), key("AAAA", "a")])).unwrap();
        assert!(one.is_within(&both) && !both.is_within(&one));
        let renewed = set(json!([key("AAAA", "a")])).unwrap();
        assert!(!one.is_within(&renewed), "another key of the same name");
    }

    #[test]
    fn only_asymmetric_algorithms_are_accepted() {
        for name in ["RS256", "PS512", "ES256", "ES384", "EdDSA"] {
            assert!(algorithm(name).is_some(), "{name}");
        }
        for name in [
            "HS256", "HS384", "HS512", "none", "None", "", "rs256", "ES512",
        ] {
            assert!(algorithm(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_set_that_is_too_large_or_malformed_is_refused() {
        let large = vec![b' '; MOST_BYTES + 1];
        assert!(matches!(Jwks::parse(&large), Err(JwksError::TooLarge)));
        for bad in ["", "[]", "{}", "{\"keys\": 7}"] {
            let error = Jwks::parse(bad.as_bytes()).unwrap_err();
            assert!(matches!(error, JwksError::Malformed(_)), "{bad}");
        }
        let missing = Jwks::load(Path::new("/nowhere/keys.json")).unwrap_err();
        assert!(missing.to_string().starts_with("cannot be read"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\{\"keys\":\\[)?\\PC{0,80}") {
            let _ = Jwks::parse(text.as_bytes());
        }
    }
}
