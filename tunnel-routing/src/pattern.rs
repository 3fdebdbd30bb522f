//! Path patterns of routes.
//!
//! ```text
//!   /readyz                          exactly this path
//!   /app-proxy/*                     this path, and everything below it
//!   /webhooks/{namespace}/{name}/*   any one segment that is not empty in place of each name
//!   /*                               every path
//! ```
//!
//! A pattern is matched against the bytes of a path as they are forwarded, without decoding or normalization, so that
//! what is matched is what the upstream reads. Paths that upstreams read in more than one way are the matter of
//! [`super::odd`].

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use tunnel_ops::config_value::ValueError;

use crate::odd::readings::canonical;

/// Most segments of a pattern, and so of a path that a match reads.
const SEGMENTS_MAX: usize = 32;

/// Longest pattern, in bytes.
const PATTERN_BYTES: usize = 1024;

/// Longest name of a segment, in bytes.
const NAME_BYTES: usize = 32;

/// Which paths a route takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    segments: Box<[Segment]>,
    tail: Tail,
}

/// One segment of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Exactly these bytes.
    Literal(Box<str>),
    /// Any segment that is not empty; its name.
    Named(Box<str>),
}

/// What follows the last segment of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tail {
    /// Anything, or nothing: `/*`.
    Rest,
    /// Nothing.
    End,
}

impl Pattern {
    /// The pattern `/*`.
    pub fn all() -> Self {
        Self {
            text: "/*".into(),
            segments: Box::default(),
            tail: Tail::Rest,
        }
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The segments, without a last `*`.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// What follows the segments.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// The index of the segment with this name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let mut segments = self.segments.iter();
        segments.position(|segment| matches!(segment, Segment::Named(own) if **own == *name))
    }

    /// The named segments with their indices, from the left.
    pub fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        let segments = self.segments.iter().enumerate();
        segments.filter_map(|(index, segment)| match segment {
            Segment::Named(name) => Some((index, &**name)),
            Segment::Literal(_) => None,
        })
    }

    /// Whether a path matches. Slower than a [`super::matcher::Matcher`], which searches all routes at once.
    pub fn matches(&self, path: &[u8]) -> bool {
        let Some(path) = path.strip_prefix(b"/") else {
            // `*` has no segments: only `/*` matches it.
            return self.segments.is_empty() && self.tail == Tail::Rest;
        };
        let mut found = path.split(|byte| *byte == b'/');
        let all = self.segments.iter().all(|segment| {
            let found = found.next();
            found.is_some_and(|found| match segment {
                Segment::Literal(text) => text.as_bytes() == found,
                Segment::Named(_) => !found.is_empty(),
            })
        });
        all && (self.tail == Tail::Rest || found.next().is_none())
    }

    /// Whether this pattern matches every path that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        let covers = |(own, other): (&Segment, &Segment)| match (own, other) {
            (Segment::Literal(own), Segment::Literal(other)) => own == other,
            (Segment::Named(_), Segment::Literal(other)) => !other.is_empty(),
            (Segment::Named(_), Segment::Named(_)) => true,
            (Segment::Literal(_), Segment::Named(_)) => false,
        };
        let is_long_enough = match self.tail {
            Tail::Rest => self.segments.len() <= other.segments.len(),
            Tail::End => self.segments.len() == other.segments.len() && other.tail == Tail::End,
        };
        is_long_enough && self.segments.iter().zip(&other.segments).all(covers)
    }

    /// The pattern for paths in the form of [`canonical`].
    pub(crate) fn canonical(&self) -> Self {
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Literal(text) => {
                let read = String::from_utf8(canonical(text.as_bytes()));
                Segment::Literal(read.unwrap_or_else(|_| text.to_string()).into())
            }
            Segment::Named(name) => Segment::Named(name.clone()),
        });
        Self {
            text: self.text.clone(),
            segments: segments.collect(),
            tail: self.tail,
        }
    }

    /// Whether a path matches if each name may stand for several segments, as it does where an encoded slash is decoded.
    pub(crate) fn matches_split(&self, path: &[u8]) -> bool {
        let Some(path) = path.strip_prefix(b"/") else {
            return self.matches(path);
        };
        let mut segments = path.split(|byte| *byte == b'/');
        // Which lengths of the pattern match the segments so far, shortest first.
        let mut matched = vec![false; self.segments.len() + 1];
        matched[0] = true;
        loop {
            if matched[self.segments.len()] && self.tail == Tail::Rest {
                return true;
            }
            let Some(found) = segments.next() else {
                return matched[self.segments.len()];
            };
            for (at, segment) in self.segments.iter().enumerate().rev() {
                matched[at + 1] = match segment {
                    Segment::Literal(text) => matched[at] && text.as_bytes() == found,
                    // An empty segment may follow, since the name has had one that is not.
                    Segment::Named(_) => matched[at] && !found.is_empty() || matched[at + 1],
                };
            }
            matched[0] = false;
        }
    }

    /// Whether it matches methods of a gRPC service, whose paths are `/package.Service/Method`. By its style guide a
    /// service's name begins with a capital letter, which tells it from a file's.
    pub fn is_of_grpc(&self) -> bool {
        let (([Segment::Literal(service)], Tail::Rest)
        | ([Segment::Literal(service), _], Tail::End)) = (&*self.segments, self.tail)
        else {
            return false;
        };
        let is_identifier = |name: &str| {
            let first = name.bytes().next();
            first.is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
                && (name.bytes()).all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        service.rsplit_once('.').is_some_and(|(package, name)| {
            name.starts_with(|first: char| first.is_ascii_uppercase())
                && package.split('.').chain([name]).all(is_identifier)
        })
    }

    /// Whether both have equal segments, names aside.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let same = |(own, other): (&Segment, &Segment)| match (own, other) {
            (Segment::Literal(own), Segment::Literal(other)) => own == other,
            (Segment::Named(_), Segment::Named(_)) => true,
            _ => false,
        };
        self.tail == other.tail
            && self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(same)
    }

    /// Orders two patterns that match one path: the greater is more specific. Segment by segment from the left a
    /// literal is more specific than a name, a name than `*`, and the end than `*`.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.ranks().cmp(other.ranks())
    }

    fn ranks(&self) -> impl Iterator<Item = u8> {
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Literal(_) => 3,
            Segment::Named(_) => 2,
        });
        let tail = match self.tail {
            Tail::End => 1,
            Tail::Rest => 0,
        };
        segments.chain([tail])
    }
}

