//! A dry run: what a table does with a request, without sending it. For `tunnel-client routes test`.
//!
//! In: the routes, and a request's method and URL as a person writes them. Out: the route that takes it, what each
//! other route says, and what the upstream would receive. Matching, templates and rewriting are those of a running
//! client.

use http::header::HOST;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Request, Uri, Version};
use tunnel_ops::config_value::ValueError;

use crate::config::{RouteAction, RouteConfig, RouteList};
use crate::explain::{Verdict, explain};
use crate::matcher::RouteKey;
use crate::odd::OddParts;
use crate::pattern::segment_at;
use crate::rewrite::HostHeader;
use crate::table::CHECKER;
use crate::upstream::UpstreamHttp;
use crate::url::UpstreamUrl;

/// The request of a dry run.
#[derive(Debug, Clone)]
pub struct DryRunRequest {
    method: Method,
    host: Option<HeaderValue>,
    target: PathAndQuery,
}

/// The result of a dry run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DryRun<'a> {
    /// The route that decides: it takes the request, or refuses it.
    pub route: Option<&'a RouteConfig>,
    /// The verdict of each route, in the order of the list.
    pub verdicts: Vec<(&'a RouteConfig, Verdict)>,
    /// The named segments with their values.
    pub captures: Vec<(&'a str, String)>,
    /// The odd parts of the path.
    pub odd_parts: OddParts,
    /// What the route does with the request.
    pub outcome: Outcome,
}

/// What a route does with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It forwards the request to one of these.
    Forwarded(Vec<UpstreamRequest>),
    /// It responds itself, with this status.
    Answered(u16),
    /// It denies the request, with this text.
    Denied(String),
    /// It refuses the path, for this reason.
    SegmentRefused(String),
    /// The route does not allow these odd parts of the path.
    OddPath(OddParts),
    /// The route would take it, but the path has too many readings to know that none is denied.
    TooManyReadings,
    /// No route takes it.
    Unknown,
}

/// What an upstream would receive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamRequest {
    /// The upstream's URL with the path and query.
    pub url: String,
    /// The `Host`.
    pub host: String,
    /// The versions of HTTP in which it would.
    pub http: UpstreamHttp,
    /// Its share of the requests.
    pub weight: u32,
}

impl DryRunRequest {
    /// A request with this method for this URL: `https://host/path?query`, or `/path?query` for no host in
    /// particular.
    ///
    /// # Errors
    /// When no request can have the method or the URL, or such a request is refused before it is routed.
    pub fn new(method: &str, url: &str) -> Result<Self, ValueError> {
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| ValueError::new("expected a method such as GET, and then a URL"))?;
        let (host, target) = match url.split_once("://") {
            Some((scheme, rest)) if ["http", "https", "ws", "wss"].contains(&scheme) => {
                let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let (host, target) = rest.split_at(at);
                (Some(parse_host(host)?), target)
            }
            _ if url.starts_with('/') || url == "*" => (None, url),
            _ => {
                return Err(ValueError::new(
                    "expected a URL such as https://host/path, or a path",
                ));
            }
        };
        // No fragment is ever sent.
        let target = target.split('#').next().unwrap_or_default();
        let target = match target.as_bytes().first() {
            None => "/".to_owned(),
            Some(b'?') => format!("/{target}"),
            Some(_) => target.to_owned(),
        };
        let target = PathAndQuery::try_from(target)
            .map_err(|error| ValueError::new(format!("no request can have this URL: {error}")))?;
        let request = Self {
            method,
            host,
            target,
        };
        let mut head = request.head();
        // Only a request of HTTP/1.0 may have no `Host`.
        head.version = Version::HTTP_10;
        match CHECKER.check(&head, None) {
            Ok(_) => Ok(request),
            Err(refused) => Err(ValueError::new(format!(
                "no request can be this one: {}",
                refused.detail()
            ))),
        }
    }

    fn head(&self) -> Parts {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = self.method.clone();
        head.uri = Uri::from(self.target.clone());
        head.headers
            .extend(self.host.clone().map(|host| (HOST, host)));
        head
    }
}

