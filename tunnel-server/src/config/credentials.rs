//! The settings of accepted credentials, checked together.
//!
//! In: a [`Source`]. Out: [`Credentials`], or the faults, each with its flag. The files and URLs that are named here are
//! read by [`crate::auth`], repeatedly while the server runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::ValueParser;
use http::Uri;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use tunnel_ops::config_value::{self, ValueError};
use tunnel_ops::settings::{GivenSettings, Setting, SettingValue, text_parser};

use super::{ConfigFault, Settings, Source, setting};

/// Shown instead of a URL's query.
const HIDDEN_QUERY: &str = "?(hidden)";

/// An `https` URL, or an `http` one to the local machine.
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

/// The accepted credentials, apart from the tokens of the runtimes file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The list of credentials that are no longer valid.
    pub revocations: Option<PathBuf>,
    /// JSON Web Tokens.
    pub jwt: Option<JwtSettings>,
    /// Tokens that the platform verifies.
    pub platform: Option<PlatformSettings>,
    /// Client certificates.
    pub certificates: Option<CertificateSettings>,
    /// CA file, beside the system's, for the platform's URLs.
    pub ca_file: Option<PathBuf>,
    /// Time limit for one response of the platform's URLs.
    pub timeout: Duration,
    /// How long a session stays open after its credential has expired.
    pub expiry_grace: Duration,
}

/// How JSON Web Tokens are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSettings {
    /// Where the keys are.
    pub keys: JwksSource,
    /// The required `iss`.
    pub issuer: String,
    /// The required `aud`, which may be one of several.
    pub audience: String,
    /// The claim that holds the account.
    pub account_claim: String,
    /// The claim that holds the runtime.
    pub runtime_claim: String,
    /// How far the clocks may be apart.
    pub leeway: Duration,
}

/// How the platform verifies tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformSettings {
    /// The URL of the queries.
    pub url: HttpUrl,
    /// The file with the token by which this server authenticates to the platform.
    pub token_file: Option<PathBuf>,
    /// Most concurrent queries.
    pub concurrency: usize,
    /// How long an answer is cached.
    pub cache: Duration,
    /// How long approved tokens stay valid while the platform is unreachable.
    pub outage: Duration,
}

/// How client certificates are checked.
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

    /// The URL with 8 digits of a hash instead of its query, so that a changed query shows as a difference.
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

impl Credentials {
    /// The credentials of settings that were checked.
    pub(crate) fn of(settings: &Settings) -> Self {
        let of_jwt = (&settings.jwks, &settings.jwt_issuer, &settings.jwt_audience);
        let jwt = match of_jwt {
            (Some(keys), Some(issuer), Some(audience)) => Some(JwtSettings {
                keys: keys.clone(),
                issuer: issuer.clone(),
                audience: audience.clone(),
                account_claim: settings.jwt_account_claim.clone(),
                runtime_claim: settings.jwt_runtime_claim.clone(),
                leeway: settings.jwt_leeway,
            }),
            _ => None,
        };
        let platform = settings.auth_url.as_ref().map(|url| PlatformSettings {
            url: url.clone(),
            token_file: settings.auth_token_file.clone(),
            concurrency: settings.auth_concurrency as usize,
            cache: settings.auth_cache,
            outage: settings.auth_outage,
        });
        let ca = settings.client_ca.as_ref();
        let certificates = ca.map(|ca| CertificateSettings {
            ca: ca.clone(),
            crl: settings.client_crl.clone(),
        });
        Self {
            revocations: settings.revocations.clone(),
            jwt,
            platform,
            certificates,
            ca_file: settings.auth_ca_file.clone(),
            timeout: settings.auth_timeout,
            expiry_grace: settings.expiry_grace,
        }
    }

    /// Whether any credential other than a listed token is accepted.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.jwt.is_some() || self.platform.is_some() || self.certificates.is_some()
    }
}

