//! One step of a check, as it is told: which, how it went, in how much time.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::certificate::CertificateFacts;
use super::verdict::Verdict;

/// Which step it is, in the order of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepName {
    /// The configuration is read.
    Config,
    /// The token file is.
    Token,
    /// The files of the client's certificate are.
    Certificate,
    /// The proxy's name is looked up.
    ProxyDns,
    /// The proxy is connected to.
    ProxyTcp,
    /// TLS with the proxy itself.
    ProxyTls,
    /// The proxy is asked for the server.
    Proxy,
    /// The server's name is looked up.
    Dns,
    /// The server is connected to.
    Tcp,
    /// TLS with the server, and its certificate.
    Tls,
    /// A session is asked for.
    Upgrade,
    /// The server takes the credential.
    Authentication,
    /// An echo comes through the session.
    Echo,
    /// This clock beside the server's.
    Clock,
    /// What a route leads to.
    Upstream,
    /// How long the way bears silence.
    Idle,
}

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepResult {
    /// As it should.
    Held,
    /// Well enough, but somebody should look at it.
    Warning,
    /// Not.
    Failed,
    /// It was not reached, is not on the way, or cannot be checked.
    Skipped,
}

/// A step that was taken, or not reached.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StepReport {
    /// Which.
    pub step: StepName,
    /// Of an upstream: the route that leads to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How it went.
    pub result: StepResult,
    /// What was seen, on one line.
    pub words: String,
    /// The time that it took.
    #[serde(
        rename = "ms",
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_ms"
    )]
    pub took: Option<Duration>,
    /// The certificates that were shown, the peer's own first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) chain: Vec<CertificateFacts>,
    /// Of one that failed: what is wrong, and what to do.
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

    /// The check did not get there.
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

    pub(super) fn with_chain(self, chain: Vec<CertificateFacts>) -> Self {
        Self { chain, ..self }
    }

    /// What else belongs to it, a line each, for people.
    pub fn details(&self) -> Vec<String> {
        self.chain.iter().map(CertificateFacts::line).collect()
    }
}

impl StepName {
    /// As people and JSON see it.
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
}

// serde hands a reference over.
fn as_ms<S: Serializer>(took: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let micros = took.map(|took| took.as_micros());
    // To the tenth: what is less is noise.
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