fn parse_host(text: &str) -> Result<HeaderValue, ValueError> {
    let host = text.parse::<Authority>().ok();
    let host = host.filter(|host| !host.as_str().contains('@'));
    let value = host.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    value.ok_or_else(|| ValueError::new("the URL has no valid host"))
}

/// Makes a dry run of a request.
pub fn try_request<'a>(routes: &'a RouteList, request: &DryRunRequest) -> DryRun<'a> {
    let path = request.target.path().as_bytes();
    let key = RouteKey {
        host: request.host.as_ref().map(HeaderValue::as_bytes),
        method: &request.method,
        path,
    };
    let conditions: Vec<_> = routes.iter().map(|route| &route.conditions).collect();
    let verdicts: Vec<_> = routes.iter().zip(explain(&conditions, &key)).collect();
    let decided = verdicts.iter().find_map(|(route, verdict)| {
        let outcome = match verdict {
            Verdict::Wins => outcome(route, request),
            Verdict::OddPath(parts) => Outcome::OddPath(*parts),
            Verdict::TooManyReadings => Outcome::TooManyReadings,
            _ => return None,
        };
        Some((*route, outcome))
    });
    let (route, outcome) = match decided {
        Some((route, outcome)) => (Some(route), outcome),
        None => (None, Outcome::Unknown),
    };
    let names = route
        .into_iter()
        .flat_map(|route| route.conditions.path.names());
    let captures = names.map(|(index, name)| {
        let segment = String::from_utf8_lossy(segment_at(path, index));
        (name, segment.into_owned())
    });
    DryRun {
        captures: captures.collect(),
        outcome,
        odd_parts: OddParts::of(path),
        route,
        verdicts,
    }
}

/// All routes, the most specific first; equal ones in the order of the file.
pub fn by_specificity(routes: &RouteList) -> Vec<&RouteConfig> {
    let mut sorted: Vec<_> = routes.iter().collect();
    sorted.sort_by(|a, b| b.conditions.compare(&a.conditions));
    sorted
}

fn outcome(route: &RouteConfig, request: &DryRunRequest) -> Outcome {
    let path = request.target.path().as_bytes();
    if let Err(refused) = route.check_values(path) {
        return Outcome::SegmentRefused(refused.to_string());
    }
    match &route.action {
        RouteAction::Respond(answer) => Outcome::Answered(answer.status.as_u16()),
        RouteAction::Deny(detail) => Outcome::Denied(detail.to_string()),
        RouteAction::Upstreams(upstreams) => {
            let members = upstreams.members.iter();
            let members = members.map(|member| (&member.url, member.weight));
            sent_to(route, request, upstreams.options.http, members)
        }
        RouteAction::Template(template, options) => match template.fill(path) {
            Ok(url) => sent_to(route, request, options.http, [(&url, 1)]),
            Err(refused) => Outcome::SegmentRefused(refused.to_string()),
        },
    }
}

fn sent_to<'a>(
    route: &RouteConfig,
    request: &DryRunRequest,
    http: UpstreamHttp,
    upstreams: impl IntoIterator<Item = (&'a UpstreamUrl, u32)>,
) -> Outcome {
    let mut head = request.head();
    if let Err(refused) = route.rewrite.apply(&mut head) {
        return Outcome::SegmentRefused(refused.to_string());
    }
    let upstreams = upstreams.into_iter();
    let sent = upstreams.map(|(url, weight)| UpstreamRequest {
        url: format!("{url}{}", target(&head)),
        host: host(route, &head, url),
        http: http.for_scheme(url.scheme()),
        weight,
    });
    Outcome::Forwarded(sent.collect())
}

fn target(head: &Parts) -> &str {
    head.uri.path_and_query().map_or("/", PathAndQuery::as_str)
}

fn host(route: &RouteConfig, head: &Parts, upstream: &UpstreamUrl) -> String {
    let host = head.headers.get(HOST);
    let host = host.filter(|_| route.rewrite.host != HostHeader::Upstream);
    let host = host.and_then(|host| host.to_str().ok());
    host.unwrap_or_else(|| upstream.authority()).to_owned()
}
