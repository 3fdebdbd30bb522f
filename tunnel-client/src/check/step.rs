//! A step of a check: its name, its result, and which steps lead to the server.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::certificate::CertificateEvidence;
use super::verdict::Verdict;
use crate::config::ProxyScheme;
use crate::dial::Step;

/// A step, in the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepName {
    /// Read the configuration.
    Config,
    /// Read the token file.
    Token,
    /// Read the client's certificate and key.
    Certificate,
    /// Resolve the proxy's name.
    ProxyDns,
    /// Connect to the proxy.
    ProxyTcp,
    /// TLS with the proxy itself.
    ProxyTls,
    /// Request the connection to the server from the proxy.
    Proxy,
    /// Resolve the server's name.
    Dns,
    /// Connect to the server.
    Tcp,
    /// TLS with the server, and its certificate.
    Tls,
    /// Request a session.
    Upgrade,
    /// The server takes the credential.
    Authentication,
    /// An echo through the session.
    Echo,
    /// Compare this clock with the server's.
    Clock,
    /// Connect to an upstream of a route.
    Upstream,
    /// Measure how long an idle connection lives.
    Idle,
}

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
    pub step: StepName,
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
    /// Of a failed step: what is wrong, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

impl StepReport {
    pub(super) fn new(step: StepName, result: StepResult, words: impl Into<String>) -> Self {
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

    pub(super) fn failed(step: StepName, words: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            verdict: Some(verdict),
            ..Self::new(step, StepResult::Failed, words)
        }
    }

    pub(super) fn not_reached(step: StepName) -> Self {
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

impl StepName {
    /// The name in the output for people, and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::ProxyDns => "proxy_dns",
            Self::ProxyTcp => "proxy_tcp",
            Self::ProxyTls => "proxy_tls",
            Self::Proxy => "proxy",
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Upgrade => "upgrade",
            Self::Authentication => "authentication",
            Self::Echo => "echo",
            Self::Clock => "clock",
            Self::Upstream => "upstream",
            Self::Idle => "idle",
        }
    }

    /// The steps to the server and back, by such a proxy or without one, in their order.
    pub(super) fn path(proxy: Option<ProxyScheme>) -> Vec<Self> {
        use StepName::{Dns, Proxy, ProxyDns, ProxyTcp, ProxyTls, Tcp};
        let connection: &[Self] = match proxy {
            None => &[Dns, Tcp],
            Some(ProxyScheme::Http | ProxyScheme::Socks5h) => &[ProxyDns, ProxyTcp, Proxy],
            Some(ProxyScheme::Https) => &[ProxyDns, ProxyTcp, ProxyTls, Proxy],
            // The proxy is given an address.
            Some(ProxyScheme::Socks5) => &[Dns, ProxyDns, ProxyTcp, Proxy],
        };
        let session = [Self::Tls, Self::Upgrade, Self::Authentication, Self::Echo];
        [connection, &session].concat()
    }
}

impl From<Step> for StepName {
    fn from(step: Step) -> Self {
        match step {
            Step::ProxyResolve => Self::ProxyDns,
            Step::ProxyConnect => Self::ProxyTcp,
            Step::ProxyTls => Self::ProxyTls,
            Step::ProxyAsk => Self::Proxy,
            Step::Resolve => Self::Dns,
            Step::Connect => Self::Tcp,
            Step::Tls => Self::Tls,
            Step::Upgrade => Self::Upgrade,
        }
    }
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
    fn a_name_is_the_same_for_people_and_scripts() {
        for step in [
            StepName::Config,
            StepName::ProxyDns,
            StepName::Authentication,
            StepName::Idle,
        ] {
            let json = serde_json::to_string(&step).unwrap();
            assert_eq!(json, format!("{:?}", step.as_str()));
        }
    }

    #[test]
    fn json_has_only_what_there_is() {
        let step = StepReport::new(StepName::Dns, StepResult::Held, "127.0.0.1");
        let json = serde_json::to_string(&step.took(Duration::from_micros(1_260))).unwrap();
        assert_eq!(
            json,
            r#"{"step":"dns","result":"held","words":"127.0.0.1","ms":1.3}"#
        );
    }
}
