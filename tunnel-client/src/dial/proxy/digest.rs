//! Digest authentication with a proxy, RFC 7616: MD5 or SHA-256, with or without `-sess`, with `qop=auth` or without `qop`
//! (RFC 2069).
//!
//! Own code, because the crate `digest_auth` (0.3.1) panics on a challenge with letters outside ASCII, and rejects `digest` in
//! lower case.
//!
//! In: a challenge, the login, and the client's nonce. Out: the value of `Proxy-Authorization`. Pure.

use md5::Md5;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::challenge::Challenge;
use crate::config::ProxyLogin;

/// The parameters of a challenge by Digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DigestChallenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    hash: Hash,
    /// The hash's name as the proxy wrote it, if it is there.
    algorithm: Option<String>,
    is_session: bool,
    has_qop: bool,
}

/// The hash of a challenge. A greater one is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hash {
    Md5,
    Sha256,
}

impl DigestChallenge {
    /// Reads a challenge; `None` if this client cannot answer it.
    pub(super) fn new(challenge: &Challenge) -> Option<Self> {
        let algorithm = challenge.parameter("algorithm");
        let name = algorithm.unwrap_or("MD5").to_ascii_lowercase();
        let (name, is_session) = match name.strip_suffix("-sess") {
            Some(name) => (name, true),
            None => (name.as_str(), false),
        };
        let hash = match name {
            "md5" => Hash::Md5,
            "sha-256" => Hash::Sha256,
            _ => return None,
        };
        let qop = challenge.parameter("qop");
        let mut offered = qop.unwrap_or("auth").split(',');
        if !challenge.is("digest") || !offered.any(|one| one.trim().eq_ignore_ascii_case("auth")) {
            return None;
        }
        // They are repeated and hashed byte by byte, so text that was not UTF-8 cannot be used.
        let parts = ["realm", "nonce", "opaque"].map(|name| challenge.parameter(name));
        let is_garbled = |text: &&str| text.contains(char::REPLACEMENT_CHARACTER);
        if parts.iter().flatten().any(is_garbled) {
            return None;
        }
        let [realm, nonce, opaque] = parts.map(|part| part.map(str::to_owned));
        Some(Self {
            realm: realm?,
            nonce: nonce?,
            opaque,
            hash,
            algorithm: algorithm.map(str::to_owned),
            is_session,
            has_qop: qop.is_some(),
        })
    }

    /// Its hash.
    pub(super) fn hash(&self) -> Hash {
        self.hash
    }

    /// The value of `Proxy-Authorization` for a `CONNECT` to this authority, the first with this nonce.
    pub(super) fn respond(
        &self,
        login: &ProxyLogin,
        authority: &str,
        cnonce: &str,
    ) -> SecretString {
        const NONCE_COUNT: &str = "00000001";
        let response = self.response(login, authority, cnonce, NONCE_COUNT);
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut value = format!(
            "Digest username=\"{}\", realm=\"{}\", nonce=\"{}\", uri=\"{authority}\", response=\"{response}\"",
            quoted(&login.user),
            quoted(&self.realm),
            quoted(&self.nonce),
        );
        if let Some(algorithm) = &self.algorithm {
            value += &format!(", algorithm={algorithm}");
        }
        if let Some(opaque) = &self.opaque {
            value += &format!(", opaque=\"{}\"", quoted(opaque));
        }
        if self.has_qop {
            value += &format!(", qop=auth, nc={NONCE_COUNT}, cnonce=\"{cnonce}\"");
        } else if self.is_session {
            value += &format!(", cnonce=\"{cnonce}\"");
        }
        value.into()
    }

    /// The parameter `response` (RFC 7616 section 3.4.1), whose names the variables have.
    fn response(&self, login: &ProxyLogin, authority: &str, cnonce: &str, nc: &str) -> String {
        let password = login.password.expose_secret();
        let mut ha1 = self.hash.of(&[&login.user, &self.realm, password]);
        if self.is_session {
            ha1 = self.hash.of(&[&ha1, &self.nonce, cnonce]);
        }
        let ha2 = self.hash.of(&["CONNECT", authority]);
        match self.has_qop {
            true => self.hash.of(&[&ha1, &self.nonce, nc, cnonce, "auth", &ha2]),
            false => self.hash.of(&[&ha1, &self.nonce, &ha2]),
        }
    }
}

