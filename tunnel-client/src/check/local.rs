//! The steps that need no network: configuration, token file, certificate files.
//!
//! In: what was given. Out: the checked configuration, and what is known of the token; or the first thing
//! that is not good, as its own step.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tunnel_ops::tls_files::{Identity, TlsFilesError};

use super::facts::{Facts, Trouble};
use super::step::{StepName, StepReport, StepResult};
use super::token::{TokenFacts, TokenTrouble};
use super::told::Told;
use super::verdict::verdict;
use super::words::{moment, span};
use crate::config::{Config, ConfigError, ConfigFault, Given, ProxyChoice, Source};

/// A certificate that runs out sooner than this is worth a word.
const SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The client's own variable for a proxy.
const OWN_VARIABLE: &str = "TUNNEL_CLIENT_PROXY";

/// The configuration, and where its proxy was named.
pub(super) struct Read {
    pub(super) config: Config,
    pub(super) proxy_from: String,
}

/// Reads the configuration and the files that it names.
pub(super) fn config(given: Given, told: &mut Told<'_>) -> Option<Read> {
    let began = Instant::now();
    let is_given = given.source.proxy.is_some();
    let origin = match &given.config {
        Some(path) => path.display().to_string(),
        None => "flags and environment".to_owned(),
    };
    let mut own = Vec::new();
    let read = given.merge().map_err(ConfigError::from).and_then(|source| {
        told.report.server = source.server.as_ref().map(ToString::to_string);
        own = identity_files(&source);
        Config::check(source)
    });
    let error = match read {
        Ok(config) => {
            let held = StepReport::new(StepName::Config, StepResult::Held, origin);
            told.step(held.took(began.elapsed()));
            let own = std::env::var(OWN_VARIABLE).ok();
            let proxy_from = proxy_from(&config, is_given, own.as_deref());
            return Some(Read { config, proxy_from });
        }
        Err(error) => error,
    };
    let (step, trouble) = trouble(&error, &own);
    if step != StepName::Config {
        told.step(StepReport::new(
            StepName::Config,
            StepResult::Held,
            origin.as_str(),
        ));
    }
    let facts = Facts::new("", 0, SystemTime::now());
    let words = error.faults().first().map_or(origin, ToString::to_string);
    let failed = StepReport::failed(step, words, verdict(&facts, &trouble));
    told.step(failed.took(began.elapsed()));
    None
}

/// Where the proxy was named, if there is one. Of a flag and the client's own variable, whose value `own` is,
/// the flag counts.
fn proxy_from(config: &Config, is_given: bool, own: Option<&str>) -> String {
    let Some(proxy) = &config.proxy else {
        return String::new();
    };
    if let Some(variable) = proxy.variable {
        return variable.to_owned();
    }
    let own = own.and_then(|own| own.parse().ok());
    let is_own = matches!(own, Some(ProxyChoice::Proxy(url, _)) if url == proxy.url);
    match (is_given, is_own) {
        (true, true) => OWN_VARIABLE.to_owned(),
        (true, false) => "--proxy".to_owned(),
        (false, _) => "the configuration file".to_owned(),
    }
}

/// Whose fault it is: what is not one of the files is one of the configuration, and comes first.
fn trouble(error: &ConfigError, own: &[PathBuf]) -> (StepName, Trouble) {
    let faults = error.faults();
    let of_files =
        |fault: &ConfigFault| matches!(fault, ConfigFault::Token(_) | ConfigFault::Tls(_));
    if !faults.iter().all(of_files) {
        let faults = faults.iter().map(ToString::to_string).collect();
        return (StepName::Config, Trouble::Config(faults));
    }
    let mut trust = None;
    for fault in faults {
        match fault {
            ConfigFault::Token(error) => {
                return (StepName::Token, Trouble::Token(TokenTrouble::from(error)));
            }
            ConfigFault::Tls(error) if is_of(error, own) => {
                return (StepName::Certificate, Trouble::Identity(error.to_string()));
            }
            other => trust = trust.or_else(|| Some(other.to_string())),
        }
    }
    (StepName::Config, Trouble::Trust(trust.unwrap_or_default()))
}

fn identity_files(source: &Source) -> Vec<PathBuf> {
    let files = [&source.client_cert, &source.client_key];
    files.into_iter().flatten().cloned().collect()
}

