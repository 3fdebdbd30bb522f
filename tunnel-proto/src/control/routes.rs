//! What a tunnel client tells of its routes, for people who look at the tunnel server's status.
//!
//! The tunnel server never needs it, and never acts on it. It is bounded where it is made and once more
//! where it is received, and holds no text that could do anything to a terminal.

use serde::{Deserialize, Serialize};

use crate::limits;

/// All routes of a tunnel client, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesSummary {
    routes: Vec<RouteSummary>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    omitted: usize,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSummary {
    /// Its name.
    pub name: String,
    /// What it matches: methods, host and path, as far as it has them.
    #[serde(default)]
    pub matches: String,
    /// Where it leads: an upstream's URL, several, a template, or what is answered. Never a credential.
    #[serde(default)]
    pub to: String,
    /// How that is.
    #[serde(default)]
    pub state: RouteState,
}

/// How the upstreams of a route are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteState {
    /// All of them answer.
    Up,
    /// Some of them do not.
    Degraded,
    /// None of them does.
    Down,
    /// There are none: the client itself answers, or denies.
    Own,
    /// Nothing is known of them: nobody asked, or they are not looked after.
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
    /// These routes, as many as are told: in the order of their names, the last ones left out.
    #[must_use]
    pub fn new(mut routes: Vec<RouteSummary>) -> Self {
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        let summary = Self { routes, omitted: 0 };
        summary.bounded()
    }

    /// The same within the bounds, whoever made it.
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

    /// The routes that are told.
    #[must_use]
    pub fn routes(&self) -> &[RouteSummary] {
        &self.routes
    }

    /// How many more there are.
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl RouteSummary {
    /// Bytes that it takes in a message, no fewer than it really does: of a text of which each character
    /// takes one, only quotes and backslashes take two.
    fn encoded_bytes(&self) -> usize {
        const KEYS: usize = r#"{"name":"","matches":"","to":"","state":"degraded"},"#.len();
        let texts = [&self.name, &self.matches, &self.to];
        let bytes = texts.into_iter().flat_map(|text| text.bytes());
        KEYS + bytes
            .map(|byte| if matches!(byte, b'"' | b'\\') { 2 } else { 1 })
            .sum::<usize>()
    }
}

/// Leaves printable ASCII, and no more of it than anybody reads.
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
    fn routes_are_told_by_name_and_those_left_out_are_counted() {
        let names = (0..300).rev().map(|number| format!("route-{number:03}"));
        let summary = RoutesSummary::new(names.map(|name| route(&name)).collect());
        let told = summary.routes();
        assert_eq!(told[0].name, "route-000");
        assert!(told.len() <= limits::ROUTES && told.len() + summary.omitted() == 300);
        assert!(told.len() > 100, "{}", told.len());
    }

    #[test]
    fn a_state_of_a_newer_client_is_still_a_route() {
        let text = r#"{"type":"routes","routes":[{"name":"a","state":"sleepy","colour":1}]}"#;
        let Control::Routes(summary) = Control::decode(text).unwrap() else {
            panic!("it is known");
        };
        assert_eq!(summary.routes()[0].state, RouteState::Unknown);
        assert_eq!(summary.routes()[0].to, "");
    }

    #[test]
    fn nothing_that_moves_a_cursor_is_kept() {
        let mut evil = route("a\u{1b}[2Jb\n\u{fc}");
        evil.to = "x".repeat(10_000);
        let summary = RoutesSummary::new(vec![evil]);
        assert_eq!(summary.routes()[0].name, "a?[2Jb??");
        assert_eq!(summary.routes()[0].to.len(), limits::ROUTE_TEXT_BYTES);
    }

    proptest! {
        #[test]
        fn whatever_is_told_fits_into_a_message_and_is_read_again(
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
