//! Changes that a route makes to requests and responses.
//!
//! In: a head, and the changes, checked once. Out: the head, changed in place. A prefix of the path is replaced at the
//! border of a segment; the rest of path and query stays byte for byte. Fields that belong to a connection, frame the
//! message or are set by the tunnel cannot be changed: the configuration is refused.

use http::header::{
    CONTENT_LENGTH, EXPECT, FORWARDED, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, TRAILER, VIA,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tunnel_proto::problem::{Hop, Problem, Reason};
use tunnel_proto::{fields, limits};

/// Most changes of fields in one direction.
pub const CHANGES_MAX: usize = 64;

/// Most bytes of names and values that a route may add to a head.
pub const CHANGES_BYTES: usize = 8 * 1024;

/// Most bytes between two fields of a head.
const FIELD_BYTES: usize = 8;

/// The changes of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Replaces a prefix of the path.
    pub prefix: Option<Prefix>,
    /// The `Host` for the upstream.
    pub host: HostHeader,
    /// Fields of the request.
    pub request: Changes,
    /// Fields of the response.
    pub response: Changes,
}

/// A prefix of a path and its replacement; both begin with `/` and do not end with it, or are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    from: Box<str>,
    to: Box<str>,
}

/// The `Host` for an upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HostHeader {
    /// As received.
    #[default]
    Keep,
    /// The authority of the upstream.
    Upstream,
    /// This value.
    Set(HeaderValue),
}

/// Changes of fields, made in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Fields to remove, with all their values.
    pub remove: Vec<HeaderName>,
    /// Fields to set to one value.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields to add beside existing ones.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

/// The path after its prefix is replaced cannot be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedTarget {
    /// It begins with `//`, after which some servers expect a host.
    #[error("the path would begin with `//` once its prefix is replaced")]
    DoubleSlash,
    /// It is not a path.
    #[error("replacing the prefix leaves no valid path")]
    NoPath,
}

/// Whether a route may change this field.
pub fn is_changeable(name: &HeaderName) -> bool {
    const FIXED: [HeaderName; 11] = [
        // Framing of the message.
        CONTENT_LENGTH,
        EXPECT,
        TRAILER,
        // Agreed between both ends of an upgrade.
        SEC_WEBSOCKET_ACCEPT,
        SEC_WEBSOCKET_EXTENSIONS,
        SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION,
        // Set by the tunnel, and relied on; the host has a setting of its own.
        FORWARDED,
        HOST,
        VIA,
    ];
    const OURS: [&str; 7] = [
        "proxy-status",
        "tunnel-via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-request-id",
    ];
    !fields::is_connection_specific(name) && !FIXED.contains(name) && !OURS.contains(&name.as_str())
}

impl Rewrite {
    /// Whether requests stay unchanged.
    pub fn keeps_request(&self) -> bool {
        self.prefix.is_none() && self.host == HostHeader::Keep && self.request.is_empty()
    }

    /// Changes the head of a request.
    ///
    /// # Errors
    /// When the path cannot be requested after its prefix is replaced; then nothing has changed.
    pub(crate) fn apply(&self, head: &mut Parts) -> Result<(), RefusedTarget> {
        if let Some(prefix) = &self.prefix
            && let Some(target) = head.uri.path_and_query()
            && let Some(target) = prefix.replace(target.as_str())
        {
            if target.starts_with("//") {
                return Err(RefusedTarget::DoubleSlash);
            }
            let target = PathAndQuery::try_from(target).map_err(|_| RefusedTarget::NoPath)?;
            head.uri = Uri::from(target);
        }
        self.request.apply(&mut head.headers);
        match &self.host {
            HostHeader::Keep => {}
            // The sender writes the upstream's authority if there is no `Host`.
            HostHeader::Upstream => drop(head.headers.remove(HOST)),
            HostHeader::Set(host) => set_host(&mut head.headers, host),
        }
        Ok(())
    }

    /// Changes the head of a response.
    ///
    /// # Errors
    /// When it becomes larger than the tunnel carries.
    pub(crate) fn apply_to_response(&self, headers: &mut HeaderMap) -> Result<(), Problem> {
        if self.response.is_empty() {
            return Ok(());
        }
        self.response.apply(headers);
        let bytes = |(name, value): (&HeaderName, &HeaderValue)| {
            name.as_str().len() + value.len() + FIELD_BYTES
        };
        let is_large = headers.iter().map(bytes).sum::<usize>() > limits::HEAD_BYTES - 64;
        if headers.len() > limits::FIELDS || is_large {
            let detail = "the upstream's answer is too large with the fields that the route adds";
            return Err(Problem::new(Hop::Client, Reason::ResponseInvalid, detail));
        }
        Ok(())
    }
}

