//! The last steps: each upstream that a route leads to is connected to, and asked how it is where the route
//! says by which path.
//!
//! An upstream is reached as an exchange reaches it, by the same code, and once. One that a request fills in
//! cannot be checked before there is a request.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::Instant;
use tunnel_proto::problem::{Problem, Reason};

use super::facts::{Facts, Trouble, UpstreamFailure, UpstreamTrouble};
use super::step::{StepName, StepReport, StepResult};
use super::told::Told;
use super::verdict::verdict;
use super::words::printable;
use crate::config::{Config, RouteAction, Source, UpstreamMember, UpstreamScheme, UpstreamsConfig};
use crate::routes::LeadParts;
use crate::upstream::UpstreamShared;

/// Connections that are kept; none is used twice.
const IDLE_POOL: usize = 1;

/// Checks all upstreams, one after another, in the order of the routes, whatever else is wrong with what was
/// given.
pub(super) async fn check(source: &Source, facts: &Facts, told: &mut Told<'_>) {
    let Some(routes) = Config::routes_at_any_rate(source) else {
        return told.not_reached(&[StepName::Upstream]);
    };
    let dns_servers = source.dns_server.iter().flatten();
    let dns_servers: Vec<SocketAddr> = dns_servers.copied().map(SocketAddr::from).collect();
    let parts = LeadParts {
        shared: Arc::new(UpstreamShared::new(&dns_servers)),
        idle_pool: IDLE_POOL,
    };
    for route in &routes {
        match &route.action {
            RouteAction::Upstreams(upstreams) => {
                for member in &upstreams.members {
                    if lacks_roots(member, upstreams) {
                        let step = StepReport::not_reached(StepName::Upstream);
                        told.step(step.named(&route.name));
                        continue;
                    }
                    let began = Instant::now();
                    let seen = Box::pin(look(member, upstreams, &parts)).await;
                    let step = report(member, seen, facts).named(&route.name);
                    told.step(step.took(began.elapsed()));
                }
            }
            RouteAction::Template(template, _) => {
                let words = format!("{template}: not checked, it is filled in by requests");
                let step = StepReport::new(StepName::Upstream, StepResult::Skipped, words);
                told.step(step.named(&route.name));
            }
            // Nobody is asked for these.
            RouteAction::Respond(_) | RouteAction::Deny(_) => {}
        }
    }
}

/// Whether its certificate cannot be checked, since the CA file is not good: that is told already.
fn lacks_roots(member: &UpstreamMember, upstreams: &UpstreamsConfig) -> bool {
    member.url.scheme() == UpstreamScheme::Https && upstreams.options.tls.is_none()
}

/// Connects to one of a route's upstreams, and asks how it is. What is said of one that is well.
async fn look(
    member: &UpstreamMember,
    upstreams: &UpstreamsConfig,
    parts: &LeadParts,
) -> Result<String, (UpstreamFailure, String)> {
    let upstream = parts.upstream(&member.url, &upstreams.options);
    let upstream = upstream.map_err(|error| (UpstreamFailure::Tls, error.to_string()))?;
    if let Err(problem) = upstream.try_reach().await {
        let url = member.url.to_string();
        return Err((failure(problem.reason()), words(&problem, &url)));
    }
    let Some(health) = &upstreams.health else {
        return Ok(String::new());
    };
    match upstream
        .try_health(&health.path, health.host.as_ref(), health.timeout)
        .await
    {
        Ok(()) => Ok(format!(", well by {}", health.path)),
        Err(text) => Err((
            UpstreamFailure::Unhealthy,
            format!("{}: {text}", health.path),
        )),
    }
}

fn report(
    member: &UpstreamMember,
    seen: Result<String, (UpstreamFailure, String)>,
    facts: &Facts,
) -> StepReport {
    let url = member.url.to_string();
    match seen {
        Ok(more) => StepReport::new(StepName::Upstream, StepResult::Held, url + &more),
        Err((kind, text)) => {
            let seen = format!("{url}: {text}");
            let trouble = Trouble::Upstream(UpstreamTrouble { url, kind, text });
            StepReport::failed(StepName::Upstream, seen, verdict(facts, &trouble))
        }
    }
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
