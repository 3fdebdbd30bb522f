//! Which route a request takes: of all that match it, the most specific.
//!
//! ```text
//!   host: exact ─▶ below the longest name ─▶ … ─▶ any         each a tree of path segments:
//!                                                              literal ─▶ {name} ─▶ *
//! ```
//!
//! In: the conditions of all routes, once, and the first lines of requests. Out: the place of a route
//! in the list. The first match of this search is the most specific one, since it tries in the order
//! of [`Conditions::compare`]. That search takes no memory, and time that depends on the routes, never on
//! what a request brings.
//!
//! Whether an odd path may go on is asked of that one route alone: if the next were asked after it, an
//! odd spelling of a path would be a way around the route that was made for it. A path that a route
//! takes, and that a lenient upstream reads as another one, is denied where a route that denies takes
//! that other one, see `Denials`.

use std::cmp::Ordering;
use std::collections::HashMap;

use http::Method;

use tunnel_ops::authority::HOST_OCTETS;

use crate::host::{HostPattern, bare_host};
use crate::odd::{OddParts, has_parent_segment, lenient};
use crate::pattern::{Pattern, Segment, Tail};

/// Routes that a table may have.
pub const ROUTES_MAX: usize = 4096;

/// What a request must be like for a route to take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// Its host; `None` means any.
    pub host: Option<HostPattern>,
    /// Its method, one of these; empty means any. An upgrade counts as `GET`.
    pub methods: Vec<Method>,
    /// Its path.
    pub path: Pattern,
    /// Odd parts that its path may have. A request whose path has others is refused, and goes to no
    /// other route.
    pub allow_paths_with: OddParts,
    /// Whether the route denies what it takes.
    pub is_denial: bool,
}

/// What routes look at.
#[derive(Debug, Clone, Copy)]
pub struct FirstLine<'a> {
    /// The `Host` field as it came.
    pub host: Option<&'a [u8]>,
    /// The method; `GET` for an upgrade.
    pub method: &'a Method,
    /// The path as it came, without the query.
    pub path: &'a [u8],
}

/// Why no route takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// None matches it.
    Unknown,
    /// The path is odd, and the most specific of those that match, which is the one at this place of
    /// the list, does not allow that.
    OddPath(usize),
}

/// Two routes of which neither is more specific, by their places in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// The first, which wins.
    pub first: usize,
    /// The other.
    pub second: usize,
}

/// The conditions of all routes, made for looking one up.
#[derive(Debug, Default)]
pub struct Matcher {
    exact: HashMap<Box<[u8]>, Tree>,
    below: HashMap<Box<[u8]>, Tree>,
    any: Tree,
    /// None where no route denies anything.
    denials: Option<Box<Denials>>,
}

/// The routes that deny, asked once more for paths that an upstream may read as others: as it stands
/// `/%61dmin` is not `/admin`, but most upstreams take it for that.
#[derive(Debug)]
struct Denials {
    /// The routes that deny, by patterns for paths in the form of [`lenient`].
    matcher: Matcher,
    /// Their places in the list.
    places: Vec<usize>,
    /// All routes.
    routes: Vec<Conditions>,
}

/// The paths of the routes of one host.
#[derive(Debug)]
struct Tree {
    /// The root first.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Nodes of the next segment, in the order of its bytes.
    literals: Vec<(Box<[u8]>, usize)>,
    named: Option<usize>,
    /// Routes whose path ends here.
    end: Choices,
    /// Routes that take all from here.
    rest: Choices,
}

/// Routes of one host and one shape of path.
#[derive(Debug, Default)]
struct Choices {
    by_method: Vec<(Method, Choice)>,
    by_any: Option<Choice>,
}

#[derive(Debug, Clone, Copy)]
struct Choice {
    route: usize,
    allows: OddParts,
    is_denial: bool,
}

impl Conditions {
    /// Whether host, method and path match.
    pub fn matches(&self, line: &FirstLine<'_>) -> bool {
        self.matches_host(line) && self.matches_method(line) && self.path.matches(line.path)
    }

    /// Whether the host matches.
    pub fn matches_host(&self, line: &FirstLine<'_>) -> bool {
        let host = bare_host(line.host.unwrap_or_default());
        (self.host.as_ref()).is_none_or(|own| own.matches(host))
    }

