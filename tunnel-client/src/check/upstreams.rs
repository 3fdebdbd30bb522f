//! The last steps: each upstream that the configuration names is connected to.
//!
//! An upstream is reached as an exchange reaches it, by the same code, and asked for nothing. One that a request
//! fills in cannot be checked before there is a request.

use std::sync::Arc;

use tokio::time::Instant;
use tunnel_proto::problem::{Problem, Reason};

use super::facts::{Facts, Trouble, UpstreamFailure, UpstreamTrouble};
use super::step::{StepName, StepReport, StepResult};
use super::told::Told;
use super::verdict::verdict;
use super::words::printable;
use crate::client::upstream_options;
use crate::config::Config;
use crate::upstream::{Upstream, UpstreamShared};

/// Name of the route that everything takes which no other one does.
const DEFAULT: &str = "default";

/// What a route leads to.
struct Target {
    /// The route's name.
    name: String,
    /// As it stands in the configuration.
    url: String,
    upstream: Result<Arc<Upstream>, String>,
}

/// Checks all upstreams, one after another.
pub(super) async fn check(config: &Config, facts: &Facts, told: &mut Told<'_>) {
    for target in targets(config) {
        let began = Instant::now();
        let trouble = match &target.upstream {
            Ok(upstream) => upstream
                .try_reach()
                .await
                .err()
                .map(|problem| (failure(problem.reason()), words(&problem, &target.url))),
            Err(text) => Some((UpstreamFailure::Tls, text.clone())),
        };
        let step = match trouble {
            None => StepReport::new(StepName::Upstream, StepResult::Held, target.url),
            Some((kind, text)) => {
                let seen = format!("{}: {text}", target.url);
                let url = target.url;
                let trouble = Trouble::Upstream(UpstreamTrouble { url, kind, text });
                StepReport::failed(StepName::Upstream, seen, verdict(facts, &trouble))
            }
        };
        told.step(step.named(&target.name).took(began.elapsed()));
    }
}

fn targets(config: &Config) -> Vec<Target> {
    let shared = Arc::new(UpstreamShared::new(&config.dns_servers));
    let upstream = Upstream::new(config.upstream.clone(), &upstream_options(config), &shared);
    let upstream = upstream.map(Arc::new);
    vec![Target {
        name: DEFAULT.to_owned(),
        url: config.upstream.to_string(),
        upstream: upstream.map_err(|error| error.to_string()),
    }]
}

/// What the problem says beyond the upstream's URL.
fn words(problem: &Problem, url: &str) -> String {
    let detail = problem.detail();
    let detail = detail.strip_prefix(url).unwrap_or(detail);
    printable(detail.trim_start_matches(": "))
}

fn failure(reason: Reason) -> UpstreamFailure {
    match reason {
        Reason::DnsError | Reason::DnsTimeout => UpstreamFailure::Unresolved,
        Reason::ConnectionRefused => UpstreamFailure::Refused,
        Reason::ConnectionTimeout => UpstreamFailure::TimedOut,
        Reason::DestinationDenied => UpstreamFailure::Denied,
        Reason::TlsCertificateError => UpstreamFailure::Certificate,
        Reason::TlsProtocolError => UpstreamFailure::Tls,
        _ => UpstreamFailure::Unreached,
    }
}
