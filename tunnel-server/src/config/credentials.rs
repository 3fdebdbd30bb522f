//! Which credentials let a tunnel client in: what was given about them, checked together.
//!
//! In comes a [`Source`]; out come [`Credentials`], or each fault by its flag. What the files and URLs
//! named here hold is read by [`crate::auth`], again and again while the server runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use tunnel_ops::config_value::{self, ValueError};

use super::{ConfigFault, Source};

/// How far clocks may be apart where nothing else is said.
const LEEWAY: Duration = Duration::from_secs(30);

/// What is shown in the place of a URL's query.
const HIDDEN_QUERY: &str = "?(hidden)";

/// An `https` URL, or an `http` one to this very machine.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl(Uri);

/// Where the keys of JSON Web Tokens are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwksSource {
    /// In a file.
    File(PathBuf),
    /// At a URL.
    Url(HttpUrl),
}

/// Which credentials let a tunnel client in, beside the tokens of the runtimes file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The list of credentials that are no longer good. Default none.
    pub revocations: Option<PathBuf>,
    /// JSON Web Tokens. Default none.
    pub jwt: Option<JwtSettings>,
    /// Asking the platform. Default none.
    pub platform: Option<PlatformSettings>,
    /// Client certificates. Default none.
    pub certificates: Option<CertificateSettings>,
    /// CA file, beside the system's, for the platform's URLs. Default none.
    pub ca_file: Option<PathBuf>,
    /// Time for one answer of the platform's URLs. Default 5 s.
    pub timeout: Duration,
    /// How long a session goes on after its credential has run out. Default 30 s.
    pub expiry_grace: Duration,
}

/// What a JSON Web Token must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSettings {
    /// Where the keys are.
    pub keys: JwksSource,
    /// What `iss` must be.
    pub issuer: String,
    /// What `aud` must be, or name among others.
    pub audience: String,
    /// The claim that holds the account.
    pub account_claim: String,
    /// The claim that holds the runtime.
    pub runtime_claim: String,
    /// How far the clocks may be apart.
    pub leeway: Duration,
}

/// How the platform is asked who a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformSettings {
    /// Where.
    pub url: HttpUrl,
    /// The file with the token by which the platform knows this server.
    pub token_file: Option<PathBuf>,
    /// Questions at once.
    pub concurrency: usize,
    /// How long an answer is used again.
    pub cache: Duration,
    /// How long known good tokens go on while the platform is away.
    pub outage: Duration,
}

/// Whose certificates let a client in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSettings {
    /// The CA file.
    pub ca: PathBuf,
    /// The file of its revocation lists.
    pub crl: Option<PathBuf>,
}

impl HttpUrl {
    /// The URL.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// The URL with 8 digits of a hash in the place of its query, so that another query is seen to be another.
    pub(super) fn fingerprinted(&self) -> String {
        let text = self.to_string();
        let (Some(shown), Some(query)) = (text.strip_suffix(HIDDEN_QUERY), self.0.query()) else {
            return text;
        };
        let [first, second, third, fourth, ..]: [u8; 32] = Sha256::digest(query).into();
        let digits = u32::from_be_bytes([first, second, third, fourth]);
        format!("{shown}?(hidden, {digits:08x})")
    }
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            revocations: None,
            jwt: None,
            platform: None,
            certificates: None,
            ca_file: None,
            timeout: Duration::from_secs(5),
            expiry_grace: Duration::from_secs(30),
        }
    }
}

impl Credentials {
    /// Checks what was given.
    pub(super) fn check(source: &Source, faults: &mut Vec<ConfigFault>) -> Self {
        let default = Self::default();
        Self {
            revocations: source.revocations.clone(),
            jwt: jwt(source, faults),
            platform: platform(source, faults),
            certificates: certificates(source, faults),
            ca_file: ca_file(source, faults),
            timeout: source.auth_timeout.map_or(default.timeout, Into::into),
            expiry_grace: source.expiry_grace.map_or(default.expiry_grace, Into::into),
        }
    }

    /// Whether anything but a listed token lets a client in.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.jwt.is_some() || self.platform.is_some() || self.certificates.is_some()
    }
}

fn jwt(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<JwtSettings> {
    let Some(keys) = source.jwks.clone() else {
        for (flag, is_given) in [
            ("jwt-issuer", source.jwt_issuer.is_some()),
            ("jwt-audience", source.jwt_audience.is_some()),
            ("jwt-account-claim", source.jwt_account_claim.is_some()),
            ("jwt-runtime-claim", source.jwt_runtime_claim.is_some()),
            ("jwt-leeway", source.jwt_leeway.is_some()),
        ] {
            if is_given {
                let problem = "without keys no JSON Web Token can be checked: give --jwks as well";
                faults.push(source.fault(flag, problem));
            }
        }
        return None;
    };
    let mut required = |given: &Option<String>, flag: &'static str| {
        let given = given.clone().filter(|text| !text.is_empty());
        if given.is_none() {
            let named = source.place("jwks").mention();
            let problem =
                format!("required with {named}: a token for somebody else must not let anybody in");
            faults.push(source.fault(flag, problem));
        }
        given
    };
    let issuer = required(&source.jwt_issuer, "jwt-issuer");
    let audience = required(&source.jwt_audience, "jwt-audience");
    let claim =
        |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.into());
    Some(JwtSettings {
        keys,
        issuer: issuer?,
        audience: audience?,
        account_claim: claim(&source.jwt_account_claim, "account"),
        runtime_claim: claim(&source.jwt_runtime_claim, "runtime"),
        leeway: source.jwt_leeway.map_or(LEEWAY, Into::into),
    })
}

