//! Finds the most specific route that matches a request.
//!
//! ```text
//!   host: exact ─▶ below the longest name ─▶ … ─▶ any         each a tree of path segments:
//!                                                              literal ─▶ {name} ─▶ *
//! ```
//!
//! In: the conditions of all routes, once, and the request lines of requests. Out: the index of a route in the list.
//! The first match of the search is the most specific one, since it searches in the order of [`Conditions::compare`].
//! The search allocates nothing, and its time depends on the routes, not on the request.
//!
//! Whether an odd path is allowed is decided by that route alone: if the next match were tried, an odd spelling of a
//! path would get around its route. A path of which an upstream may make another path is denied if a route denies that
//! other path, see `Denials`.

use std::cmp::Ordering;
use std::collections::HashMap;

use http::Method;

use tunnel_ops::authority::HOST_OCTETS;

use crate::host::{HostPattern, bare_host};
use crate::odd::OddParts;
use crate::odd::readings::{TooManyReadings, canonical, find_reading};
use crate::pattern::{Pattern, Segment, Tail};
use crate::rewrite::Prefix;

/// Most routes of a table.
pub const ROUTES_MAX: usize = 4096;

/// The conditions under which a route takes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// The host; `None` for any.
    pub host: Option<HostPattern>,
    /// The methods; empty for any. An upgrade counts as `GET`.
    pub methods: Vec<Method>,
    /// The path.
    pub path: Pattern,
    /// The odd parts that the path may have. A request with others is refused, and goes to no other route.
    pub allow_paths_with: OddParts,
    /// Whether the route denies the request.
    pub is_denial: bool,
    /// The prefix that the route replaces, so that an upstream reads another path than the one that is compared.
    pub prefix: Option<Prefix>,
}

/// The parts of a request that routes match.
#[derive(Debug, Clone, Copy)]
pub struct RouteKey<'a> {
    /// The `Host` field as received.
    pub host: Option<&'a [u8]>,
    /// The method; `GET` for an upgrade.
    pub method: &'a Method,
    /// The path as received, without the query.
    pub path: &'a [u8],
}

/// Why no route takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// None matches it.
    Unknown,
    /// The path has odd parts that the most specific match, the route with this index, does not allow.
    OddPath(usize),
    /// The most specific match is the route with this index, but the path can be read in more ways than are compared
    /// with the routes that deny.
    TooManyReadings(usize),
}

/// Two routes of which neither is more specific, by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// The first, which wins.
    pub first: usize,
    /// The other.
    pub second: usize,
}

/// The conditions of all routes, indexed for the search.
#[derive(Debug, Default)]
pub struct Matcher {
    exact: HashMap<Box<[u8]>, Tree>,
    below: HashMap<Box<[u8]>, Tree>,
    any: Tree,
    /// `None` if no route denies anything.
    denials: Option<Box<Denials>>,
}

/// The routes that deny, matched against every reading of a path: `/%61dmin` is not `/admin`, but most upstreams read it
/// so.
#[derive(Debug)]
struct Denials {
    /// The denying routes, with patterns for paths in canonical form.
    matcher: Matcher,
    /// Their indices in the list.
    indices: Vec<usize>,
    /// All routes, with such patterns.
    routes: Vec<Conditions>,
}

/// The routes of one host, by path.
#[derive(Debug)]
struct Tree {
    /// The root first.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Children with a literal segment, in the order of its bytes.
    literals: Vec<(Box<[u8]>, usize)>,
    named: Option<usize>,
    /// Routes whose pattern ends here.
    end: RoutesByMethod,
    /// Routes whose pattern goes on with `/*` here.
    rest: RoutesByMethod,
}

/// The routes of one host and one shape of path, by method.
#[derive(Debug, Default)]
struct RoutesByMethod {
    by_method: Vec<(Method, RouteRef)>,
    by_any: Option<RouteRef>,
}

/// A route, by its index in the list, with what decides whether it takes a request that matches.
#[derive(Debug, Clone, Copy)]
struct RouteRef {
    index: usize,
    allows: OddParts,
    is_denial: bool,
}

