//! The last steps: each upstream that a route leads to is connected to, and its health path is requested if it has one.
//!
//! ```text
//!   routes ─▶ entries, in their order ──────────────────────────▶ reported
//!               └▶ dials, each different one once ──▶ 16 at a time ─┘
//! ```
//!
//! An upstream is connected to by the code that exchanges use, and asked whether it speaks the HTTP of its scheme; once
//! more for a route of a gRPC service, whether such calls get HTTP/2. One whose URL a request fills in cannot be checked
//! without a request.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::{HeaderValue, Version};
use tokio::time::Instant;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::problem::Problem;
use tunnel_routing::config::{HealthOptions, RouteAction, RouteConfig, RouteList, UpstreamOptions};
use tunnel_routing::rewrite::HostHeader;
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
    /// The `Host` that the route gives to all requests, if it does.
    host: Option<&'c HeaderValue>,
    /// Whether gRPC calls are to be expected.
    is_of_grpc: bool,
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

/// What a dial has found: what to say of the upstream, and what is wrong if something is.
struct Finding {
    result: StepResult,
    words: String,
    verdict: Option<Verdict>,
}

/// A finding, and how long it took.
type DialResult = (Finding, Duration);

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
                host: named_host(route),
                is_of_grpc: route.is_of_grpc(),
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

fn named_host(route: &RouteConfig) -> Option<&HeaderValue> {
    match &route.rewrite.host {
        HostHeader::Set(host) => Some(host),
        HostHeader::Keep | HostHeader::Upstream => None,
    }
}

impl Finding {
    fn held(words: impl Into<String>) -> Self {
        Self {
            result: StepResult::Held,
            words: words.into(),
            verdict: None,
        }
    }

    fn warning(words: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            result: StepResult::Warning,
            words: words.into(),
            verdict: Some(verdict),
        }
    }

    fn failed(words: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            result: StepResult::Failed,
            ..Self::warning(words, verdict)
        }
    }
}

impl UpstreamDial<'_> {
    async fn run(&self, shared: &Arc<UpstreamShared>) -> DialResult {
        let began = Instant::now();
        let url = self.url.to_string();
        let mut finding = (Box::pin(self.find(&url, shared)).await).unwrap_or_else(|failed| failed);
        let words = match finding.words.as_str() {
            "" => url,
            words => format!("{url}: {words}"),
        };
        finding.words = words;
        (finding, began.elapsed())
    }

    /// Connects, and requests the health path or asks for the version of HTTP. An error is a finding after which there is
    /// nothing more to find.
    async fn find(&self, url: &str, shared: &Arc<UpstreamShared>) -> Result<Finding, Finding> {
        let upstream = Upstream::new(self.url.clone(), self.options, shared).map_err(|error| {
            let text = error.to_string();
            Finding::failed(&text, verdict::unusable(url, &text))
        })?;
        let finding = match self.health {
            Some(health) => self.healthy(url, &upstream, health).await?,
            None => {
                let asked = upstream.ask(self.host).await;
                let (version, answer) = asked.map_err(|error| self.not_reached(url, &error))?;
                self.spoken(url, version, answer)
            }
        };
        if !self.is_of_grpc || finding.result != StepResult::Held {
            return Ok(finding);
        }
        let gets_http2 = upstream.try_grpc().await;
        match gets_http2.map_err(|error| self.not_reached(url, &error))? {
            true => Ok(finding),
            false => {
                let text = "gRPC calls fail, as they do not get HTTP/2";
                let verdict = verdict::no_grpc(url, self.url.scheme(), self.options.http);
                Ok(Finding::warning(text, verdict))
            }
        }
    }

    fn not_reached(&self, url: &str, failure: &TryDialError) -> Finding {
        let text = detail(&failure.problem, url);
        let is_socket = self.url.socket_path().is_some();
        let verdict = verdict::not_reached(url, is_socket, failure, &text);
        Finding::failed(text, verdict)
    }

    async fn healthy(
        &self,
        url: &str,
        upstream: &Upstream,
        health: &HealthOptions,
    ) -> Result<Finding, Finding> {
        let dialled = upstream.try_dial().await;
        dialled.map_err(|error| self.not_reached(url, &error))?;
        let path = &health.path;
        let host = health.host.as_ref();
        match upstream.check_health(path, host, health.timeout).await {
            Ok(()) => Ok(Finding::held(format!("healthy by {path}"))),
            Err(text) => {
                let text = format!("{path}: {text}");
                Err(Finding::failed(&text, verdict::unhealthy(url, &text)))
            }
        }
    }

    /// Whether the first answer is the HTTP of the scheme.
    fn spoken(&self, url: &str, version: Version, answer: FirstAnswer) -> Finding {
        let is_http2 = version == Version::HTTP_2;
        let scheme = self.url.scheme();
        let (http, tls) = match scheme {
            UpstreamScheme::Https => ("HTTP", "over TLS"),
            UpstreamScheme::H2c => ("HTTP/2", "without TLS"),
            UpstreamScheme::Http => ("HTTP", "without TLS"),
        };
        let text = match answer {
            FirstAnswer::Http2 if is_http2 => return Finding::held(""),
            FirstAnswer::Http1(400) if !is_http2 => {
                return Finding::warning(
                    "answers 400 to `HEAD /`",
                    verdict::bad_request(url, scheme),
                );
            }
            FirstAnswer::Http1(_) if !is_http2 => return Finding::held(""),
            FirstAnswer::Nothing if !is_http2 => {
                return Finding::warning(
                    "connected, but no answer to `HEAD /`",
                    verdict::silent(url),
                );
            }
            FirstAnswer::Nothing => "connected, but no SETTINGS of HTTP/2".to_owned(),
            FirstAnswer::Http2 => format!("what answers speaks HTTP/2 alone {tls}"),
            FirstAnswer::Http1(_) | FirstAnswer::Other => {
                format!("what answers does not speak {http} {tls}")
            }
        };
        let verdict = verdict::other_protocol(url, scheme, answer, &text);
        Finding::failed(text, verdict)
    }
}

fn report((finding, took): &DialResult) -> StepReport {
    let step = StepReport::new(Step::Upstream, finding.result, &finding.words);
    StepReport {
        verdict: finding.verdict.clone(),
        ..step.took(*took)
    }
}

/// The problem's detail without the upstream's URL.
fn detail(problem: &Problem, url: &str) -> String {
    let detail = problem.detail();
    let detail = detail.strip_prefix(url).unwrap_or(detail);
    printable(detail.trim_start_matches(": "))
}