/// The parameter `response` of a value of `Proxy-Authorization`: the part that depends on the password.
pub(super) fn response_of(value: &str) -> &str {
    let after = value.split("response=\"").nth(1).unwrap_or(value);
    after.split('"').next().unwrap_or(after)
}

impl Hash {
    /// The hash of these parts, joined by colons, in hexadecimal.
    fn of(self, parts: &[&str]) -> String {
        let text = SecretString::from(parts.join(":"));
        match self {
            Self::Md5 => hexadecimal(&Md5::digest(text.expose_secret())),
            Self::Sha256 => hexadecimal(&Sha256::digest(text.expose_secret())),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::challenge::parse;
    use super::*;

    fn challenge(text: &str) -> Option<DigestChallenge> {
        DigestChallenge::new(parse([text]).first().unwrap())
    }

    fn login(user: &str, password: &str) -> ProxyLogin {
        ProxyLogin {
            user: user.to_owned(),
            password: password.into(),
        }
    }

    fn respond(text: &str, login: &ProxyLogin, authority: &str, cnonce: &str) -> String {
        let challenge = challenge(text).unwrap();
        let value = challenge.respond(login, authority, cnonce);
        value.expose_secret().to_owned()
    }

    fn of<'a>(value: &'a str, name: &str) -> &'a str {
        let begin = value.find(&format!("{name}=")).unwrap() + name.len() + 1;
        let rest = value[begin..].trim_start_matches('"');
        &rest[..rest.find(['"', ',']).unwrap_or(rest.len())]
    }

    #[test]
    fn the_answers_are_those_of_an_independent_calculation() {
        // Made with Python's hashlib from the formulas of RFC 7616 section 3.4.
        let login = login("Mufasa", "Circle of Life");
        let base = "Digest realm=\"http-auth@example.org\", nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\"";
        let response = |more: &str| {
            let text = format!("{base}{more}");
            let value = respond(
                &text,
                &login,
                "tunnel.example.com:443",
                "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
            );
            of(&value, "response").to_owned()
        };
        assert_eq!(response(", qop=\"auth\", algorithm=MD5"), MD5);
        assert_eq!(
            response(", qop=\"auth, auth-int\", algorithm=SHA-256"),
            SHA_256
        );
        assert_eq!(response(", qop=auth, algorithm=MD5-sess"), MD5_SESS);
        assert_eq!(response(""), RFC_2069);
    }

    const MD5: &str = "c17791450ec45f8b16bce95613d4afb8";
    const SHA_256: &str = "ba62dd9f43bbbd190cba477285d107e0d67bd641c804ec259d2e07bd06670880";
    const MD5_SESS: &str = "d24539233fe6e8e287298da39cee2b93";
    const RFC_2069: &str = "98e7c1bf442e33969b78fa2e24e3a688";

    #[test]
    fn what_was_asked_is_repeated_and_quoted() {
        let text = "Digest realm=\"a \\\"b\\\"\", nonce=\"n\", opaque=\"o\", qop=\"auth\", algorithm=md5, stale=true";
        let value = respond(text, &login("CORP\\me", "p"), "[::1]:443", "word");
        assert_eq!(
            value.split(", response=").next().unwrap(),
            "Digest username=\"CORP\\\\me\", realm=\"a \\\"b\\\"\", nonce=\"n\", uri=\"[::1]:443\""
        );
        assert!(
            value
                .ends_with(", algorithm=md5, opaque=\"o\", qop=auth, nc=00000001, cnonce=\"word\""),
            "{value}"
        );
        let old = respond("Digest realm=a, nonce=b", &login("me", "p"), "a:1", "word");
        assert!(
            !old.contains("cnonce") && !old.contains("algorithm"),
            "{old}"
        );
    }

    #[test]
    fn what_cannot_be_given_is_left_to_others() {
        for text in [
            "Basic realm=a, nonce=b",
            "Digest realm=a",
            "Digest nonce=a",
            "Digest realm=a, nonce=b, algorithm=SHA-512-256",
            "Digest realm=a, nonce=b, qop=auth-int",
            "Digest realm=\"a\u{fffd}\", nonce=b",
        ] {
            assert_eq!(challenge(text), None, "{text}");
        }
        assert!(Hash::Sha256 > Hash::Md5);
    }
}