impl Conditions {
    /// Whether host, method and path match.
    pub fn matches(&self, key: &RouteKey<'_>) -> bool {
        self.matches_host(key) && self.matches_method(key) && self.path.matches(key.path)
    }

    /// Whether the host matches.
    pub fn matches_host(&self, key: &RouteKey<'_>) -> bool {
        let host = bare_host(key.host.unwrap_or_default());
        (self.host.as_ref()).is_none_or(|own| own.matches(host))
    }

    /// Whether the method matches.
    pub fn matches_method(&self, key: &RouteKey<'_>) -> bool {
        let is_it =
            |own: &Method| own == key.method || self.is_denial && is_read_as(key.method, own);
        self.methods.is_empty() || self.methods.iter().any(is_it)
    }

    /// The odd parts of a path that the route does not allow.
    pub fn refused_parts(&self, path: &[u8]) -> OddParts {
        OddParts::of(path).without(self.allow_paths_with)
    }

    /// Orders two conditions that match one request: the greater is more specific, first by host, then by path, then
    /// by method.
    pub fn compare(&self, other: &Self) -> Ordering {
        let host = |conditions: &Self| conditions.host.as_ref().map(HostPattern::rank);
        let method = |conditions: &Self| !conditions.methods.is_empty();
        (host(self).cmp(&host(other)))
            .then_with(|| self.path.compare(&other.path))
            .then_with(|| method(self).cmp(&method(other)))
    }
}

impl Matcher {
    /// A matcher for these routes, and the routes that overlap; of those the first counts.
    pub fn new<'a>(routes: impl IntoIterator<Item = &'a Conditions>) -> (Self, Vec<Overlap>) {
        let routes: Vec<_> = routes.into_iter().collect();
        let (mut matcher, overlaps) = Self::as_written(routes.iter().copied());
        matcher.denials = Denials::new(&routes).map(Box::new);
        (matcher, overlaps)
    }

    /// A matcher without denials.
    fn as_written<'a>(routes: impl IntoIterator<Item = &'a Conditions>) -> (Self, Vec<Overlap>) {
        let mut matcher = Self::default();
        let mut overlaps = Vec::new();
        for (route, conditions) in routes.into_iter().enumerate() {
            let routes = matcher
                .tree(conditions.host.as_ref())
                .routes_at(&conditions.path);
            let own = RouteRef {
                index: route,
                allows: conditions.allow_paths_with,
                is_denial: conditions.is_denial,
            };
            if let Some(first) = routes.add(&conditions.methods, own) {
                overlaps.push(Overlap {
                    first,
                    second: route,
                });
            }
        }
        (matcher, overlaps)
    }

    /// Returns the index of the most specific match. If an upstream may read the path as a denied one, returns the
    /// denying route instead, unless the match is an exception to that denial.
    ///
    /// # Errors
    /// When no route matches, the match does not allow odd parts of the path, or the path has too many readings.
    pub fn find(&self, key: &RouteKey<'_>) -> Result<usize, NoRoute> {
        let found = self.find_as_written(key).ok_or(NoRoute::Unknown)?;
        if found.allows != OddParts::ALL && !OddParts::of(key.path).without(found.allows).is_empty()
        {
            return Err(NoRoute::OddPath(found.index));
        }
        match &self.denials {
            Some(denials) if !found.is_denial => {
                let denial = denials.find(key, found.index);
                let denial = denial.map_err(|_| NoRoute::TooManyReadings(found.index))?;
                Ok(denial.unwrap_or(found.index))
            }
            _ => Ok(found.index),
        }
    }

    fn find_as_written(&self, key: &RouteKey<'_>) -> Option<RouteRef> {
        // Most tables have no host.
        let names_hosts = !(self.exact.is_empty() && self.below.is_empty());
        let by_host = (names_hosts.then_some(key.host).flatten())
            .and_then(|host| self.find_by_host(host, key));
        by_host.or_else(|| self.any.find(key))
    }

    fn find_by_host(&self, host: &[u8], key: &RouteKey<'_>) -> Option<RouteRef> {
        let mut space = [0; HOST_OCTETS];
        let host = bare_host(host);
        // A longer host matches nothing.
        let lower = space.get_mut(..host.len())?;
        lower.copy_from_slice(host);
        lower.make_ascii_lowercase();
        let lower = &*lower;
        if let Some(found) = self.exact.get(lower).and_then(|tree| tree.find(key)) {
            return Some(found);
        }
        if self.below.is_empty() {
            return None;
        }
        // From the left, so that the longest suffix comes first; no name begins with a dot.
        let dots = lower.iter().enumerate().skip(1);
        let mut names = dots
            .filter(|(_, byte)| **byte == b'.')
            .filter_map(|(at, _)| lower.get(at + 1..));
        names.find_map(|name| self.below.get(name)?.find(key))
    }

    fn tree(&mut self, host: Option<&HostPattern>) -> &mut Tree {
        let (trees, name) = match host {
            None => return &mut self.any,
            Some(HostPattern::Exact(name)) => (&mut self.exact, name),
            Some(HostPattern::Below(name)) => (&mut self.below, name),
        };
        trees.entry(name.as_bytes().into()).or_default()
    }
}