/// The segment of a path with this index; empty if there is none.
pub fn segment_at(path: &[u8], index: usize) -> &[u8] {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let mut segments = path.split(|byte| *byte == b'/');
    segments.nth(index).unwrap_or_default()
}

impl FromStr for Pattern {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(error("it must begin with `/`"));
        };
        if text.len() > PATTERN_BYTES {
            return Err(error(&format!(
                "it must have at most {PATTERN_BYTES} bytes"
            )));
        }
        let (rest, tail) = match rest.strip_suffix('*') {
            Some("") => (None, Tail::Rest),
            Some(before) if before.ends_with('/') => (before.strip_suffix('/'), Tail::Rest),
            Some(_) => return Err(error("`*` must be the whole last segment")),
            None => (Some(rest), Tail::End),
        };
        let mut segments = Vec::new();
        for segment in rest.into_iter().flat_map(|rest| rest.split('/')) {
            let segment = parse_segment(segment)?;
            if matches!(&segment, Segment::Named(name) if segments.contains(&Segment::Named(name.clone())))
            {
                return Err(error("it has two segments of one name"));
            }
            segments.push(segment);
        }
        check_empty(&segments, tail)?;
        if segments.len() > SEGMENTS_MAX {
            return Err(error(&format!(
                "it must have at most {SEGMENTS_MAX} segments"
            )));
        }
        Ok(Self {
            text: text.into(),
            segments: segments.into(),
            tail,
        })
    }
}

/// Only the last segment may be empty, as in `/a/`; another empty one is more likely a mistake.
fn check_empty(segments: &[Segment], tail: Tail) -> Result<(), ValueError> {
    let is_empty = |segment: &Segment| matches!(segment, Segment::Literal(text) if text.is_empty());
    let before = match (segments, tail) {
        ([before @ .., _], Tail::End) => before,
        (all, _) => all,
    };
    if before.iter().any(is_empty) {
        return Err(error("it has an empty segment, `//`"));
    }
    Ok(())
}

