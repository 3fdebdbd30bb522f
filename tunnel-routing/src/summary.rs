//! A route for people, in one line or a few: what it matches, its target, its state.

use serde::Serialize;
use tunnel_proto::control::RouteState;

use crate::config::{RouteAction, RouteConfig};
use crate::odd::OddParts;
use crate::upstream::UpstreamCondition::{self, Ejected, Unhealthy, Unknown, Unreachable, Up};

/// A route and its upstreams as they are now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RouteStatus {
    /// Its name.
    pub name: String,
    /// What it matches.
    pub matches: String,
    /// Its target, without credentials.
    pub to: String,
    /// The state of its upstreams.
    pub state: &'static str,
    /// Its upstreams; none for a template and for an answer of the client's own.
    pub upstreams: Vec<UpstreamStatus>,
}

/// An upstream of a route as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamStatus {
    /// Its URL, without credentials.
    pub url: String,
    /// `up` or `unreachable` by the last dial, `ejected`, `unhealthy`, or `unknown` before the first dial.
    pub state: &'static str,
}

/// The state of a route from the conditions of its upstreams.
pub(crate) fn state(upstreams: &[UpstreamCondition]) -> RouteState {
    let is_down = |upstream: &UpstreamCondition| match upstream {
        Unreachable | Ejected | Unhealthy => true,
        Up | Unknown => false,
    };
    if upstreams.iter().all(is_down) {
        RouteState::Down
    } else if upstreams.iter().any(is_down) {
        RouteState::Degraded
    } else if upstreams.contains(&Up) {
        RouteState::Up
    } else {
        RouteState::Unknown
    }
}

/// What a route matches, in one line.
pub fn conditions(route: &RouteConfig) -> String {
    let conditions = &route.conditions;
    let host = conditions.host.as_ref().map(|host| format!("{host} "));
    let methods: Vec<_> = conditions
        .methods
        .iter()
        .map(http::Method::as_str)
        .collect();
    let methods = match methods.is_empty() {
        true => String::new(),
        false => format!("{} ", methods.join(",")),
    };
    let odd = match conditions.allow_paths_with {
        parts if parts.is_empty() || conditions.is_denial => String::new(),
        OddParts::ALL => " (odd paths too)".to_owned(),
        parts => format!(" (with {})", parts.names().collect::<Vec<_>>().join(", ")),
    };
    format!(
        "{}{methods}{}{odd}",
        host.unwrap_or_default(),
        conditions.path
    )
}

/// The target of a route in one line, without credentials.
pub fn target(route: &RouteConfig) -> String {
    match &route.action {
        RouteAction::Upstreams(upstreams) => {
            let urls: Vec<_> = upstreams
                .members
                .iter()
                .map(|member| member.url.to_string())
                .collect();
            urls.join(", ")
        }
        RouteAction::Template(template, _) => template.to_string(),
        RouteAction::Respond(answer) => format!("answers {}", answer.status.as_u16()),
        RouteAction::Deny(detail) => format!("denies: {detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_as_good_as_its_upstreams() {
        for (conditions, expected) in [
            (&[Unknown][..], RouteState::Unknown),
            (&[Up], RouteState::Up),
            (&[Up, Unknown], RouteState::Up),
            (&[Up, Unhealthy], RouteState::Degraded),
            (&[Unknown, Ejected], RouteState::Degraded),
            (&[Unreachable], RouteState::Down),
            (&[Unreachable, Ejected, Unhealthy], RouteState::Down),
        ] {
            assert_eq!(state(conditions), expected, "{conditions:?}");
        }
    }
}
