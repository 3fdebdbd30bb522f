//! The last steps: each upstream that a route leads to is connected to, and asked how it is where the route
//! says by which path.
//!
//! ```text
//!   routes ─▶ lines, in their order ──────────────────────────────▶ told
//!               └▶ looks, each different one once ─▶ some at a time ─┘
//! ```
//!
//! An upstream is reached as an exchange reaches it, by the same code, and once. One that a request fills in
//! cannot be checked before there is a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tunnel_proto::problem::{Problem, Reason};
use tunnel_routing::LeadParts;
use tunnel_routing::config::{HealthOptions, RouteAction, RouteList, UpstreamOptions};
use tunnel_routing::upstream::{NotReached, UpstreamShared};
use tunnel_routing::url::{UpstreamScheme, UpstreamUrl};

use super::facts::{Facts, Trouble, UpstreamFailure, UpstreamTrouble};
use super::step::{StepName, StepReport, StepResult};
use super::told::Told;
use super::verdict::verdict;
use super::words::printable;
use crate::config::{Config, Source};

/// Upstreams that are looked at side by side: where nothing answers each takes its whole time.
const AT_ONCE: usize = 16;

/// Connections that are kept; none is used twice.
const IDLE_POOL: usize = 1;

/// One upstream, as it is to be looked at.
#[derive(Debug, PartialEq, Eq)]
struct Look<'c> {
    url: &'c UpstreamUrl,
    options: &'c UpstreamOptions,
    health: Option<&'c HealthOptions>,
}

/// What is told of a route.
#[derive(Debug, PartialEq, Eq)]
enum Line<'c> {
    /// The look with this index, by the route with this name.
    Look(&'c str, usize),
    /// A route with this name, to wherever a request says.
    Template(&'c str, String),
    /// The route with this name leads to one whose certificate cannot be checked, since the CA file is not good:
    /// that is told already.
    Unchecked(&'c str),
}

/// What came of a look, and how long it took.
struct Looked {
    /// What is said of one that is well.
    seen: Result<String, (UpstreamFailure, String)>,
    took: Duration,
}

/// Checks all upstreams, and tells of them in the order of the routes, whatever else is wrong with what was given.
pub(super) async fn check(source: &Source, facts: &Facts, told: &mut Told<'_>) {
    let Some(routes) = Config::routes_at_any_rate(source) else {
        return told.not_reached(&[StepName::Upstream]);
    };
    let dns_servers = source.settings().dns_server.unwrap_or_default();
    let parts = LeadParts {
        shared: Arc::new(UpstreamShared::new(
            &dns_servers,
            tunnel_proto::memory::MemoryAccount::new(usize::MAX),
        )),
        idle_pool: IDLE_POOL,
    };
    let (looks, lines) = plan(&routes);
    let looking = stream::iter(&looks).map(|look| Box::pin(look.take(&parts)));
    let mut looking = looking.buffered(AT_ONCE);
    let mut looked = Vec::with_capacity(looks.len());
    for line in lines {
        match line {
            Line::Look(route, index) => {
                while looked.len() <= index {
                    looked.extend(looking.next().await);
                }
                if let (Some(look), Some(looked)) = (looks.get(index), looked.get(index)) {
                    told.step(look.report(looked, facts).named(route));
                }
            }
            Line::Template(route, template) => {
                let words = format!("{template}: not checked, it is filled in by requests");
                let step = StepReport::new(StepName::Upstream, StepResult::Skipped, words);
                told.step(step.named(route));
            }
            Line::Unchecked(route) => {
                told.step(StepReport::not_reached(StepName::Upstream).named(route));
            }
        }
    }
}

/// What is to be looked at, each once, and what is to be told, in the order of the routes: so each look is
/// first told of when those before it have been.
fn plan(routes: &RouteList) -> (Vec<Look<'_>>, Vec<Line<'_>>) {
    let (mut looks, mut lines) = (Vec::new(), Vec::new());
    for route in routes {
        match &route.action {
            RouteAction::Upstreams(upstreams) => {
                for member in &upstreams.members {
                    let lacks_roots = upstreams.options.tls.is_none();
                    if member.url.scheme() == UpstreamScheme::Https && lacks_roots {
                        lines.push(Line::Unchecked(&route.name));
                        continue;
                    }
                    let look = Look {
                        url: &member.url,
                        options: &upstreams.options,
                        health: upstreams.health.as_ref(),
                    };
                    let known = looks.iter().position(|known| *known == look);
                    let index = known.unwrap_or_else(|| {
                        looks.push(look);
                        looks.len() - 1
                    });
                    lines.push(Line::Look(&route.name, index));
                }
            }
            RouteAction::Template(template, _) => {
                lines.push(Line::Template(&route.name, template.to_string()));
            }
            // Nobody is asked for these.
            RouteAction::Respond(_) | RouteAction::Deny(_) => {}
        }
    }
    (looks, lines)
}

impl Look<'_> {
    async fn take(&self, parts: &LeadParts) -> Looked {
        let began = Instant::now();
        let seen = Box::pin(self.look(parts)).await;
        Looked {
            seen,
            took: began.elapsed(),
        }
    }

    /// Connects, and asks how it is.
    async fn look(&self, parts: &LeadParts) -> Result<String, (UpstreamFailure, String)> {
        let upstream = parts.upstream(self.url, self.options);
        let upstream = upstream.map_err(|error| (UpstreamFailure::Unusable, error.to_string()))?;
        if let Err(not_reached) = upstream.try_reach().await {
            let words = words(&not_reached.problem, &self.url.to_string());
            return Err((failure(not_reached), words));
        }
        let Some(health) = self.health else {
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

    fn report(&self, looked: &Looked, facts: &Facts) -> StepReport {
        let url = self.url.to_string();
        let step = match &looked.seen {
            Ok(more) => StepReport::new(StepName::Upstream, StepResult::Held, url + more),
            Err((kind, text)) => {
                let seen = format!("{url}: {text}");
                let trouble = Trouble::Upstream(UpstreamTrouble {
                    url,
                    is_socket: self.url.socket_path().is_some(),
                    kind: kind.clone(),
                    text: text.clone(),
                });
                StepReport::failed(StepName::Upstream, seen, verdict(facts, &trouble))
            }
        };
        step.took(looked.took)
    }
}

/// What the problem says beyond the upstream's URL.
fn words(problem: &Problem, url: &str) -> String {
    let detail = problem.detail();
    let detail = detail.strip_prefix(url).unwrap_or(detail);
    printable(detail.trim_start_matches(": "))
}

fn failure(not_reached: NotReached) -> UpstreamFailure {
    if let Some(certificate) = not_reached.certificate {
        return UpstreamFailure::Certificate(certificate);
    }
    match not_reached.problem.reason() {
        Reason::DnsError => UpstreamFailure::Unresolved,
        Reason::DnsTimeout => UpstreamFailure::ResolveTimedOut,
        Reason::ConnectionRefused => UpstreamFailure::Refused,
        Reason::ConnectionTimeout => UpstreamFailure::TimedOut,
        Reason::DestinationDenied => UpstreamFailure::Denied,
        Reason::TlsCertificateError | Reason::TlsProtocolError => UpstreamFailure::Tls,
        _ => UpstreamFailure::Unreached,
    }
}