fn platform(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<PlatformSettings> {
    let Some(url) = source.auth_url.clone() else {
        for (flag, is_given) in [
            ("auth-token-file", source.auth_token_file.is_some()),
            ("auth-concurrency", source.auth_concurrency.is_some()),
            ("auth-cache", source.auth_cache.is_some()),
            ("auth-outage", source.auth_outage.is_some()),
        ] {
            if is_given {
                faults.push(source.fault(flag, "nobody is asked: give --auth-url as well"));
            }
        }
        return None;
    };
    Some(PlatformSettings {
        url,
        token_file: source.auth_token_file.clone(),
        concurrency: source
            .auth_concurrency
            .map_or(64, |count| u32::from(count) as usize),
        cache: source
            .auth_cache
            .map_or(Duration::from_secs(10), Into::into),
        outage: source
            .auth_outage
            .map_or(Duration::from_secs(3600), Into::into),
    })
}

fn certificates(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<CertificateSettings> {
    let crl = source.client_crl.clone();
    if source.client_ca.is_none() && crl.is_some() {
        let problem = "there are no client certificates to revoke: give --client-ca as well";
        faults.push(source.fault("client-crl", problem));
    }
    Some(CertificateSettings {
        ca: source.client_ca.clone()?,
        crl,
    })
}

fn ca_file(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<PathBuf> {
    let is_used = source.auth_url.is_some() || matches!(source.jwks, Some(JwksSource::Url(_)));
    if source.auth_ca_file.is_some() && !is_used {
        let problem = "no URL is asked: give --auth-url, or a URL in --jwks, as well";
        faults.push(source.fault("auth-ca-file", problem));
    }
    source.auth_ca_file.clone()
}

impl FromStr for HttpUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = |reason: &str| {
            ValueError::new(format!(
                "expected a URL such as `https://platform.example/path`: {reason}"
            ))
        };
        let uri: Uri = text.parse().map_err(|_| expected("this is none"))?;
        let authority = uri.authority().ok_or_else(|| expected("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(expected("a password does not belong into it"));
        }
        let is_near = matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_near => Ok(Self(uri)),
            _ => Err(expected("only https, or http to localhost")),
        }
    }
}

/// Without the query, which often holds a key: logs show it.
impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, authority) = (self.0.scheme_str(), self.0.authority());
        if let (Some(scheme), Some(authority)) = (scheme, authority) {
            write!(f, "{scheme}://{authority}")?;
        }
        f.write_str(self.0.path())?;
        match self.0.query() {
            Some(_) => f.write_str(HIDDEN_QUERY),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JwksSource {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.contains("://") {
            return text.parse().map(Self::Url);
        }
        if text.is_empty() {
            return Err(ValueError::new("expected a file or an https URL"));
        }
        Ok(Self::File(text.into()))
    }
}

impl<'de> Deserialize<'de> for HttpUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}

impl<'de> Deserialize<'de> for JwksSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(source: &Source) -> Vec<String> {
        let mut faults = Vec::new();
        Credentials::check(source, &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_json_web_token_needs_issuer_and_audience() {
        let mut source = Source {
            jwks: Some("keys.json".parse().unwrap()),
            ..Source::default()
        };
        let given = faults(&source);
        assert_eq!(given.len(), 2, "{given:?}");
        assert!(
            given[0].starts_with("--jwt-issuer: required with --jwks"),
            "{given:?}"
        );
        source.jwt_issuer = Some("https://id.example".into());
        source.jwt_audience = Some("tunnel".into());
        assert!(faults(&source).is_empty());
        assert!(Credentials::check(&source, &mut Vec::new()).is_any());
    }

    #[test]
    fn what_belongs_to_nothing_is_told() {
        let source = Source {
            jwt_issuer: Some("x".into()),
            auth_token_file: Some("t".into()),
            client_crl: Some("crl.pem".into()),
            auth_ca_file: Some("ca.pem".into()),
            ..Source::default()
        };
        let given = faults(&source);
        for (fault, flag) in given.iter().zip([
            "jwt-issuer",
            "auth-token-file",
            "client-crl",
            "auth-ca-file",
        ]) {
            assert!(fault.starts_with(&format!("--{flag}: ")), "{fault}");
        }
        assert_eq!(given.len(), 4, "{given:?}");
    }

    #[test]
    fn what_a_url_asks_with_is_not_shown() {
        let url: HttpUrl = "https://a.example:8443/x?key=s3cr3t".parse().unwrap();
        assert_eq!(url.to_string(), "https://a.example:8443/x?(hidden)");
        assert_eq!(
            url.fingerprinted(),
            "https://a.example:8443/x?(hidden, f7a84e86)"
        );
        assert_eq!(format!("{url:?}"), "https://a.example:8443/x?(hidden)");
        assert_eq!(url.uri().query(), Some("key=s3cr3t"));
        let bare: HttpUrl = "http://[::1]:1".parse().unwrap();
        assert_eq!(bare.to_string(), "http://[::1]:1/");
        assert_eq!(bare.fingerprinted(), bare.to_string());
    }

    #[test]
    fn only_encrypted_urls_leave_the_machine() {
        for good in [
            "https://a.example/x?y",
            "http://localhost:1/x",
            "http://127.0.0.1:1",
            "http://[::1]:1/",
        ] {
            assert!(good.parse::<HttpUrl>().is_ok(), "{good}");
        }
        for bad in [
            "http://a.example",
            "ftp://a",
            "https://u:p@a.example",
            "a.example",
            "http://localhost.evil.example",
            "",
        ] {
            assert!(bad.parse::<HttpUrl>().is_err(), "{bad}");
        }
        assert_eq!("k.json".parse(), Ok(JwksSource::File("k.json".into())));
        assert!("http://a.example/k".parse::<JwksSource>().is_err());
    }
}