impl Prefix {
    /// Replaces `from` by `to`; a last `/` of either is ignored.
    pub fn new(from: &str, to: &str) -> Self {
        let bare = |text: &str| text.strip_suffix('/').unwrap_or(text).into();
        Self {
            from: bare(from),
            to: bare(to),
        }
    }

    /// The prefix.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// The replacement.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// The path and query with the prefix replaced; `None` if they do not begin with it.
    pub fn replace(&self, target: &str) -> Option<String> {
        let rest = target.strip_prefix(&*self.from)?;
        let slash = match rest.as_bytes().first() {
            Some(b'/') => "",
            None | Some(b'?') if self.to.is_empty() => "/",
            None | Some(b'?') => "",
            // The prefix ends within a segment.
            Some(_) => return None,
        };
        let mut replaced = String::with_capacity(self.to.len() + slash.len() + rest.len());
        replaced.extend([&*self.to, slash, rest]);
        Some(replaced)
    }
}

impl Changes {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// Most bytes by which a head grows.
    pub fn bytes(&self) -> usize {
        let fields = self.set.iter().chain(&self.add);
        fields
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum()
    }

    /// The number of changes.
    pub fn count(&self) -> usize {
        self.remove.len() + self.set.len() + self.add.len()
    }

    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name.clone(), value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name.clone(), value.clone());
        }
    }
}

