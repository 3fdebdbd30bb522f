//! The steps without a network: configuration, token file, certificate files.
//!
//! Each fault is a step of its own, and keeps no later step from being taken.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tunnel_ops::settings::GivenSettings;
use tunnel_ops::tls_files::{Identity, TlsFilesError};

use super::evidence::Evidence;
use super::reporter::Reporter;
use super::step::{StepReport, StepResult, path};
use super::text::{moment, span};
use super::token::TokenEvidence;
use super::trust;
use super::verdict::{self, Verdict};
use crate::config::{Config, ConfigError, ConfigFault, Given, ServerUrl, Source, dialled, setting};
use crate::step::Step;

/// A certificate that expires sooner than this has a warning.
const SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What the configuration says.
pub(super) struct Read {
    /// The configuration if it is valid, perhaps but for the credential, which then is left out.
    pub(super) config: Option<Config>,
    /// Whether the credential was readable.
    pub(super) has_credential: bool,
    /// What was given, valid or not.
    pub(super) source: Source,
    /// The servers that are to be checked, in the order of the configuration.
    pub(super) targets: Vec<Target>,
    /// What is known apart from them.
    pub(super) evidence: Evidence,
}

/// A server that is to be checked.
pub(super) struct Target {
    pub(super) url: ServerUrl,
    /// The steps of the path to it.
    pub(super) path: Vec<Step>,
    /// With its host and port, and the origin of the proxy.
    pub(super) evidence: Evidence,
}

/// Reads the configuration and the files that it names; `None` if it cannot be parsed.
pub(super) fn config(given: Given, reporter: &mut Reporter<'_>) -> Option<Read> {
    let began = Instant::now();
    let origin = match &given.config {
        Some(path) => path.display().to_string(),
        None => "flags and environment".to_owned(),
    };
    let evidence = Evidence::new("", 0, SystemTime::now());
    let source = match given.merge().map_err(ConfigError::from) {
        Ok(source) => source,
        Err(error) => {
            let verdict = verdict::config(&sentences(error.faults()));
            let step = StepReport::failed(Step::Config, error.to_string(), verdict);
            reporter.step(step.took(began.elapsed()));
            return None;
        }
    };
    let servers: Vec<String> = source.servers().iter().map(ToString::to_string).collect();
    reporter.report.server = (!servers.is_empty()).then(|| servers.join(","));
    let (config, checked) = Config::check_all(&source);
    let failed = (checked.as_ref().err()).and_then(|error| fault(error, &source));
    let step = match failed {
        Some((words, verdict)) => StepReport::failed(Step::Config, words, verdict),
        None => StepReport::new(Step::Config, StepResult::Held, origin),
    };
    reporter.step(step.took(began.elapsed()));
    let servers = source.servers().iter();
    let targets = servers.map(|url| target(&source, url, evidence.now, reporter));
    let targets: Vec<Target> = targets.collect();
    if let Some(first) = targets.first() {
        reporter.path = first.path.clone();
    }
    Some(Read {
        config,
        has_credential: checked.is_ok(),
        targets,
        source,
        evidence,
    })
}

/// How a server is reached. Reports a proxy that is not used for it.
fn target(
    source: &Source,
    url: &ServerUrl,
    now: SystemTime,
    reporter: &mut Reporter<'_>,
) -> Target {
    let (host, port) = dialled(url, source.connect_to.as_ref());
    let mut evidence = Evidence::new(host, port, now);
    evidence.name = match &source.server_name {
        Some(name) => name.as_str().to_owned(),
        None => url.host().to_owned(),
    };
    let proxy = Config::proxy_way(source, url);
    if let Some(settings) = &proxy.settings {
        evidence.proxy_from = match settings.variable {
            Some(variable) => variable.to_owned(),
            None => source.origin(&setting::proxy).mention(),
        };
    }
    if let Some(passed_over) = &proxy.passed_over {
        let words = passed_over.to_string();
        reporter.step(StepReport::new(Step::Proxy, StepResult::Skipped, words));
    }
    Target {
        url: url.clone(),
        path: path(proxy.scheme),
        evidence,
    }
}

fn sentences<'f>(faults: impl IntoIterator<Item = &'f ConfigFault>) -> Vec<String> {
    faults.into_iter().map(ToString::to_string).collect()
}

