//! The last steps: each upstream that a route leads to is connected to, and its health path is requested if it has one.
//!
//! ```text
//!   routes ─▶ entries, in their order ──────────────────────────▶ reported
//!               └▶ dials, each different one once ──▶ 16 at a time ─┘
//! ```
//!
//! An upstream is connected to once, by the code that exchanges use, and asked whether it speaks the HTTP of its scheme. One whose URL a request fills in cannot be checked
//! without a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::problem::Problem;
use tunnel_routing::config::{HealthOptions, RouteAction, RouteList, UpstreamOptions};
use tunnel_routing::upstream::{FirstAnswer, TryDialError, Upstream, UpstreamShared};
use tunnel_routing::url::{UpstreamScheme, UpstreamUrl};

use super::reporter::Reporter;
use super::step::{StepReport, StepResult};
use super::text::printable;
use super::verdict::{self, Verdict};
use crate::config::{Config, Source};
use crate::step::Step;

/// Dials that run at once: one without an answer takes its whole time-out.
const AT_ONCE: usize = 16;

/// Idle connections kept; none is used twice.
const IDLE_POOL: usize = 1;

/// One upstream with its options. Equal ones are dialled once.
#[derive(Debug, PartialEq, Eq)]
struct UpstreamDial<'c> {
    url: &'c UpstreamUrl,
    options: &'c UpstreamOptions,
    health: Option<&'c HealthOptions>,
}

