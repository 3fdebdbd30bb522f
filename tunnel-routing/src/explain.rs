//! Explains a match of [`Matcher`] for `tunnel-client routes test`: why each route does or does not take a request.
//!
//! The winner comes from the matcher that routes requests; the other routes are compared by their own conditions.
//! Requests are not routed by this module.

use std::cmp::Ordering;
use std::fmt;

use crate::matcher::{Conditions, Matcher, NoRoute, RouteKey};
use crate::odd::OddParts;

/// What one route says about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It takes the request.
    Wins,
    /// It matches, but another is more specific.
    LessSpecific(Rule),
    /// Another host.
    OtherHost,
    /// Another path.
    OtherPath,
    /// It is the most specific match, but does not allow these odd parts of the path.
    OddPath(OddParts),
    /// It is the most specific match, but the path has too many readings to compare them with the routes that deny.
    TooManyReadings,
    /// It is the most specific match, but the winner denies a reading of the path.
    ReadAsDenied,
    /// Another method.
    OtherMethod,
}

/// The first rule by which one route is more specific than another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A host is more specific than a wildcard, a longer wildcard than a shorter, a wildcard than none.
    Host,
    /// From the left: a literal is more specific than a name, a name than `*`, the end than `*`.
    Path,
    /// Methods are more specific than none.
    Methods,
}

/// The verdict of each route, in the order of the list.
pub fn explain(routes: &[&Conditions], key: &RouteKey<'_>) -> Vec<Verdict> {
    let (matcher, _) = Matcher::new(routes.iter().copied());
    let (decides, verdict) = match matcher.find(key) {
        Ok(index) => (Some(index), Verdict::Wins),
        Err(NoRoute::OddPath(index)) => {
            let refused = routes.get(index).map(|route| route.refused_parts(key.path));
            (Some(index), Verdict::OddPath(refused.unwrap_or_default()))
        }
        Err(NoRoute::TooManyReadings(index)) => (Some(index), Verdict::TooManyReadings),
        Err(NoRoute::Unknown) => (None, Verdict::OtherPath),
    };
    let deciding = decides.and_then(|index| routes.get(index));
    let verdict = |(index, route): (usize, &&Conditions)| {
        if decides == Some(index) {
            return verdict;
        }
        if !route.matches_host(key) {
            return Verdict::OtherHost;
        }
        if !route.path.matches(key.path) {
            return Verdict::OtherPath;
        }
        if !route.matches_method(key) {
            return Verdict::OtherMethod;
        }
        if deciding.is_some_and(|deciding| !deciding.matches(key)) {
            return Verdict::ReadAsDenied;
        }
        // Some route matches, so there is a winner.
        let rule = deciding.map_or(Rule::Methods, |deciding| rule(deciding, route));
        Verdict::LessSpecific(rule)
    };
    routes.iter().enumerate().map(verdict).collect()
}

fn rule(winner: &Conditions, other: &Conditions) -> Rule {
    let without_path = |conditions: &Conditions| Conditions {
        path: winner.path.clone(),
        methods: Vec::new(),
        ..conditions.clone()
    };
    if without_path(winner).compare(&without_path(other)) != Ordering::Equal {
        Rule::Host
    } else if winner.path.compare(&other.path) != Ordering::Equal {
        Rule::Path
    } else {
        Rule::Methods
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::OddPath(parts) = self {
            return write!(
                f,
                "matches, but does not take a path with {parts}: see allow_paths_with"
            );
        }
        f.write_str(match self {
            Self::Wins => "wins",
            Self::LessSpecific(Rule::Host) => "matches, but the other names its host more exactly",
            Self::LessSpecific(Rule::Path) => {
                "matches, but the other says more about the path (from the left: literal, {name}, *)"
            }
            Self::LessSpecific(Rule::Methods) => "matches, but the other names the method",
            Self::OtherHost => "is for another host",
            Self::OtherPath => "is for another path",
            Self::OddPath(_) => "",
            Self::TooManyReadings => {
                "matches, but upstreams may read the path in too many ways to know that no route denies one"
            }
            Self::ReadAsDenied => {
                "matches, but an upstream may read the path as one that the other denies"
            }
            Self::OtherMethod => "is for another method",
        })
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn route(host: Option<&str>, path: &str, methods: &[Method]) -> Conditions {
        Conditions {
            host: host.map(|host| host.parse().unwrap()),
            methods: methods.to_vec(),
            path: path.parse().unwrap(),
            allow_paths_with: OddParts::NONE,
            is_denial: false,
            prefix: None,
        }
    }

    #[test]
    fn each_loser_is_told_the_rule() {
        let routes = [
            route(None, "/*", &[]),
            route(None, "/a/*", &[]),
            route(None, "/a/{x}", &[Method::GET]),
            route(None, "/a/{x}", &[]),
            route(Some("*.example.com"), "/a/b", &[Method::PUT]),
            route(Some("*.example.com"), "/b", &[]),
            route(Some("other.example.com"), "/*", &[]),
        ];
        let routes: Vec<_> = routes.iter().collect();
        let verdicts = |host: &str, path: &str| {
            let key = RouteKey {
                host: Some(host.as_bytes()),
                method: &Method::GET,
                path: path.as_bytes(),
            };
            explain(&routes, &key)
        };
        let path = Verdict::LessSpecific(Rule::Path);
        assert_eq!(
            verdicts("a.example.com", "/a/b"),
            [
                path,
                path,
                Verdict::Wins,
                Verdict::LessSpecific(Rule::Methods),
                Verdict::OtherMethod,
                Verdict::OtherPath,
                Verdict::OtherHost,
            ]
        );
        let host = Verdict::LessSpecific(Rule::Host);
        assert_eq!(verdicts("other.example.com", "/a/b")[..4], [host; 4]);
        let odd = verdicts("a.test", "/a/..");
        let methods = Verdict::LessSpecific(Rule::Methods);
        let refused = Verdict::OddPath(OddParts::DOT_SEGMENT);
        assert_eq!(odd[..4], [path, path, refused, methods]);
        assert!(!odd.contains(&Verdict::Wins));
    }
}