/// Whether it is about the client's certificate, and not about one that it trusts.
fn is_of(error: &TlsFilesError, own: &[PathBuf]) -> bool {
    let is_own = |path: &Path| own.iter().any(|own| own == path);
    match error {
        TlsFilesError::Mismatch { .. } | TlsFilesError::NoKey { .. } => true,
        TlsFilesError::Unreadable { origin, .. }
        | TlsFilesError::NoCertificate { origin }
        | TlsFilesError::DamagedCertificate { origin } => is_own(origin),
        _ => false,
    }
}

/// Looks at the token, and at the client's certificate.
pub(super) fn credential(config: &Config, facts: &mut Facts, told: &mut Told<'_>) -> bool {
    if let Some(path) = &config.token_file {
        let began = Instant::now();
        match TokenFacts::look(path) {
            Ok(token) => {
                let result = match token.is_damaged() {
                    true => StepResult::Warning,
                    false => StepResult::Held,
                };
                let step = StepReport::new(StepName::Token, result, token.line(facts.now));
                facts.token = Some(token);
                // Of one that is not good now there is more to tell when the server's clock is known.
                if facts.is_token_in_time() {
                    told.step(step.took(began.elapsed()));
                }
            }
            // It was good a moment ago.
            Err(trouble) => {
                let words = path.display().to_string();
                let verdict = verdict(facts, &Trouble::Token(trouble));
                told.step(StepReport::failed(StepName::Token, words, verdict));
                return false;
            }
        }
    }
    let Some(files) = &config.client_certificate else {
        return true;
    };
    let began = Instant::now();
    match Identity::load(&files.cert, &files.key) {
        Ok(identity) => {
            let (result, words) = life(identity.not_after(), facts.now);
            let words = format!("{}: {words}", files.cert.display());
            let step = StepReport::new(StepName::Certificate, result, words);
            told.step(step.took(began.elapsed()));
            true
        }
        Err(error) => {
            let words = files.cert.display().to_string();
            let verdict = verdict(facts, &Trouble::Identity(error.to_string()));
            told.step(StepReport::failed(StepName::Certificate, words, verdict));
            false
        }
    }
}

/// How long a certificate is good.
fn life(end: SystemTime, now: SystemTime) -> (StepResult, String) {
    let until = moment(end);
    match end.duration_since(now) {
        Ok(left) if left > SOON => (StepResult::Held, format!("good to {until}")),
        Ok(left) => (
            StepResult::Warning,
            format!("good for {} more, to {until}", span(left)),
        ),
        Err(_) => (StepResult::Warning, format!("RAN OUT at {until}")),
    }
}

#[cfg(test)]
mod tests {
    use tunnel_ops::tls_files::Roots;

    use super::*;
    use crate::config::{LoginSource, ProxySettings};

    #[test]
    fn a_proxy_is_told_with_the_place_where_it_was_named() {
        let Ok(ProxyChoice::Proxy(url, None)) = "http://proxy:3128".parse() else {
            panic!("a proxy without a login")
        };
        let server = "wss://tunnel.example.com".parse().unwrap();
        let upstream = "http://127.0.0.1:1".parse().unwrap();
        let mut config = Config::new(server, Roots::none(), "token".into(), upstream);
        assert_eq!(proxy_from(&config, false, None), "");
        let (same, other) = (Some("http://proxy:3128"), Some("http://other:3128"));
        for (variable, is_given, own, from) in [
            (None, true, None, "--proxy"),
            (None, true, same, "TUNNEL_CLIENT_PROXY"),
            // Both are given, and the flag counts.
            (None, true, other, "--proxy"),
            (None, true, Some("none"), "--proxy"),
            (None, false, None, "the configuration file"),
            (Some("HTTPS_PROXY"), false, None, "HTTPS_PROXY"),
        ] {
            config.proxy = Some(ProxySettings {
                url: url.clone(),
                variable,
                login: LoginSource::None,
                trust: None,
            });
            assert_eq!(proxy_from(&config, is_given, own), from);
        }
    }

    #[test]
    fn a_certificate_that_runs_out_is_worth_a_word() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (end, result, word) in [
            (now + SOON * 2, StepResult::Held, "good to"),
            (now + SOON / 2, StepResult::Warning, "more"),
            (now - SOON, StepResult::Warning, "RAN OUT"),
        ] {
            let (found, words) = life(end, now);
            assert_eq!(found, result);
            assert!(words.contains(word), "{words}");
        }
    }
}
