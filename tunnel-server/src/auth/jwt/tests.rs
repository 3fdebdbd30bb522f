//! Tokens with every fault that there is, against keys made here.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header};
use proptest::prelude::*;
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
};
use serde_json::json;

use super::*;

/// Seconds since 1970 at which all of this happens.
const NOW: u64 = 1_800_000_000;

struct Signer {
    key: EncodingKey,
    algorithm: Algorithm,
    kid: &'static str,
}

impl Signer {
    fn new(algorithm: Algorithm, kid: &'static str) -> Self {
        let made = |kind| KeyPair::generate_for(kind).unwrap().serialize_der();
        let key = match algorithm {
            Algorithm::ES256 => EncodingKey::from_ec_der(&made(&PKCS_ECDSA_P256_SHA256)),
            Algorithm::ES384 => EncodingKey::from_ec_der(&made(&PKCS_ECDSA_P384_SHA384)),
            Algorithm::EdDSA => {
                // The private key alone, as the library wants it, without the public one behind.
                let mut der = made(&PKCS_ED25519);
                let seed = der.windows(2).position(|it| it == [0x04, 0x20]).unwrap() + 2;
                let seed = der.drain(seed..seed + 32).collect::<Vec<_>>();
                let mut short = vec![
                    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
                ];
                short.extend(seed);
                EncodingKey::from_ed_der(&short)
            }
            // PKCS#1, without what PKCS#8 puts around a key of 2048 bits.
            _ => EncodingKey::from_rsa_der(&made(&PKCS_RSA_SHA256)[26..]),
        };
        Self {
            key,
            algorithm,
            kid,
        }
    }

    fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.kid.into());
        serde_json::to_value(jwk).unwrap()
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.kid.into());
        self.sign_with(&header, claims)
    }

    fn sign_with(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.key).unwrap()
    }
}