/// One line of the report, for the route with this name.
#[derive(Debug, PartialEq, Eq)]
enum Entry<'c> {
    /// The result of the dial with this index.
    Dial(&'c str, usize),
    /// A URL that requests fill in.
    Template(&'c str, String),
    /// An upstream without a CA file to verify it, which was reported before.
    Unchecked(&'c str),
}

/// The result of a dial: what to say of the upstream, and why it failed if it did.
type DialResult = (String, Option<Verdict>, Duration);

/// Dials all upstreams, and reports them in the order of the routes.
pub(super) async fn check(source: &Source, reporter: &mut Reporter<'_>) {
    let Some(routes) = Config::routes_at_any_rate(source) else {
        return reporter.not_reached(&[Step::Upstream]);
    };
    let dns_servers = source.settings().dns_server.unwrap_or_default();
    let memory = MemoryAccount::new(usize::MAX);
    let shared = Arc::new(UpstreamShared::new(&dns_servers, memory, IDLE_POOL));
    let (dials, entries) = plan(&routes);
    let dialling = stream::iter(&dials).map(|dial| Box::pin(dial.run(&shared)));
    let mut dialling = dialling.buffered(AT_ONCE);
    let mut results = Vec::with_capacity(dials.len());
    for entry in entries {
        match entry {
            Entry::Dial(route, index) => {
                while results.len() <= index {
                    results.extend(dialling.next().await);
                }
                if let Some(result) = results.get(index) {
                    reporter.step(report(result).named(route));
                }
            }
            Entry::Template(route, template) => {
                let words = format!("{template}: not checked, requests fill it in");
                let step = StepReport::new(Step::Upstream, StepResult::Skipped, words);
                reporter.step(step.named(route));
            }
            Entry::Unchecked(route) => {
                reporter.step(StepReport::not_reached(Step::Upstream).named(route));
            }
        }
    }
}

/// The different dials, and the lines of the report in the order of the routes. A line's dial comes after those of the
/// lines before.
fn plan(routes: &RouteList) -> (Vec<UpstreamDial<'_>>, Vec<Entry<'_>>) {
    let (mut dials, mut entries) = (Vec::new(), Vec::new());
    for route in routes {
        let upstreams = match &route.action {
            RouteAction::Upstreams(upstreams) => upstreams,
            RouteAction::Template(template, _) => {
                entries.push(Entry::Template(&route.name, template.to_string()));
                continue;
            }
            // Without an upstream.
            RouteAction::Respond(_) | RouteAction::Deny(_) => continue,
        };
        for member in &upstreams.members {
            let lacks_roots = upstreams.options.tls.is_none();
            if member.url.scheme() == UpstreamScheme::Https && lacks_roots {
                entries.push(Entry::Unchecked(&route.name));
                continue;
            }
            let dial = UpstreamDial {
                url: &member.url,
                options: &upstreams.options,
                health: upstreams.health.as_ref(),
            };
            let known = dials.iter().position(|known| *known == dial);
            let index = known.unwrap_or_else(|| {
                dials.push(dial);
                dials.len() - 1
            });
            entries.push(Entry::Dial(&route.name, index));
        }
    }
    (dials, entries)
}

impl UpstreamDial<'_> {
    async fn run(&self, shared: &Arc<UpstreamShared>) -> DialResult {
        let began = Instant::now();
        let url = self.url.to_string();
        match Box::pin(self.connect(&url, shared)).await {
            Ok(more) => (url + &more, None, began.elapsed()),
            Err((text, verdict)) => (format!("{url}: {text}"), Some(verdict), began.elapsed()),
        }
    }

    /// Connects, and requests the health path.
    async fn connect(
        &self,
        url: &str,
        shared: &Arc<UpstreamShared>,
    ) -> Result<String, (String, Verdict)> {
        let upstream = Upstream::new(self.url.clone(), self.options, shared).map_err(|error| {
            let text = error.to_string();
            let verdict = verdict::unusable(url, &text);
            (text, verdict)
        })?;
        let not_reached = |failure: TryDialError| {
            let text = detail(&failure.problem, url);
            let is_socket = self.url.socket_path().is_some();
            let verdict = verdict::not_reached(url, is_socket, &failure, &text);
            (text, verdict)
        };
        let Some(HealthOptions {
            path,
            host,
            timeout,
            ..
        }) = self.health
        else {
            let answer = upstream.ask().await.map_err(not_reached)?;
            return self.spoken(url, answer);
        };
        upstream.try_dial().await.map_err(not_reached)?;
        match upstream.check_health(path, host.as_ref(), *timeout).await {
            Ok(()) => Ok(format!(", healthy by {path}")),
            Err(text) => {
                let text = format!("{path}: {text}");
                let verdict = verdict::unhealthy(url, &text);
                Err((text, verdict))
            }
        }
    }

    /// Whether the first answer is the HTTP of the scheme.
    fn spoken(&self, url: &str, answer: FirstAnswer) -> Result<String, (String, Verdict)> {
        let is_h2c = self.url.scheme() == UpstreamScheme::H2c;
        let text = match answer {
            FirstAnswer::Http2 => return Ok(String::new()),
            FirstAnswer::Http1(400) => {
                let more = ", answers 400 to `HEAD /`, as a port for TLS does, or one that serves other hosts";
                return Ok(more.to_owned());
            }
            FirstAnswer::Http1(_) => return Ok(String::new()),
            FirstAnswer::Nothing if !is_h2c => {
                return Ok(", connected, but no answer to `HEAD /`".to_owned());
            }
            FirstAnswer::Nothing => "connected, but no SETTINGS of HTTP/2",
            FirstAnswer::Other if is_h2c => "what answers does not speak HTTP/2 without TLS",
            FirstAnswer::Other => "what answers does not speak HTTP without TLS",
        };
        Err((text.to_owned(), verdict::other_protocol(url, is_h2c, text)))
    }
}

fn report((words, verdict, took): &DialResult) -> StepReport {
    let step = match verdict {
        None => StepReport::new(Step::Upstream, StepResult::Held, words),
        Some(verdict) => StepReport::failed(Step::Upstream, words, verdict.clone()),
    };
    step.took(*took)
}

/// The problem's detail without the upstream's URL.
fn detail(problem: &Problem, url: &str) -> String {
    let detail = problem.detail();
    let detail = detail.strip_prefix(url).unwrap_or(detail);
    printable(detail.trim_start_matches(": "))
}