/// Sets `Host`, which must be the first field.
fn set_host(headers: &mut HeaderMap, host: &HeaderValue) {
    if headers.contains_key(HOST) {
        headers.insert(HOST, host.clone());
        return;
    }
    let others = std::mem::take(headers);
    headers.insert(HOST, host.clone());
    headers.extend(others);
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(from: &str, to: &str, target: &str, expected: Option<&str>) {
        let replaced = Prefix::new(from, to).replace(target);
        assert_eq!(replaced.as_deref(), expected, "{from} {to} {target}");
    }

    #[test]
    fn a_prefix_goes_at_a_segments_border_and_nothing_else_changes() {
        check(
            "/workflows",
            "",
            "/workflows/a%2fb?x=%zz&&",
            Some("/a%2fb?x=%zz&&"),
        );
        check("/workflows", "", "/workflows", Some("/"));
        check("/workflows/", "/", "/workflows?x", Some("/?x"));
        check("/workflows", "", "/workflows/", Some("/"));
        check("/workflows", "", "/workflows//a/../b", Some("//a/../b"));
        check("/workflows", "", "/workflowsx", None);
        check("/workflows", "", "/Workflows/a", None);
        check("/a/b", "/c", "/a/b/d", Some("/c/d"));
        check("/a/b", "/c", "/a/b", Some("/c"));
        check("/a/b", "/c/", "/a/b?x", Some("/c?x"));
        check("", "/c", "/a", Some("/c/a"));
        check("", "/c", "*", None);
    }

    fn head(fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::get("/w/x?y");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn fields(head: &Parts) -> Vec<(&str, &str)> {
        let fields = head.headers.iter();
        fields
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect()
    }

    fn field(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    }

    #[test]
    fn fields_go_are_set_and_are_added() {
        let rewrite = Rewrite {
            request: Changes {
                remove: vec![HeaderName::from_static("x-gone")],
                set: vec![field("x-set", "1"), field("x-new", "2")],
                add: vec![field("x-more", "b")],
            },
            prefix: Some(Prefix::new("/w", "")),
            ..Rewrite::default()
        };
        let mut head = head(&[
            ("host", "a"),
            ("x-gone", "1"),
            ("x-gone", "2"),
            ("x-set", "0"),
            ("x-set", "00"),
            ("x-more", "a"),
        ]);
        rewrite.apply(&mut head).unwrap();
        assert_eq!(head.uri.to_string(), "/x?y");
        let mut found = fields(&head);
        assert_eq!(found.remove(0), ("host", "a"));
        found.sort_unstable();
        let expected = [
            ("x-more", "a"),
            ("x-more", "b"),
            ("x-new", "2"),
            ("x-set", "1"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn no_path_is_made_one_that_begins_with_two_slashes() {
        let apply = |prefix: Prefix, target: &str| {
            let (mut head, ()) = Request::get(target).body(()).unwrap().into_parts();
            let rewrite = Rewrite {
                prefix: Some(prefix),
                ..Rewrite::default()
            };
            let applied = rewrite.apply(&mut head);
            (applied, head.uri.to_string())
        };
        let strip = || Prefix::new("/w", "");
        let refused = |target: &str| (Err(RefusedTarget::DoubleSlash), target.to_owned());
        assert_eq!(apply(strip(), "/w//a/../b"), refused("/w//a/../b"));
        assert_eq!(apply(strip(), "/w//"), refused("/w//"));
        assert_eq!(apply(Prefix::new("/w", "/"), "/w//a"), refused("/w//a"));
        assert_eq!(apply(Prefix::new("/", "/"), "//a"), refused("//a"));
        assert_eq!(apply(strip(), "/w/a//b"), (Ok(()), "/a//b".to_owned()));
        let replaced = apply(Prefix::new("/w", "/x"), "/w//a");
        assert_eq!(replaced, (Ok(()), "/x//a".to_owned()));
    }

    #[test]
    fn the_host_stays_goes_or_is_set_and_is_the_first_field() {
        let host = |host: HostHeader, fields: &[(&str, &str)]| {
            let mut head = head(fields);
            let rewrite = Rewrite {
                host,
                ..Rewrite::default()
            };
            rewrite.apply(&mut head).unwrap();
            head.headers
                .iter()
                .map(|(_, value)| value.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let set = || HostHeader::Set(HeaderValue::from_static("other"));
        let given = [("host", "a"), ("x", "1"), ("y", "2")];
        assert_eq!(host(HostHeader::Keep, &given), ["a", "1", "2"]);
        assert_eq!(host(set(), &given), ["other", "1", "2"]);
        assert_eq!(host(set(), &given[1..]), ["other", "1", "2"]);
        assert_eq!(host(HostHeader::Upstream, &given).len(), 2);
    }

    #[test]
    fn an_answer_is_never_larger_than_the_tunnel_carries() {
        let rewrite = Rewrite {
            response: Changes {
                add: vec![field("x-more", "b")],
                ..Changes::default()
            },
            ..Rewrite::default()
        };
        let mut headers = HeaderMap::new();
        assert!(rewrite.apply_to_response(&mut headers).is_ok());
        assert_eq!(headers["x-more"], "b");
        let large = HeaderValue::from_bytes(&vec![b'a'; limits::HEAD_BYTES - 80]).unwrap();
        headers.insert("x", large);
        assert!(rewrite.apply_to_response(&mut headers).is_err());
    }

    #[test]
    fn what_frames_a_message_or_is_the_tunnels_own_is_not_for_routes() {
        for name in [
            "connection",
            "transfer-encoding",
            "content-length",
            "host",
            "te",
            "upgrade",
            "via",
            "x-forwarded-for",
            "proxy-status",
            "keep-alive",
            "trailer",
            "expect",
            "sec-websocket-key",
        ] {
            assert!(!is_changeable(&HeaderName::from_static(name)), "{name}");
        }
        for name in [
            "x-forwarded-prefix",
            "authorization",
            "cookie",
            "accept-encoding",
            "server",
        ] {
            assert!(is_changeable(&HeaderName::from_static(name)), "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_replaced_is_still_a_target(
            from in "(/[a-z%]{1,5}){0,3}/?", to in "(/[a-z]{1,5}){0,3}/?", rest in "(/[!-~&&[^#?]]{0,8}){0,4}(\\?[!-~&&[^#]]{0,8})?"
        ) {
            let target = format!("{}{rest}", from.trim_end_matches('/'));
            if let Ok(target) = PathAndQuery::try_from(target.as_str())
                && let Some(replaced) = Prefix::new(&from, &to).replace(target.as_str())
            {
                let replaced_target = PathAndQuery::try_from(replaced.as_str()).unwrap();
                prop_assert_eq!(replaced_target.as_str(), &replaced);
                prop_assert_eq!(replaced_target.query(), target.query());
                prop_assert!(replaced.starts_with('/'));
            }
        }
    }
}