/// Checks that the given settings of credentials are complete and used.
pub(super) fn check(source: &Source, faults: &mut Vec<ConfigFault>) {
    check_jwt(source, faults);
    if source.auth_url.is_none() {
        let unused = [
            (&setting::auth_token_file, source.auth_token_file.is_some()),
            (
                &setting::auth_concurrency,
                source.auth_concurrency.is_some(),
            ),
            (&setting::auth_cache, source.auth_cache.is_some()),
            (&setting::auth_outage, source.auth_outage.is_some()),
        ];
        let problem = "it has no effect without --auth-url";
        report_unused(source, unused, problem, faults);
    }
    if source.client_ca.is_none() {
        let unused = [(&setting::client_crl, source.client_crl.is_some())];
        let problem = "there are no client certificates to revoke: give --client-ca as well";
        report_unused(source, unused, problem, faults);
    }
    let has_url = source.auth_url.is_some() || source.webhook_url.is_some();
    if !has_url && !matches!(source.jwks, Some(JwksSource::Url(_))) {
        let unused = [(&setting::auth_ca_file, source.auth_ca_file.is_some())];
        let problem =
            "no URL is requested: give --auth-url, --webhook-url, or a URL in --jwks, as well";
        report_unused(source, unused, problem, faults);
    }
}

fn check_jwt(source: &Source, faults: &mut Vec<ConfigFault>) {
    if source.jwks.is_none() {
        let unused = [
            (&setting::jwt_issuer, source.jwt_issuer.is_some()),
            (&setting::jwt_audience, source.jwt_audience.is_some()),
            (
                &setting::jwt_account_claim,
                source.jwt_account_claim.is_some(),
            ),
            (
                &setting::jwt_runtime_claim,
                source.jwt_runtime_claim.is_some(),
            ),
            (&setting::jwt_leeway, source.jwt_leeway.is_some()),
        ];
        let problem = "without keys no JSON Web Token can be checked: give --jwks as well";
        return report_unused(source, unused, problem, faults);
    }
    for (setting, text) in [
        (&setting::jwt_issuer, &source.jwt_issuer),
        (&setting::jwt_audience, &source.jwt_audience),
    ] {
        if text.as_ref().is_none_or(String::is_empty) {
            let named = source.origin(&setting::jwks).mention();
            let problem = format!(
                "required with {named}: a token for another service must not be accepted here"
            );
            faults.push(source.fault(setting, problem));
        }
    }
}

/// Adds a fault for each of these settings that is given, since it would have no effect.
pub(super) fn report_unused<const N: usize>(
    source: &Source,
    unused: [(&Setting, bool); N],
    problem: &str,
    faults: &mut Vec<ConfigFault>,
) {
    let given = unused.into_iter().filter(|(_, is_given)| *is_given);
    faults.extend(given.map(|(setting, _)| source.fault(setting, problem)));
}

impl FromStr for HttpUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = |reason: &str| {
            ValueError::new(format!(
                "expected a URL such as `https://platform.example/path`: {reason}"
            ))
        };
        let uri: Uri = text.parse().map_err(|_| expected("this is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| expected("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(expected("it must not contain a password"));
        }
        let is_local = matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_local => Ok(Self(uri)),
            _ => Err(expected("only https, or http to localhost")),
        }
    }
}

/// Without the query, because it often contains a key, and the URL is logged.
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

tunnel_ops::text_value!(HttpUrl, show = HttpUrl::fingerprinted);

impl SettingValue for JwksSource {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn show(keys: &Self) -> String {
        match keys {
            Self::File(path) => PathBuf::show(path),
            Self::Url(url) => url.fingerprinted(),
        }
    }

    fn parser() -> ValueParser {
        text_parser::<Self>()
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::File(path) => vec![path],
            Self::Url(_) => Vec::new(),
        }
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
        check(source, &mut faults);
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
        assert!(Credentials::of(&source.settings()).is_any());
    }

    #[test]
    fn settings_without_effect_are_reported() {
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
    fn the_query_of_a_url_is_not_shown() {
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
    fn http_urls_must_be_local() {
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
