//! Observes a dial: each of its steps becomes a line of the report, and what it observes becomes evidence.
//!
//! The dial is that of `run`; a step that failed is kept until its verdict is known.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use rustls::ProtocolVersion;
use tunnel_ops::connect::Attempt;
use tunnel_proto::handshake::Refusal;

use super::certificate::CertificateEvidence;
use super::evidence::{ClockEvidence, Evidence, ResponseEvidence};
use super::reporter::Reporter;
use super::step::{StepReport, StepResult};
use super::text::{listed, printable};
use crate::dial::StepError;
use crate::dial::observe::{Observation, Observer};
use crate::step::Step;

/// Observes one dial.
pub(super) struct DialObserver<'a, 'n> {
    pub(super) evidence: Evidence,
    /// Where steps are reported; `None` on a path that was reported before.
    reporter: Option<&'a mut Reporter<'n>>,
    /// Whether the dial requests a session: without one its last step is not reported.
    requests_session: bool,
    /// Of the current step.
    words: String,
    chain: Vec<CertificateEvidence>,
    /// The step that failed.
    pub(super) failed: Option<StepReport>,
}

impl<'a, 'n> DialObserver<'a, 'n> {
    pub(super) fn new(
        evidence: Evidence,
        reporter: Option<&'a mut Reporter<'n>>,
        requests_session: bool,
    ) -> Self {
        Self {
            evidence,
            reporter,
            requests_session,
            words: String::new(),
            chain: Vec::new(),
            failed: None,
        }
    }

    fn response(&mut self, status: StatusCode, fields: &HeaderMap, content: &[u8]) {
        let response = ResponseEvidence::read(status, fields, content);
        self.words = match &response.refusal {
            Some(Refusal { detail, .. }) => format!("{}: {}", status.as_u16(), printable(detail)),
            None => status.to_string(),
        };
        let clock = ClockEvidence::read(&response, fields, SystemTime::now());
        self.evidence.clock = clock.filter(|clock| clock.is_servers);
        self.evidence.response = Some(response);
    }
}

impl Observer for DialObserver<'_, '_> {
    fn begins(&mut self, _step: Step) {
        self.words.clear();
        self.chain.clear();
    }

    fn observe(&mut self, observation: Observation<'_>) {
        match observation {
            Observation::Target { host, port, proxy } => {
                self.evidence.host = host.to_owned();
                self.evidence.port = port;
                self.evidence.proxy = proxy.map(ToString::to_string);
                self.evidence.proxy_host =
                    proxy.map_or_else(String::new, |proxy| proxy.host().to_owned());
            }
            Observation::Addresses { host, addresses } => {
                let addresses: Vec<_> = addresses.iter().map(|address| address.ip()).collect();
                self.words = format!("{host}: {}", listed(&addresses));
            }
            Observation::Connected { address, failed } => {
                self.words = address.to_string();
                for Attempt { address, error } in failed {
                    self.words += &format!("; failed: {address} ({error})");
                }
            }
            Observation::Chain(chain) => {
                self.chain = CertificateEvidence::read_chain(chain);
                self.evidence.chain.clone_from(&self.chain);
            }
            Observation::Tls { version } => self.words = tls_words(version, &self.chain),
            Observation::ProxyResponse(response) => {
                let proxy = self.evidence.proxy.as_deref().unwrap_or("the proxy");
                let from = &self.evidence.proxy_from;
                self.words = format!("{proxy}, named by {from}: {}", response.text);
                if let Some(login) = response.login {
                    self.words += &format!(", login {login}");
                }
            }
            Observation::UpgradeResponse {
                status,
                fields,
                text,
            } => self.response(status, fields, text),
        }
    }

    fn ends(&mut self, step: Step, took: Duration, error: Option<&StepError>) {
        if step == Step::Upgrade && !self.requests_session {
            return;
        }
        let response = self.evidence.response.as_ref();
        let is_refusal = step == Step::Upgrade
            && response.is_some_and(|response| response.status != StatusCode::SWITCHING_PROTOCOLS);
        let words = match error {
            Some(StepError::TimedOut(..)) if self.words.is_empty() => "no answer".to_owned(),
            Some(StepError::Failed(_, error)) if self.words.is_empty() => {
                printable(&error.to_string())
            }
            None if self.words.is_empty() && step == Step::Proxy => {
                "it needs the next request on another connection".to_owned()
            }
            _ => std::mem::take(&mut self.words),
        };
        let report = StepReport::new(step, StepResult::Held, words)
            .took(took)
            .with_chain(std::mem::take(&mut self.chain));
        if error.is_some() || is_refusal {
            self.failed = Some(report);
        } else if let Some(reporter) = &mut self.reporter {
            reporter.step(report);
        }
    }

    fn wants_chains(&self) -> bool {
        true
    }
}

fn tls_words(version: Option<ProtocolVersion>, chain: &[CertificateEvidence]) -> String {
    let version = match version {
        Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
        Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
        _ => "TLS",
    };
    match chain.last() {
        Some(last) => format!("{version}, signed by {}", last.issuer_name),
        None => version.to_owned(),
    }
}