fn parse_segment(text: &str) -> Result<Segment, ValueError> {
    if let Some(name) = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'))
    {
        if !is_name(name) {
            return Err(error(
                "a name must be of lower-case letters, digits and underscores, begin with a letter, and \
                 have at most 32 bytes",
            ));
        }
        return Ok(Segment::Named(name.into()));
    }
    if text.contains(['{', '}']) {
        return Err(error(
            "a name such as `{namespace}` must be a whole segment",
        ));
    }
    if text.contains('*') {
        return Err(error("`*` must be the whole last segment"));
    }
    if text.contains(['?', '#']) {
        return Err(error("a query or fragment is no part of a path"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(error(
            "it is compared with the bytes that are forwarded, so write spaces and other letters as `%20`",
        ));
    }
    Ok(Segment::Literal(text.into()))
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && (text.bytes()).all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn error(reason: &str) -> ValueError {
    ValueError::new(format!(
        "expected a path such as `/readyz`, `/app/*` or `/hooks/{{name}}/*`: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[track_caller]
    fn check(text: &str, yes: &[&str], no: &[&str]) {
        for path in yes {
            assert!(pattern(text).matches(path.as_bytes()), "{text} {path}");
        }
        for path in no {
            assert!(!pattern(text).matches(path.as_bytes()), "{text} {path}");
        }
    }

    #[test]
    fn an_exact_path_is_that_path() {
        check(
            "/readyz",
            &["/readyz"],
            &["/readyz/", "/ready", "/readyzz", "/", "*", ""],
        );
        check("/", &["/"], &["", "//", "/a", "*"]);
        check("/a/", &["/a/"], &["/a", "/a//"]);
        check("/a%20b", &["/a%20b"], &["/a b", "/A%20b"]);
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        check(
            "/app-proxy/*",
            &[
                "/app-proxy",
                "/app-proxy/",
                "/app-proxy/a/b",
                "/app-proxy//",
            ],
            &["/app-proxyx", "/app", "/App-proxy", "//app-proxy"],
        );
        check("/*", &["/", "/a", "", "*", "//"], &[]);
        assert_eq!(Pattern::all(), pattern("/*"));
    }

    #[test]
    fn a_name_stands_for_one_segment_that_is_not_empty() {
        check(
            "/w/{a}/{b}/*",
            &["/w/x/y", "/w/x/y/", "/w/x/y/z", "/w/%2f/./z"],
            &["/w/x", "/w/x/", "/w//y", "/w"],
        );
        check("/w/{a}", &["/w/x"], &["/w/x/", "/w/"]);
    }

    #[test]
    fn what_could_mean_two_things_is_no_pattern() {
        for bad in [
            "", "a", "*", "/a*", "/*/a", "/a/**", "/a//b", "//", "//*", "/{a", "/a}", "/{a}b",
            "/{}", "/{A}", "/{1a}", "/{a-b}", "/{a}/{a}", "/a?b", "/a#b", "/a b", "/ä", "/a\n",
        ] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
        assert!("/a".repeat(SEGMENTS_MAX).parse::<Pattern>().is_ok());
        assert!("/a".repeat(SEGMENTS_MAX + 1).parse::<Pattern>().is_err());
        assert!(
            format!("/{}", "a".repeat(PATTERN_BYTES))
                .parse::<Pattern>()
                .is_err()
        );
    }

    #[test]
    fn the_more_is_said_the_more_it_counts() {
        let order = [
            "/*", "/{a}/*", "/{a}", "/{a}/b", "/a/*", "/a", "/a/{b}/*", "/a/{b}", "/a/b",
        ];
        for pair in order.windows(2) {
            // Only those that can match one path are ever compared; the rest is for tables that people read.
            let (less, more) = (pattern(pair[0]), pattern(pair[1]));
            assert_eq!(more.compare(&less), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(pattern("/{a}").compare(&pattern("/{b}")), Ordering::Equal);
        assert!(pattern("/{a}").has_shape_of(&pattern("/{b}")));
        assert!(!pattern("/a").has_shape_of(&pattern("/b")));
    }

    #[test]
    fn segments_are_found_by_their_place() {
        assert_eq!(segment_at(b"/a/b//c", 1), b"b");
        assert_eq!(segment_at(b"/a/b//c", 2), b"");
        assert_eq!(segment_at(b"/a", 7), b"");
        let pattern = pattern("/w/{a}/{b}/*");
        assert_eq!(pattern.names().collect::<Vec<_>>(), [(1, "a"), (2, "b")]);
        assert_eq!(
            (pattern.index_of("b"), pattern.index_of("c")),
            (Some(2), None)
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}", path in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(pattern) = text.parse::<Pattern>() {
                pattern.matches(&path);
            }
        }
    }
}