impl Denials {
    fn new(routes: &[&Conditions]) -> Option<Self> {
        let indices = routes.iter().enumerate();
        let indices = indices.filter_map(|(index, route)| route.is_denial.then_some(index));
        let indices: Vec<_> = indices.collect();
        if indices.is_empty() {
            return None;
        }
        let canonical = routes.iter().map(|route| Conditions {
            path: route.path.canonical(),
            ..(*route).clone()
        });
        let routes: Vec<_> = canonical.collect();
        // Patterns that become equal all deny.
        let (matcher, _) = Matcher::as_written(indices.iter().map(|index| &routes[*index]));
        Some(Self {
            matcher,
            indices,
            routes,
        })
    }

    /// A route that denies a reading of the path of a request whose match is `found`. Allocates only for a path that
    /// can be read in two ways.
    fn find(&self, key: &RouteKey<'_>, found: usize) -> Result<Option<usize>, TooManyReadings> {
        if !key.path.contains(&b'%') && OddParts::of(key.path).is_empty() {
            return Ok(None);
        }
        let denial = |reading: &[u8]| {
            let as_read = RouteKey {
                path: reading,
                ..*key
            };
            let denial = self.matcher.find_as_written(&as_read)?;
            let denial = *self.indices.get(denial.index)?;
            (!self.is_exception(found, denial, reading)).then_some(denial)
        };
        if let Some(denial) = find_reading(key.path, denial)? {
            return Ok(Some(denial));
        }
        let Some(prefix) = &self.routes[found].prefix else {
            return Ok(None);
        };
        // The upstream reads the path with its new prefix: `/app/../admin` as `/admin`, which is `/app/admin` here.
        let path = std::str::from_utf8(key.path).ok();
        let Some(path) = path.and_then(|path| prefix.replace(path)) else {
            return Ok(None);
        };
        let read = |text: &str| String::from_utf8_lossy(&canonical(text.as_bytes())).into_owned();
        let restoring = Prefix::new(&read(prefix.to()), &read(prefix.from()));
        find_reading(path.as_bytes(), |reading| {
            let reading = std::str::from_utf8(reading).ok()?;
            denial(restoring.replace(reading)?.as_bytes())
        })
    }

