//! A step of a check with its result, and which steps lead to the server.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::certificate::CertificateEvidence;
use super::verdict::Verdict;
use crate::config::ProxyScheme;
use crate::step::Step;

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepResult {
    /// It succeeded.
    Held,
    /// It succeeded, with something to look at.
    Warning,
    /// It failed.
    Failed,
    /// It was not reached, does not apply, or cannot be checked.
    Skipped,
}

/// A step with its result.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StepReport {
    /// The step.
    pub step: Step,
    /// Of an upstream: the route that leads to it. Of a step to one of several servers: its URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How it went.
    pub result: StepResult,
    /// What was observed, on one line.
    pub words: String,
    /// How long it took.
    #[serde(
        rename = "ms",
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_ms"
    )]
    pub took: Option<Duration>,
    /// The certificates that the peer showed, its own first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) chain: Vec<CertificateEvidence>,
    /// Of a failed step, and of a warning that something can be done about: what is wrong, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

impl StepReport {
    pub(super) fn new(step: Step, result: StepResult, words: impl Into<String>) -> Self {
        Self {
            step,
            name: None,
            result,
            words: words.into(),
            took: None,
            chain: Vec::new(),
            verdict: None,
        }
    }

    pub(super) fn failed(step: Step, words: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            verdict: Some(verdict),
            ..Self::new(step, StepResult::Failed, words)
        }
    }

    pub(super) fn not_reached(step: Step) -> Self {
        Self::new(step, StepResult::Skipped, "not reached")
    }

    pub(super) fn took(self, took: Duration) -> Self {
        Self {
            took: Some(took),
            ..self
        }
    }

    pub(super) fn named(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    pub(super) fn with_chain(self, chain: Vec<CertificateEvidence>) -> Self {
        Self { chain, ..self }
    }

    /// Further lines for people.
    pub fn details(&self) -> Vec<String> {
        self.chain.iter().map(CertificateEvidence::line).collect()
    }
}

/// The steps to the server and back, by such a proxy or without one, in their order.
pub(super) fn path(proxy: Option<ProxyScheme>) -> Vec<Step> {
    use Step::{Authentication, Dns, Echo, Proxy, ProxyDns, ProxyTcp, ProxyTls, Tcp, Tls, Upgrade};
    let connection: &[Step] = match proxy {
        None => &[Dns, Tcp],
        Some(ProxyScheme::Http | ProxyScheme::Socks5h) => &[ProxyDns, ProxyTcp, Proxy],
        Some(ProxyScheme::Https) => &[ProxyDns, ProxyTcp, ProxyTls, Proxy],
        // The proxy is given an address.
        Some(ProxyScheme::Socks5) => &[Dns, ProxyDns, ProxyTcp, Proxy],
    };
    [connection, &[Tls, Upgrade, Authentication, Echo]].concat()
}

// serde hands a reference over.
fn as_ms<S: Serializer>(took: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let micros = took.map(|took| took.as_micros());
    // To a tenth of a millisecond: less is noise.
    #[allow(clippy::cast_precision_loss, reason = "no step takes years")]
    let ms = micros.map(|micros| (micros as f64 / 100.0).round() / 10.0);
    ms.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_only_what_there_is() {
        let step = StepReport::new(Step::Dns, StepResult::Held, "127.0.0.1");
        let json = serde_json::to_string(&step.took(Duration::from_micros(1_260))).unwrap();
        assert_eq!(
            json,
            r#"{"step":"dns","result":"held","words":"127.0.0.1","ms":1.3}"#
        );
    }
}