fn keys(signers: &[&Signer]) -> Jwks {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    Jwks::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn verifier_with(signers: &[&Signer]) -> JwtVerifier {
    let settings = JwtSettings {
        keys: JwksSource::File("keys.json".into()),
        issuer: "https://id.example".into(),
        audience: "tunnel".into(),
        account_claim: "account".into(),
        runtime_claim: "https://id.example/runtime".into(),
        leeway: Duration::from_secs(30),
    };
    JwtVerifier::new(settings, Some(keys(signers)), None, &watch::Sender::new(0)).unwrap()
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example",
        "aud": ["other", "tunnel"],
        "iat": NOW - 60,
        "exp": NOW + 600,
        "jti": "t-1",
        "account": "acme",
        "https://id.example/runtime": "prod",
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

async fn verified(verifier: &JwtVerifier, token: &str) -> Result<Verified, AuthRefusal> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    verifier.verify(token, now).await
}

async fn refused(verifier: &JwtVerifier, token: &str) -> AuthRefusal {
    verified(verifier, token).await.err().unwrap()
}

#[tokio::test]
async fn each_asymmetric_algorithm_authenticates_its_runtime() {
    for algorithm in [
        Algorithm::RS256,
        Algorithm::PS384,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ] {
        let signer = Signer::new(algorithm, "k1");
        let verifier = verifier_with(&[&signer]);
        let token = signer.sign(&claims());
        let verified = verified(&verifier, &token).await.unwrap();
        assert_eq!(verified.named, NamedRuntime::new("acme", "prod").unwrap());
        assert_eq!(
            verified.credential.id.to_string(),
            "jwt t-1",
            "{algorithm:?}"
        );
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(verified.credential.issued, at(NOW - 60));
        assert_eq!(
            verified.credential.expires,
            at(NOW + 630),
            "with the leeway"
        );
        // Another's key, and a change of one letter.
        let other_key = Signer::new(algorithm, "k1");
        let forged = refused(&verifier, &other_key.sign(&claims())).await;
        assert_eq!(forged, AuthRefusal::TokenSignature);
        let (head, signature) = token.rsplit_once('.').unwrap();
        let (head, _) = head.split_once('.').unwrap();
        let other = URL_SAFE_NO_PAD.encode(with("account", json!("other")).to_string());
        let changed = refused(&verifier, &format!("{head}.{other}.{signature}")).await;
        assert_eq!(changed, AuthRefusal::TokenSignature);
    }
}

#[tokio::test]
async fn without_an_id_a_token_is_identified_by_its_signed_part() {
    let signer = Signer::new(Algorithm::ES256, "k1");
    let verifier = verifier_with(&[&signer]);
    let mut nameless = claims();
    nameless.as_object_mut().unwrap().remove("jti");
    // Each signature of this kind is randomised, so it differs over equal head and claims.
    let (one, other) = (signer.sign(&nameless), signer.sign(&nameless));
    assert_ne!(one, other);
    let id = verified(&verifier, &one).await.unwrap().credential.id;
    assert_eq!(verified(&verifier, &other).await.unwrap().credential.id, id);
    assert_eq!(id.id().len(), 16);
    nameless["iat"] = json!(NOW - 59);
    let another = verified(&verifier, &signer.sign(&nameless)).await.unwrap();
    assert_ne!(another.credential.id, id);
}

#[tokio::test]
async fn each_fault_of_the_claims_has_its_name() {
    let signer = Signer::new(Algorithm::ES256, "k1");
    let verifier = verifier_with(&[&signer]);
    for (name, value, reason) in [
        ("iss", json!("https://evil.example"), "token_issuer"),
        ("iss", json!(["https://id.example"]), "token_issuer"),
        ("iss", Value::Null, "token_issuer"),
        ("aud", json!("other"), "token_audience"),
        ("aud", json!([]), "token_audience"),
        ("aud", Value::Null, "token_audience"),
        ("exp", Value::Null, "token_malformed"),
        ("exp", json!("soon"), "token_malformed"),
        ("exp", json!(-1), "token_malformed"),
        ("exp", json!(NOW - 30), "token_expired"),
        ("nbf", json!(NOW + 31), "token_not_yet_valid"),
        ("nbf", json!("later"), "token_malformed"),
        ("account", Value::Null, "token_malformed"),
        ("account", json!("Acme"), "token_malformed"),
        ("account", json!(7), "token_malformed"),
    ] {
        let token = signer.sign(&with(name, value.clone()));
        let refusal = refused(&verifier, &token).await;
        assert_eq!(refusal.name(), reason, "{name} {value}: {refusal}");
    }
    for (name, value) in [
        ("exp", json!(NOW - 29)),
        ("exp", json!(NOW as f64 + 0.5)),
        ("nbf", json!(NOW + 30)),
        ("aud", json!("tunnel")),
    ] {
        let token = signer.sign(&with(name, value.clone()));
        assert!(verified(&verifier, &token).await.is_ok(), "{name} {value}");
    }
    for name in ["iss", "aud", "exp"] {
        let mut missing = claims();
        missing.as_object_mut().unwrap().remove(name);
        assert!(verified(&verifier, &signer.sign(&missing)).await.is_err());
    }
}

#[tokio::test]
async fn both_clocks_are_named() {
    let signer = Signer::new(Algorithm::ES256, "k1");
    let verifier = verifier_with(&[&signer]);
    let token = signer.sign(&with("nbf", json!(NOW + 3600)));
    assert_eq!(
        refused(&verifier, &token).await.to_string(),
        "the token is not valid before 2027-01-15T09:00:00Z; this server's clock says 2027-01-15T08:00:00Z: \
         compare the clocks"
    );
    let token = signer.sign(&with("exp", json!(NOW - 3600)));
    assert_eq!(
        refused(&verifier, &token).await.to_string(),
        "the token expired at 2027-01-15T07:00:00Z; this server's clock says 2027-01-15T08:00:00Z"
    );
}

#[tokio::test]
async fn only_the_algorithm_of_the_key_is_accepted() {
    let (rsa, ec) = (
        Signer::new(Algorithm::RS256, "r"),
        Signer::new(Algorithm::ES256, "e"),
    );
    let verifier = verifier_with(&[&rsa, &ec]);
    let unsigned = |alg: &str| {
        let head = json!({ "alg": alg, "kid": "r" }).to_string();
        let parts = [head, claims().to_string()].map(|part| URL_SAFE_NO_PAD.encode(part));
        parts.join(".")
    };
    for alg in ["none", "None", "HS256", "HS512", "ES512", ""] {
        let refusal = refused(&verifier, &format!("{}.", unsigned(alg))).await;
        assert_eq!(refusal, AuthRefusal::TokenAlgorithm(alg.into()));
    }
    // The public key, which is not secret, used as the key of an HMAC.
    let secret = EncodingKey::from_secret(rsa.jwk()["n"].as_str().unwrap().as_bytes());
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("r".into());
    let forged = jsonwebtoken::encode(&header, &claims(), &secret).unwrap();
    assert_eq!(refused(&verifier, &forged).await.name(), "token_algorithm");
    // A key's own algorithm counts, and a key of another kind is none.
    for (algorithm, kid) in [(Algorithm::PS256, "r"), (Algorithm::RS256, "e")] {
        let mut header = Header::new(algorithm);
        header.kid = Some(kid.into());
        let token = rsa.sign_with(&header, &claims());
        assert_eq!(refused(&verifier, &token).await.name(), "token_algorithm");
    }
    // A key that comes with the token is not trusted.
    let own = Signer::new(Algorithm::ES256, "e");
    let mut header = Header::new(Algorithm::ES256);
    header.jwk = Some(serde_json::from_value(own.jwk()).unwrap());
    header.jku = Some("https://evil.example/keys".into());
    header.kid = Some("e".into());
    let token = own.sign_with(&header, &claims());
    assert_eq!(
        refused(&verifier, &token).await,
        AuthRefusal::TokenSignature
    );
}

#[tokio::test]
async fn the_key_is_found_by_its_name_or_tried() {
    let (one, two) = (
        Signer::new(Algorithm::ES256, "one"),
        Signer::new(Algorithm::ES256, "two"),
    );
    let verifier = verifier_with(&[&one, &two]);
    for signer in [&one, &two] {
        assert!(verified(&verifier, &signer.sign(&claims())).await.is_ok());
        let nameless = signer.sign_with(&Header::new(Algorithm::ES256), &claims());
        assert!(verified(&verifier, &nameless).await.is_ok());
    }
    let other = Signer::new(Algorithm::ES256, "three\u{1b}[31m");
    let refusal = refused(&verifier, &other.sign(&claims())).await;
    assert_eq!(refusal, AuthRefusal::TokenKeyUnknown("`three?[31m`".into()));
    verifier.replace(keys(&[&other]));
    assert!(verified(&verifier, &other.sign(&claims())).await.is_ok());
    assert_eq!(
        refused(&verifier, &one.sign(&claims())).await.name(),
        "token_key_unknown"
    );
}

#[tokio::test]
async fn a_malformed_token_is_refused_as_such() {
    let signer = Signer::new(Algorithm::ES256, "k1");
    let verifier = verifier_with(&[&signer]);
    let good = signer.sign(&claims());
    let crit = json!({ "alg": "ES256", "kid": "k1", "crit": ["b64"] }).to_string();
    for text in [
        "",
        "..",
        "eyJ..",
        "eyJhIjoxfQ.e30.x",
        &good[1..],
        &format!("{good}.x"),
        &format!("{good}\n"),
        &format!("eyJ{}..", "A".repeat(MOST_BYTES)),
        &format!("{}.e30.x", URL_SAFE_NO_PAD.encode(crit)),
    ] {
        let refusal = refused(&verifier, text).await;
        assert_eq!(refusal.name(), "token_malformed", "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(ey[A-Za-z0-9_-]{0,20}\\.){0,2}\\PC{0,60}") {
        let _ = parts(&text);
        let _ = moment(&json!({ "exp": text }).as_object().unwrap().clone(), "exp");
    }

    #[test]
    fn no_number_makes_it_panic(number in any::<f64>(), whole in any::<i64>()) {
        for value in [json!(number), json!(whole), json!(whole as u64)] {
            let mut claims = Map::new();
            claims.insert("exp".into(), value);
            let _ = moment(&claims, "exp");
        }
    }
}
