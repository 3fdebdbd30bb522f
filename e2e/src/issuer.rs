//! An issuer of JSON Web Tokens.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SigningKey};
use serde_json::{Value, json};

use crate::secrets;

/// The issuer (`iss`) of the tokens.
pub const ISSUER: &str = "https://platform.example";

/// The audience (`aud`) of the tokens.
pub const AUDIENCE: &str = "tunnel-server";

/// An expiry in the far future, in seconds since 1970.
pub const LATE: u64 = 4_000_000_000;

/// An expiry in the past.
pub const OVER: u64 = 1_700_000_100;

/// Signs JSON Web Tokens with a key of its own.
pub struct Issuer(KeyPair);

impl Issuer {
    /// With a new key.
    #[expect(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        Self(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    /// The public key as a JWK set (RFC 8037).
    pub fn key_set(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.der_bytes());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "one", "x": x});
        json!({ "keys": [key] }).to_string()
    }

    /// A token for this runtime of account `demo` that is valid until `expires`.
    pub fn token(&self, runtime: &str, expires: u64) -> String {
        self.token_for(AUDIENCE, runtime, expires)
    }

    /// A token as [`Issuer::token`] makes it, for another audience.
    pub fn token_for(&self, audience: &str, runtime: &str, expires: u64) -> String {
        self.sign(audience, ("demo", runtime), expires)
    }

    /// A token for this account and runtime.
    pub fn token_of(&self, account: &str, runtime: &str) -> String {
        self.sign(AUDIENCE, (account, runtime), LATE)
    }

    fn sign(&self, audience: &str, (account, runtime): (&str, &str), expires: u64) -> String {
        let claims = json!({
            "iss": ISSUER, "aud": audience, "sub": "test", "jti": format!("id-of-{runtime}"),
            "iat": 1_700_000_000, "exp": expires, "account": account, "runtime": runtime,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = json!({"alg": "EdDSA", "typ": "JWT", "kid": "one"});
        let signed = format!("{}.{}", part(&head), part(&claims));
        let signature = self.0.sign(signed.as_bytes()).unwrap();
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        secrets::keep("a JSON Web Token", &token);
        token
    }
}