    /// Whether the method matches.
    pub fn matches_method(&self, line: &FirstLine<'_>) -> bool {
        self.methods.is_empty() || self.methods.contains(line.method)
    }

    /// The odd parts of a path for which the route refuses it.
    pub fn refused_parts(&self, path: &[u8]) -> OddParts {
        OddParts::of(path).without(self.allow_paths_with)
    }

    /// Which of two that match one request says more about it: the greater. First by host, then by
    /// path, then by method.
    pub fn compare(&self, other: &Self) -> Ordering {
        let host = |conditions: &Self| conditions.host.as_ref().map(HostPattern::rank);
        let method = |conditions: &Self| !conditions.methods.is_empty();
        (host(self).cmp(&host(other)))
            .then_with(|| self.path.compare(&other.path))
            .then_with(|| method(self).cmp(&method(other)))
    }
}

impl Matcher {
    /// Makes one of all routes, and tells those that overlap; of them the first counts.
    pub fn new<'a>(routes: impl IntoIterator<Item = &'a Conditions>) -> (Self, Vec<Overlap>) {
        let routes: Vec<_> = routes.into_iter().collect();
        let (mut matcher, overlaps) = Self::as_written(routes.iter().copied());
        matcher.denials = Denials::new(&routes).map(Box::new);
        (matcher, overlaps)
    }

    /// One that knows of no denials.
    fn as_written<'a>(routes: impl IntoIterator<Item = &'a Conditions>) -> (Self, Vec<Overlap>) {
        let mut matcher = Self::default();
        let mut overlaps = Vec::new();
        for (route, conditions) in routes.into_iter().enumerate() {
            let choices = matcher
                .tree(conditions.host.as_ref())
                .choices(&conditions.path);
            let choice = Choice {
                route,
                allows: conditions.allow_paths_with,
                is_denial: conditions.is_denial,
            };
            if let Some(first) = choices.add(&conditions.methods, choice) {
                overlaps.push(Overlap {
                    first,
                    second: route,
                });
            }
        }
        (matcher, overlaps)
    }

    /// The place of the most specific route that matches a request; or of one that denies it, as a
    /// lenient upstream reads its path, and to which that route is no exception.
    ///
    /// # Errors
    /// When none does, or the path has odd parts that this one does not take.
    pub fn find(&self, line: &FirstLine<'_>) -> Result<usize, NoRoute> {
        let found = self.find_as_written(line).ok_or(NoRoute::Unknown)?;
        if found.allows != OddParts::ALL
            && !OddParts::of(line.path).without(found.allows).is_empty()
        {
            return Err(NoRoute::OddPath(found.route));
        }
        match &self.denials {
            Some(denials) if !found.is_denial => Ok(denials.find(line, found.route)),
            _ => Ok(found.route),
        }
    }

    fn find_as_written(&self, line: &FirstLine<'_>) -> Option<Choice> {
        // Most tables name no host at all.
        let names_hosts = !(self.exact.is_empty() && self.below.is_empty());
        let by_host = (names_hosts.then_some(line.host).flatten())
            .and_then(|host| self.find_by_host(host, line));
        by_host.or_else(|| self.any.find(line))
    }

    fn find_by_host(&self, host: &[u8], line: &FirstLine<'_>) -> Option<Choice> {
        let mut space = [0; HOST_OCTETS];
        let host = bare_host(host);
        // A longer one is nobody's.
        let lower = space.get_mut(..host.len())?;
        lower.copy_from_slice(host);
        lower.make_ascii_lowercase();
        let lower = &*lower;
        if let Some(found) = self.exact.get(lower).and_then(|tree| tree.find(line)) {
            return Some(found);
        }
        if self.below.is_empty() {
            return None;
        }
        // From the left, so that the longest comes first; a name begins with no dot.
        let dots = lower.iter().enumerate().skip(1);
        let mut names = dots
            .filter(|(_, byte)| **byte == b'.')
            .filter_map(|(at, _)| lower.get(at + 1..));
        names.find_map(|name| self.below.get(name)?.find(line))
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
        let places = routes.iter().enumerate();
        let places = places.filter_map(|(place, route)| route.is_denial.then_some(place));
        let places: Vec<_> = places.collect();
        if places.is_empty() {
            return None;
        }
        let lenient = places.iter().map(|place| Conditions {
            path: routes[*place].path.lenient(),
            ..routes[*place].clone()
        });
        let lenient: Vec<_> = lenient.collect();
        // Two that come to be alike both deny.
        let (matcher, _) = Matcher::as_written(&lenient);
        Some(Self {
            matcher,
            places,
            routes: routes.iter().copied().cloned().collect(),
        })
    }

    /// The route that decides about a request that the route at a place takes: that one, or one that
    /// denies the request as a lenient upstream reads its path. Takes memory only for a path that can be
    /// read in two ways.
    fn find(&self, line: &FirstLine<'_>, found: usize) -> usize {
        if !line.path.contains(&b'%') && OddParts::of(line.path).is_empty() {
            return found;
        }
        let read = lenient(line.path);
        let as_read = FirstLine {
            path: &read,
            ..*line
        };
        let denial = self.matcher.find_as_written(&as_read);
        let denial = denial.and_then(|choice| self.places.get(choice.route).copied());
        denial
            .filter(|denial| !self.is_exception(found, *denial, line.path, &read))
            .unwrap_or(found)
    }

    /// Whether a route takes a path in spite of one that denies it as it is read: a more specific route that
    /// takes the path as read too, or one whose paths are all among those that are denied. The latter counts
    /// only for paths that nobody leaves the route's own paths by, with a segment `..`.
    fn is_exception(&self, route: usize, denial: usize, path: &[u8], read: &[u8]) -> bool {
        let (route, denial) = (&self.routes[route], &self.routes[denial]);
        route.compare(denial).is_gt()
            && (route.path.lenient().matches(read)
                || denial.path.covers(&route.path) && !has_parent_segment(path))
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
    /// Where routes with this path belong; made if they are the first.
    fn choices(&mut self, path: &Pattern) -> &mut Choices {
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
            Segment::Literal(text) => match node.place_of(text.as_bytes()) {
                Ok(place) => node.literals[place].1,
                Err(place) => {
                    node.literals.insert(place, (text.as_bytes().into(), new));
                    new
                }
            },
        };
        if child == new {
            self.nodes.push(Node::default());
        }
        child
    }

    fn find(&self, line: &FirstLine<'_>) -> Option<Choice> {
        match line.path.strip_prefix(b"/") {
            Some(path) => self.find_from(0, Some(path), line.method),
            // `*`, which has no segments.
            None => self.nodes.first()?.rest.pick(line.method),
        }
    }

    /// `path` is what is left of it; `None` when it has ended. Goes no deeper than a pattern has
    /// segments, and looks at a node at most once.
    fn find_from(&self, node: usize, path: Option<&[u8]>, method: &Method) -> Option<Choice> {
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
            let literal = node.place_of(segment).ok();
            let literal = literal.map(|place| node.literals[place].1);
            let named = node.named.filter(|_| !segment.is_empty());
            let mut children = literal.into_iter().chain(named);
            children.find_map(|child| self.find_from(child, after, method))
        });
        below.flatten().or_else(|| node.rest.pick(method))
    }
}

impl Node {
    fn place_of(&self, segment: &[u8]) -> Result<usize, usize> {
        (self.literals).binary_search_by(|(own, _)| (**own).cmp(segment))
    }
}

impl Choices {
    /// Adds a route, and tells which one it overlaps with.
    fn add(&mut self, methods: &[Method], choice: Choice) -> Option<usize> {
        if methods.is_empty() {
            return match self.by_any {
                Some(first) => Some(first.route),
                None => {
                    self.by_any = Some(choice);
                    None
                }
            };
        }
        let mut overlap = None;
        for method in methods {
            match self.by_method.iter().find(|(own, _)| own == method) {
                // It stands in its own list twice.
                Some((_, first)) if first.route == choice.route => {}
                Some((_, first)) => overlap = overlap.or(Some(first.route)),
                None => self.by_method.push((method.clone(), choice)),
            }
        }
        overlap
    }

    fn pick(&self, method: &Method) -> Option<Choice> {
        let by_method = self.by_method.iter().find(|(own, _)| own == method);
        by_method.map(|(_, choice)| *choice).or(self.by_any)
    }
}

#[cfg(test)]
mod tests;
