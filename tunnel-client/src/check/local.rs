//! The steps that need no network: configuration, token file, certificate files.
//!
//! In: what was given. Out: as much of the configuration as is good, and what is known of the token; each thing
//! that is not good is its own step, and none keeps those after it from being looked at.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tunnel_ops::settings::GivenSettings;
use tunnel_ops::tls_files::{Identity, TlsFilesError};

use super::facts::{Facts, Trouble};
use super::plan;
use super::step::{StepName, StepReport, StepResult};
use super::token::TokenFacts;
use super::told::Told;
use super::trust;
use super::verdict::verdict;
use super::words::{moment, span};
use crate::config::{Config, ConfigError, ConfigFault, Given, Source, dialled, setting};

/// A certificate that runs out sooner than this is worth a word.
const SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What the configuration says.
pub(super) struct Read {
    /// All of it, if all is good, perhaps but for the credential, which then is left out.
    pub(super) config: Option<Config>,
    /// Whether the credential was good when it was read.
    pub(super) has_credential: bool,
    /// What was given, whatever is wrong with it.
    pub(super) source: Source,
    /// Where the server's host and port are known, and who named the proxy.
    pub(super) facts: Facts,
}

/// Reads the configuration and the files that it names; nothing if it cannot be read.
pub(super) fn config(given: Given, told: &mut Told<'_>) -> Option<Read> {
    let began = Instant::now();
    let origin = match &given.config {
        Some(path) => path.display().to_string(),
        None => "flags and environment".to_owned(),
    };
    let mut facts = Facts::new("", 0, SystemTime::now());
    let source = match given.merge().map_err(ConfigError::from) {
        Ok(source) => source,
        Err(error) => {
            let faults = error.faults().iter().map(ToString::to_string).collect();
            let trouble = verdict(&facts, &Trouble::Config(faults));
            let failed = StepReport::failed(StepName::Config, error.to_string(), trouble);
            told.step(failed.took(began.elapsed()));
            return None;
        }
    };
    told.report.server = source.server.as_ref().map(ToString::to_string);
    if let Some(server) = &source.server {
        let (host, port) = dialled(server, source.connect_to.as_ref());
        facts = Facts::new(host, port, facts.now);
        facts.name = match &source.server_name {
            Some(name) => name.as_str().to_owned(),
            None => server.host().to_owned(),
        };
    }
    let (config, checked) = Config::check_all(&source);
    let failed = (checked.as_ref().err()).and_then(|error| fault(error, &source));
    let step = match failed {
        Some((words, trouble)) => {
            StepReport::failed(StepName::Config, words, verdict(&facts, &trouble))
        }
        None => StepReport::new(StepName::Config, StepResult::Held, origin),
    };
    told.step(step.took(began.elapsed()));
    let proxy = Config::proxy_way(&source);
    told.way = plan::steps(proxy.scheme);
    if let Some(settings) = &proxy.settings {
        facts.proxy_from = match settings.variable {
            Some(variable) => variable.to_owned(),
            None => source.origin(&setting::proxy).mention(),
        };
    }
    if let Some(passed_over) = &proxy.passed_over {
        let words = passed_over.to_string();
        told.step(StepReport::new(StepName::Proxy, StepResult::Skipped, words));
    }
    Some(Read {
        config,
        has_credential: checked.is_ok(),
        source,
        facts,
    })
}

/// What is wrong with the configuration itself, or with whom it has the client trust; what is wrong with the
/// credential is for its own steps.
fn fault(error: &ConfigError, source: &Source) -> Option<(String, Trouble)> {
    let own = identity_files(source);
    let is_of_credential = |fault: &&ConfigFault| match fault {
        ConfigFault::Token(_) => true,
        ConfigFault::Tls(error) => is_of(error, &own),
        _ => false,
    };
    let faults = error
        .faults()
        .iter()
        .filter(|fault| !is_of_credential(fault));
    let faults: Vec<&ConfigFault> = faults.collect();
    let words = faults.first()?.to_string();
    let of_trust = faults.iter().map(|fault| match fault {
        ConfigFault::Tls(error) => Some(error),
        _ => None,
    });
    let of_trust: Option<Vec<&TlsFilesError>> = of_trust.collect();
    let trouble = match of_trust.as_deref() {
        Some([first, ..]) => Trouble::Trust(trust::trouble(first, source)),
        _ => Trouble::Config(faults.iter().map(ToString::to_string).collect()),
    };
    Some((words, trouble))
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

/// Looks at the token, and at the client's certificate. Whether both are good, as far as can be told here.
pub(super) fn credential(source: &Source, facts: &mut Facts, told: &mut Told<'_>) -> bool {
    let token = (source.token_file.as_deref()).is_none_or(|path| token(path, facts, told));
    let (Some(cert), Some(key)) = (&source.client_cert, &source.client_key) else {
        return token;
    };
    certificate(cert, key, facts, told) && token
}

fn token(path: &Path, facts: &mut Facts, told: &mut Told<'_>) -> bool {
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
            true
        }
        Err(trouble) => {
            let words = trouble.path.display().to_string();
            let verdict = verdict(facts, &Trouble::Token(trouble));
            told.step(StepReport::failed(StepName::Token, words, verdict));
            false
        }
    }
}

fn certificate(cert: &Path, key: &Path, facts: &Facts, told: &mut Told<'_>) -> bool {
    let began = Instant::now();
    match Identity::load(cert, key) {
        Ok(identity) => {
            let (result, words) = life(identity.not_after(), facts.now);
            let words = format!("{}: {words}", cert.display());
            let step = StepReport::new(StepName::Certificate, result, words);
            told.step(step.took(began.elapsed()));
            true
        }
        Err(error) => {
            let words = cert.display().to_string();
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
    use super::*;

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
