//! `tunnel-client routes test`: which route takes a request, why, and what its upstream is sent.

use std::fmt::Write;

use serde_json::{Value, json};

use tunnel_routing::config::{RouteConfig, RouteList, UpstreamHttp};
use tunnel_routing::dry_run::{
    DryRun, DryRunRequest, Outcome, UpstreamRequest, by_specificity, try_request,
};
use tunnel_routing::summary::{conditions, target};

use super::{Failure, print};
use crate::cli::RoutesTest;
use crate::config::Config;

/// Runs `routes test`. Dials nothing, and reads only the configuration.
pub(super) fn test(arguments: RoutesTest) -> Result<(), Failure> {
    let source = arguments.given.merge().map_err(Failure::configuration)?;
    let routes = Config::check_routes(&source).map_err(Failure::configuration)?;
    let (method, url) = match arguments.request.as_slice() {
        [url] => ("GET", url),
        [method, url] => (method.as_str(), url),
        _ => return Err(Failure::configuration("expected [METHOD] URL")),
    };
    let request = DryRunRequest::new(method, url).map_err(Failure::configuration)?;
    let trial = try_request(&routes, &request);
    print(&match arguments.json {
        true => format!("{:#}\n", as_json(&trial)),
        false => as_text(&trial),
    })?;
    verdict(&trial)
}

/// An error if the request is refused.
fn verdict(trial: &DryRun<'_>) -> Result<(), Failure> {
    let name = trial.route.map_or("", |route| &*route.name);
    match &trial.outcome {
        Outcome::Forwarded(_) | Outcome::Answered(_) => Ok(()),
        Outcome::Denied(detail) => Err(Failure::running(format_args!(
            "route `{name}` denies it (403 route_denied): {detail}"
        ))),
        Outcome::SegmentRefused(refused) => Err(Failure::running(format_args!(
            "route `{name}` refuses it (404 segment_refused): {refused}"
        ))),
        Outcome::OddPath(parts) => Err(Failure::running(format_args!(
            "route `{name}` refuses it (404 route_unknown): the path has {parts}; see allow_paths_with"
        ))),
        Outcome::TooManyReadings => Err(Failure::running(format_args!(
            "route `{name}` refuses it (404 route_unknown): upstreams may read the path in too many ways to know that \
             no route denies one"
        ))),
        Outcome::Unknown => Err(Failure::running("no route takes it (404 route_unknown)")),
    }
}

fn as_text(trial: &DryRun<'_>) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a string never fails.
        let _ = writeln!(text, "{words}");
    };
    match trial.route {
        Some(route) => {
            line(format_args!("route      {}{}", route.name, place(route)));
            line(format_args!("matches    {}", conditions(route)));
        }
        None => line(format_args!("route      none")),
    }
    for (name, segment) in &trial.captures {
        line(format_args!("segment    {{{name}}} = {segment}"));
    }
    match &trial.outcome {
        Outcome::Forwarded(all) => {
            for sent in all {
                let share = match all.len() {
                    1 => String::new(),
                    _ => format!("   (weight {})", sent.weight),
                };
                line(format_args!("upstream   {}{share}", sent.url));
            }
            for host in different(all, |sent| sent.host.as_str()) {
                line(format_args!("host       {host}"));
            }
            for http in different(all, |sent| versions(sent.http)) {
                line(format_args!("http       {http}"));
            }
        }
        Outcome::Answered(status) => line(format_args!("answers    {status}, by itself")),
        Outcome::Denied(detail) => line(format_args!("denies     403, \"{detail}\"")),
        Outcome::SegmentRefused(refused) => line(format_args!("refuses    404, {refused}")),
        Outcome::OddPath(parts) => {
            line(format_args!("refuses    404, the path has {parts}"));
        }
        Outcome::TooManyReadings => {
            line(format_args!(
                "refuses    404, the path has too many readings"
            ));
        }
        Outcome::Unknown => {}
    }
    let others = trial
        .verdicts
        .iter()
        .filter(|(route, _)| trial.route.is_none_or(|decides| decides.name != route.name));
    for (index, (route, verdict)) in others.enumerate() {
        let heading = if index == 0 { "others" } else { "" };
        line(format_args!(
            "{heading:<10} {}{} {verdict}",
            route.name,
            place(route)
        ));
    }
    text
}

/// What `of` says of them, each text once.
fn different(all: &[UpstreamRequest], of: fn(&UpstreamRequest) -> &str) -> Vec<&str> {
    let mut texts = Vec::new();
    for text in all.iter().map(of) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

fn versions(http: UpstreamHttp) -> &'static str {
    match http {
        UpstreamHttp::Auto => "HTTP/1.1, and HTTP/2 for gRPC",
        UpstreamHttp::Http1 => "HTTP/1.1",
        UpstreamHttp::Http2 => "HTTP/2",
    }
}

fn as_json(trial: &DryRun<'_>) -> Value {
    let outcome = match &trial.outcome {
        Outcome::Forwarded(all) => {
            let sent = all.iter().map(|sent| {
                json!({
                    "url": sent.url, "host": sent.host, "http": sent.http.to_string(), "weight": sent.weight,
                })
            });
            json!({ "kind": "sent", "upstreams": sent.collect::<Vec<_>>() })
        }
        Outcome::Answered(status) => json!({ "kind": "answered", "status": status }),
        Outcome::Denied(detail) => {
            json!({ "kind": "route_denied", "status": 403, "detail": detail })
        }
        Outcome::SegmentRefused(refused) => {
            json!({ "kind": "segment_refused", "status": 404, "detail": refused })
        }
        Outcome::OddPath(parts) => {
            let detail = format!("the route does not take a path with {parts}");
            json!({ "kind": "route_unknown", "status": 404, "detail": detail })
        }
        Outcome::TooManyReadings => {
            let detail = "the route does not take a path that upstreams may read in so many ways";
            json!({ "kind": "route_unknown", "status": 404, "detail": detail })
        }
        Outcome::Unknown => json!({ "kind": "route_unknown", "status": 404 }),
    };
    let others = trial.verdicts.iter().map(|(route, verdict)| {
        json!({ "route": &*route.name, "line": route.line, "verdict": verdict.to_string() })
    });
    let captures = trial.captures.iter();
    json!({
        "route": trial.route.map(|route| route.name.to_string()),
        "line": trial.route.and_then(|route| route.line),
        "segments": captures.map(|(name, text)| json!({ "name": name, "value": text })).collect::<Vec<_>>(),
        "odd_path": trial.odd_parts.names().collect::<Vec<_>>(),
        "outcome": outcome,
        "routes": others.collect::<Vec<_>>(),
    })
}

/// All routes, a line for each, the most specific first.
pub(super) fn table(routes: &RouteList) -> String {
    let sorted = by_specificity(routes);
    let rows: Vec<_> = (sorted.iter())
        .map(|route| (route.name.to_string(), conditions(route), target(route)))
        .collect();
    let width = |text: fn(&(String, String, String)) -> &String| {
        rows.iter()
            .map(|row| text(row).chars().count())
            .max()
            .unwrap_or_default()
    };
    let (names, wheres) = (width(|row| &row.0), width(|row| &row.1));
    let lines = rows
        .iter()
        .map(|(name, condition, lead)| format!("  {name:<names$}  {condition:<wheres$}  {lead}\n"));
    lines.collect()
}

fn place(route: &RouteConfig) -> String {
    match route.line {
        Some(line) => format!(" (line {line})"),
        None => " (--upstream)".to_owned(),
    }
}
