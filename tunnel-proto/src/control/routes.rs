//! The summary of its routes that a tunnel client reports, for display in the tunnel server's status.
//!
//! The tunnel server never acts on it. It is bounded by the sender and again by the receiver, and contains
//! only printable ASCII, so that it is safe to print on a terminal.

use serde::{Deserialize, Serialize};

use crate::limits;

/// All routes of a tunnel client, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesSummary {
    routes: Vec<RouteSummary>,
    /// The number of routes that were left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    omitted: usize,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSummary {
    /// Its name.
    pub name: String,
    /// What it matches: methods, host and path, as far as they are set.
    #[serde(default)]
    pub matches: String,
    /// Its target: the URLs of one or more upstreams, a template, or the client's own answer. Never a
    /// credential.
    #[serde(default)]
    pub to: String,
    /// The state of its upstreams.
    #[serde(default)]
    pub state: RouteState,
}

/// The state of the upstreams of a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteState {
    /// All upstreams are healthy.
    Up,
    /// Some upstreams are not healthy.
    Degraded,
    /// No upstream is healthy.
    Down,
    /// There are no upstreams: the client itself answers, or denies the request.
    Own,
    /// Not known: no request has used them and no health check is configured, or the state is unknown to
    /// this version.
    #[default]
    #[serde(other)]
    Unknown,
}

impl RouteState {
    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Degraded => "degraded",
            Self::Down => "down",
            Self::Own => "own",
        }
    }
}

impl RoutesSummary {
    /// A summary of these routes, sorted by name. Routes beyond the bounds are left out, the last ones
    /// first.
    #[must_use]
    pub fn new(mut routes: Vec<RouteSummary>) -> Self {
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        let summary = Self { routes, omitted: 0 };
        summary.bounded()
    }

    /// Applies the bounds to a summary, such as one that was received.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let mut room = limits::ROUTES_BYTES;
        let all = self.routes.len();
        let mut routes = std::mem::take(&mut self.routes);
        routes.truncate(limits::ROUTES);
        for mut route in routes {
            for text in [&mut route.name, &mut route.matches, &mut route.to] {
                clean(text);
            }
            let Some(left) = room.checked_sub(route.encoded_bytes()) else {
                break;
            };
            room = left;
            self.routes.push(route);
        }
        self.omitted = self.omitted.saturating_add(all - self.routes.len());
        self
    }

    /// The routes in the summary.
    #[must_use]
    pub fn routes(&self) -> &[RouteSummary] {
        &self.routes
    }

    /// The number of routes that were left out.
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl RouteSummary {
    /// Upper bound of its encoded length. In printable ASCII only quotes and backslashes take two bytes,
    /// other characters one.
    fn encoded_bytes(&self) -> usize {
        const KEYS: usize = r#"{"name":"","matches":"","to":"","state":"degraded"},"#.len();
        let texts = [&self.name, &self.matches, &self.to];
        let bytes = texts.into_iter().flat_map(|text| text.bytes());
        KEYS + bytes
            .map(|byte| if matches!(byte, b'"' | b'\\') { 2 } else { 1 })
            .sum::<usize>()
    }
}

/// Replaces all but printable ASCII, and truncates to [`limits::ROUTE_TEXT_BYTES`].
fn clean(text: &mut String) {
    let is_long = text.len() > limits::ROUTE_TEXT_BYTES;
    if !is_long && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return;
    }
    let printable = |letter: char| match letter {
        ' '..='~' => letter,
        _ => '?',
    };
    let letters = text.chars().take(limits::ROUTE_TEXT_BYTES);
    *text = letters.map(printable).collect();
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::Control;

    fn route(name: &str) -> RouteSummary {
        RouteSummary {
            name: name.to_owned(),
            matches: "/*".to_owned(),
            to: "http://app:80".to_owned(),
            state: RouteState::Up,
        }
    }

    #[test]
    fn routes_are_sorted_by_name_and_omitted_ones_are_counted() {
        let names = (0..300).rev().map(|number| format!("route-{number:03}"));
        let summary = RoutesSummary::new(names.map(|name| route(&name)).collect());
        let shown = summary.routes();
        assert_eq!(shown[0].name, "route-000");
        assert!(shown.len() <= limits::ROUTES && shown.len() + summary.omitted() == 300);
        assert!(shown.len() > 100, "{}", shown.len());
    }

    #[test]
    fn an_unknown_state_is_read_as_unknown() {
        let text = r#"{"type":"routes","routes":[{"name":"a","state":"sleepy","colour":1}]}"#;
        let Control::Routes(summary) = Control::decode(text).unwrap() else {
            panic!("not a routes message");
        };
        assert_eq!(summary.routes()[0].state, RouteState::Unknown);
        assert_eq!(summary.routes()[0].to, "");
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut evil = route("a\u{1b}[2Jb\n\u{fc}");
        evil.to = "x".repeat(10_000);
        let summary = RoutesSummary::new(vec![evil]);
        assert_eq!(summary.routes()[0].name, "a?[2Jb??");
        assert_eq!(summary.routes()[0].to.len(), limits::ROUTE_TEXT_BYTES);
    }

    proptest! {
        #[test]
        fn every_summary_fits_into_a_message_and_round_trips(
            texts in proptest::collection::vec((".{0,300}", r#"["\\a]{0,300}"#, ".{0,40}"), 0..300)
        ) {
            let count = texts.len();
            let routes = texts.into_iter().map(|(name, matches, to)| RouteSummary {
                name, matches, to, state: RouteState::Degraded,
            });
            let summary = RoutesSummary::new(routes.collect());
            prop_assert_eq!(summary.routes().len() + summary.omitted(), count);
            let control = Control::Routes(summary.clone());
            let text = control.encode();
            prop_assert!(text.len() <= limits::CONTROL_BYTES, "{}", text.len());
            prop_assert_eq!(Control::decode(&text).unwrap(), control);
            prop_assert_eq!(summary.clone().bounded(), summary);
        }
    }
}