    /// Whether a route takes a path although another denies this reading of it: a more specific route that takes the
    /// reading, too. If all paths of the route are among the denied ones, the reading may have several segments in
    /// place of a name.
    fn is_exception(&self, route: usize, denial: usize, reading: &[u8]) -> bool {
        let (route, denial) = (&self.routes[route], &self.routes[denial]);
        route.compare(denial).is_gt()
            && (route.path.matches(reading)
                || denial.path.covers(&route.path) && route.path.matches_split(reading))
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

impl Tree {
    /// The routes with this pattern, whose node is made if missing.
    fn routes_at(&mut self, path: &Pattern) -> &mut RoutesByMethod {
        let mut at = 0;
        for segment in path.segments() {
            at = self.child(at, segment);
        }
        let node = &mut self.nodes[at];
        match path.tail() {
            Tail::End => &mut node.end,
            Tail::Rest => &mut node.rest,
        }
    }

    fn child(&mut self, parent: usize, segment: &Segment) -> usize {
        let new = self.nodes.len();
        let node = &mut self.nodes[parent];
        let child = match segment {
            Segment::Named(_) => *node.named.get_or_insert(new),
            Segment::Literal(text) => match node.index_of(text.as_bytes()) {
                Ok(index) => node.literals[index].1,
                Err(index) => {
                    node.literals.insert(index, (text.as_bytes().into(), new));
                    new
                }
            },
        };
        if child == new {
            self.nodes.push(Node::default());
        }
        child
    }

    fn find(&self, key: &RouteKey<'_>) -> Option<RouteRef> {
        match key.path.strip_prefix(b"/") {
            Some(path) => self.find_from(0, Some(path), key.method),
            // `*` has no segments.
            None => self.nodes.first()?.rest.pick(key.method),
        }
    }

    /// `path` is the rest of it; `None` at its end. The depth is bounded by the patterns, and each node is visited at
    /// most once.
    fn find_from(&self, node: usize, path: Option<&[u8]>, method: &Method) -> Option<RouteRef> {
        let node = self.nodes.get(node)?;
        let Some(path) = path else {
            return node.end.pick(method).or_else(|| node.rest.pick(method));
        };
        let is_leaf = node.literals.is_empty() && node.named.is_none();
        let below = (!is_leaf).then(|| {
            let (segment, after) = match path.iter().position(|byte| *byte == b'/') {
                Some(at) => (&path[..at], Some(&path[at + 1..])),
                None => (path, None),
            };
            let literal = node.index_of(segment).ok();
            let literal = literal.map(|index| node.literals[index].1);
            let named = node.named.filter(|_| !segment.is_empty());
            let mut children = literal.into_iter().chain(named);
            children.find_map(|child| self.find_from(child, after, method))
        });
        below.flatten().or_else(|| node.rest.pick(method))
    }
}

impl Node {
    fn index_of(&self, segment: &[u8]) -> Result<usize, usize> {
        (self.literals).binary_search_by(|(own, _)| (**own).cmp(segment))
    }
}

impl RoutesByMethod {
    /// Adds a route; returns a route that it overlaps with.
    fn add(&mut self, methods: &[Method], route: RouteRef) -> Option<usize> {
        if methods.is_empty() {
            return match self.by_any {
                Some(first) => Some(first.index),
                None => {
                    self.by_any = Some(route);
                    None
                }
            };
        }
        let mut overlap = None;
        for method in methods {
            match self.by_method.iter().find(|(own, _)| own == method) {
                // A method that is listed twice.
                Some((_, first)) if first.index == route.index => {}
                Some((_, first)) => overlap = overlap.or(Some(first.index)),
                None => self.by_method.push((method.clone(), route)),
            }
        }
        overlap
    }

    fn pick(&self, method: &Method) -> Option<RouteRef> {
        let mut all = self.by_method.iter();
        let as_written = all.clone().find(|(own, _)| own == method);
        let found = as_written
            .or_else(|| all.find(|(own, route)| route.is_denial && is_read_as(method, own)));
        found.map(|(_, route)| *route).or(self.by_any)
    }
}

/// Whether an upstream may read `method` as `denied`. Methods are case-sensitive (RFC 9110 section 9.1), but many frameworks,
/// such as Django, read `delete` as `DELETE`.
fn is_read_as(method: &Method, denied: &Method) -> bool {
    method.as_str().eq_ignore_ascii_case(denied.as_str())
}

#[cfg(test)]
mod tests;