/// What is wrong with the configuration or with its CA files; faults of the credential are for the later steps.
fn fault(error: &ConfigError, source: &Source) -> Option<(String, Verdict)> {
    let identity: Vec<&PathBuf> = [&source.client_cert, &source.client_key]
        .into_iter()
        .flatten()
        .collect();
    let is_of_credential = |fault: &ConfigFault| match fault {
        ConfigFault::Token(_) => true,
        ConfigFault::Tls(error) => is_of_identity(error, &identity),
        _ => false,
    };
    let faults = error.faults().iter();
    let faults: Vec<&ConfigFault> = faults.filter(|fault| !is_of_credential(fault)).collect();
    let words = faults.first()?.to_string();
    let tls = faults.iter().map(|fault| match fault {
        ConfigFault::Tls(error) => Some(error),
        _ => None,
    });
    let verdict = match tls.collect::<Option<Vec<_>>>().as_deref() {
        Some([first, ..]) => verdict::trust(&trust::failure(first, source)),
        _ => verdict::config(&sentences(faults)),
    };
    Some((words, verdict))
}

/// Whether an error is about the client's own certificate or key.
fn is_of_identity(error: &TlsFilesError, files: &[&PathBuf]) -> bool {
    match error {
        TlsFilesError::Mismatch { .. }
        | TlsFilesError::NoKey { .. }
        | TlsFilesError::OldCertificate { .. } => true,
        TlsFilesError::Unreadable { origin, .. }
        | TlsFilesError::NoCertificate { origin }
        | TlsFilesError::DamagedCertificate { origin } => files.contains(&origin),
        _ => false,
    }
}

/// Reads the token and the client's certificate, and returns whether both can be used.
pub(super) fn credential(
    source: &Source,
    evidence: &mut Evidence,
    reporter: &mut Reporter<'_>,
) -> bool {
    let token = (source.token_file.as_deref()).is_none_or(|path| token(path, evidence, reporter));
    let (Some(cert), Some(key)) = (&source.client_cert, &source.client_key) else {
        return token;
    };
    certificate(cert, key, evidence, reporter) && token
}

fn token(path: &Path, evidence: &mut Evidence, reporter: &mut Reporter<'_>) -> bool {
    let began = Instant::now();
    match TokenEvidence::read(path) {
        Ok(token) => {
            let result = match token.is_damaged() {
                true => StepResult::Warning,
                false => StepResult::Held,
            };
            let step = StepReport::new(Step::Token, result, token.line(evidence.now));
            evidence.token = Some(token);
            // One outside its time is reported when the server's clock is known.
            if evidence.is_token_in_time() {
                reporter.step(step.took(began.elapsed()));
            }
            true
        }
        Err(error) => {
            let path = error.path().map(|path| path.display().to_string());
            let words = path.unwrap_or_else(|| "(not shown)".to_owned());
            reporter.failed(Step::Token, words, verdict::token_file(&error));
            false
        }
    }
}

fn certificate(cert: &Path, key: &Path, evidence: &Evidence, reporter: &mut Reporter<'_>) -> bool {
    let began = Instant::now();
    let identity = Identity::load(cert, key);
    let step = match &identity {
        Ok(identity) => {
            let (result, words) = validity(identity.not_after(), evidence.now);
            let words = format!("{}: {words}", cert.display());
            StepReport::new(Step::Certificate, result, words)
        }
        Err(error) => {
            let verdict = verdict::identity(&error.to_string());
            StepReport::failed(Step::Certificate, cert.display().to_string(), verdict)
        }
    };
    reporter.step(step.took(began.elapsed()));
    identity.is_ok()
}

/// How long a certificate is valid.
fn validity(end: SystemTime, now: SystemTime) -> (StepResult, String) {
    let until = moment(end);
    match end.duration_since(now) {
        Ok(left) if left > SOON => (StepResult::Held, format!("valid to {until}")),
        Ok(left) => (
            StepResult::Warning,
            format!("valid for {} more, to {until}", span(left)),
        ),
        Err(_) => (StepResult::Warning, format!("EXPIRED at {until}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_expires_soon_has_a_warning() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (end, result, word) in [
            (now + SOON * 2, StepResult::Held, "valid to"),
            (now + SOON / 2, StepResult::Warning, "more"),
            (now - SOON, StepResult::Warning, "EXPIRED"),
        ] {
            let (found, words) = validity(end, now);
            assert_eq!(found, result);
            assert!(words.contains(word), "{words}");
        }
    }
}
