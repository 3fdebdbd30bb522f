//! Templates of upstream URLs whose host is made from the path: `http://{service}.{namespace}.svc`.
//!
//! In: the template, checked once, and the path of a request. Out: a host made of the template's own text and of
//! DNS-1123 labels, or the segment that is refused. A request decides nothing else: not the scheme, not the port, not
//! the labels' borders.

use std::fmt;

use tunnel_ops::authority::HOST_OCTETS;
use tunnel_ops::config_value::ValueError;

use crate::pattern::{Pattern, segment_at};
use crate::url::UpstreamUrl;

/// Longest label of a DNS name.
const LABEL_OCTETS: usize = 63;

/// A template of an upstream URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    parts: Box<[Part]>,
    /// The URL with a sample host.
    base: UpstreamUrl,
}

/// A part of a template's host.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Segment { name: Box<str>, index: usize },
}

/// A segment that the route refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the segment `{name}` {problem}")]
pub struct RefusedSegment {
    /// The segment's name.
    pub name: Box<str>,
    /// Why.
    pub problem: &'static str,
}

/// Whether this can be a label of a host name (RFC 1123 section 2.1), in lower case as in a cluster.
pub fn is_dns_label(bytes: &[u8]) -> bool {
    let is_inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=LABEL_OCTETS).contains(&bytes.len())
        && bytes.iter().all(is_inner)
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

impl Template {
    /// Whether a URL is a template.
    pub fn is_template(url: &str) -> bool {
        url.contains(['{', '}'])
    }

    /// Checks a template; `path` has the segments that it may name.
    ///
    /// # Errors
    /// When a name is outside of the host or not in the path, or the result could not be a host.
    pub fn parse(url: &str, path: &Pattern) -> Result<Self, ValueError> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !["http", "https", "h2c"].contains(&scheme) {
            return Err(error("the scheme must be `http`, `https` or `h2c`"));
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, after) = match rest.find([':', '/', '?', '#', '@']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if after.contains(['{', '}']) {
            return Err(error("only the host can be made of segments"));
        }
        let parts = parse_host(host, path)?;
        let sample: String = parts.iter().map(Part::sample).collect();
        check_sample(&sample)?;
        let base = format!("{scheme}://{sample}{after}").parse()?;
        Ok(Self {
            text: url.into(),
            parts: parts.into(),
            base,
        })
    }

    /// The template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The URL with a sample host: scheme and port are those of every URL made.
    pub fn base(&self) -> &UpstreamUrl {
        &self.base
    }

    /// The names of the segments that it uses.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Segment { name, .. } => Some(&**name),
            Part::Text(_) => None,
        })
    }

    /// The URL for a path that matches the route's pattern.
    ///
    /// # Errors
    /// When a segment cannot be, or be part of, a label of a host name.
    pub fn fill(&self, path: &[u8]) -> Result<UpstreamUrl, RefusedSegment> {
        let mut host = String::with_capacity(HOST_OCTETS);
        let mut last = None;
        for part in &self.parts {
            match part {
                Part::Text(text) => host.push_str(text),
                Part::Segment { name, index } => {
                    let segment = segment_at(path, *index);
                    let text = Some(segment).filter(|segment| is_dns_label(segment));
                    let text = text.and_then(|segment| str::from_utf8(segment).ok());
                    let Some(text) = text else {
                        return Err(refused(name, NO_LABEL));
                    };
                    host.push_str(text);
                    last = Some(name);
                }
            }
        }
        let is_long = |label: &str| label.len() > LABEL_OCTETS;
        if let Some(last) = last {
            if host.len() > HOST_OCTETS || host.split('.').any(is_long) {
                return Err(refused(last, "would make a host that is too long"));
            }
            // Resolvers read such a name as an address, in notations that hide which.
            if ends_in_number(&host) {
                return Err(refused(last, "would make an address of a host"));
            }
        }
        Ok(self.base.with_host(host))
    }
}

const NO_LABEL: &str = "is no DNS label of lower-case letters, digits and inner hyphens";

fn refused(name: &str, problem: &'static str) -> RefusedSegment {
    RefusedSegment {
        name: name.into(),
        problem,
    }
}

impl Part {
    /// A sample of what it can become.
    fn sample(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Segment { .. } => "a",
        }
    }
}

fn parse_host(host: &str, path: &Pattern) -> Result<Vec<Part>, ValueError> {
    let mut parts = Vec::new();
    let mut rest = host;
    while let Some((text, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else {
            return Err(error("a `{` has no `}`"));
        };
        if text.contains('}') {
            return Err(error("a `}` has no `{`"));
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.to_ascii_lowercase().into()));
        }
        let Some(index) = path.index_of(name) else {
            return Err(error(&format!("the path has no segment `{{{name}}}`")));
        };
        let name = name.into();
        parts.push(Part::Segment { name, index });
        rest = after;
    }
    if rest.contains('}') {
        return Err(error("a `}` has no `{`"));
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_ascii_lowercase().into()));
    }
    Ok(parts)
}

fn check_sample(host: &str) -> Result<(), ValueError> {
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_hyphen = |label: &str| label.starts_with('-') || label.ends_with('-');
    if name.split('.').any(is_hyphen) {
        return Err(error("a label would begin or end with a hyphen"));
    }
    if ends_in_number(host) {
        return Err(error("the host would be an address"));
    }
    Ok(())
}

/// Whether a resolver may take a host for an IPv4 address: its last label is a number in any notation.
fn ends_in_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits(last) || last.strip_prefix("0x").is_some_and(hex)
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn error(reason: &str) -> ValueError {
    ValueError::new(format!(
        "expected a URL such as `http://{{service}}.{{namespace}}.svc.cluster.local`: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATH: &str = "/webhooks/{namespace}/{event_source}/*";
    const URL: &str = "http://{event_source}-eventsource-svc.{namespace}.svc.cluster.local";

    fn template(url: &str) -> Result<Template, ValueError> {
        Template::parse(url, &PATH.parse().unwrap())
    }

    fn filled(url: &str, path: &str) -> Result<String, RefusedSegment> {
        let filled = template(url).unwrap().fill(path.as_bytes());
        filled.map(|url| url.to_string())
    }

    #[test]
    fn segments_become_labels_of_the_host() {
        assert_eq!(
            filled(URL, "/webhooks/team-a/github/push").unwrap(),
            "http://github-eventsource-svc.team-a.svc.cluster.local"
        );
        assert_eq!(
            filled("h2c://{namespace}.Example.com:8443/", "/webhooks/a/b").unwrap(),
            "h2c://a.example.com:8443"
        );
    }

    #[test]
    fn a_hostile_segment_is_refused_by_name() {
        let long = "a".repeat(64);
        for bad in [
            "a%3fb",
            "a%2fb",
            "a:80",
            "a@b",
            "a.b",
            "..",
            "A",
            "-a",
            "a-",
            "ä",
            "%61",
            "a_b",
            &long,
            "a%00",
            "a b",
            "[::1]",
            "a\\b",
            "a;b",
            "127.0.0.1",
        ] {
            let refused = filled(URL, &format!("/webhooks/{bad}/x")).unwrap_err();
            assert_eq!(&*refused.name, "namespace", "{bad}");
            let refused = filled(URL, &format!("/webhooks/x/{bad}")).unwrap_err();
            assert_eq!(&*refused.name, "event_source", "{bad}");
        }
        assert!(filled(URL, "/webhooks//x").is_err());
    }

    #[test]
    fn a_label_that_would_be_too_long_is_refused() {
        let fits = "a".repeat(63 - "-eventsource-svc".len());
        assert!(filled(URL, &format!("/webhooks/n/{fits}")).is_ok());
        let refused = filled(URL, &format!("/webhooks/n/{fits}a")).unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
    }

    #[test]
    fn a_host_never_becomes_an_address() {
        let url = "http://{namespace}.{event_source}";
        for (namespace, source) in [("127", "1"), ("10", "0x7f"), ("a", "0x"), ("1", "017")] {
            let refused = filled(url, &format!("/webhooks/{namespace}/{source}"));
            assert!(refused.is_err(), "{namespace}.{source}");
        }
        assert_eq!(filled(url, "/webhooks/1/0xg").unwrap(), "http://1.0xg");
        assert!(template("http://{namespace}.1").is_err());
    }

    #[test]
    fn only_the_host_is_made_of_segments_that_the_path_has() {
        for bad in [
            "{namespace}://a",
            "http://a:{namespace}",
            "http://a/{namespace}",
            "http://{namespace}/a",
            "http://{namespace}@a",
            "http://{namespace}?a",
            "http://{other}.svc",
            "http://{namespace",
            "http://namespace}",
            "http://{namespace}}.a",
            "http://a.{na{mespace}",
            "http://-{namespace}.svc",
            "http://{namespace}-.svc",
            "http://{namespace}..svc",
            "unix:/{namespace}",
            "ftp://{namespace}",
            "http://[{namespace}]",
        ] {
            assert!(template(bad).is_err(), "{bad}");
        }
        let names: Vec<_> = template(URL).unwrap().names().map(str::to_owned).collect();
        assert_eq!(names, ["event_source", "namespace"]);
    }

    proptest! {
        #[test]
        fn what_is_filled_in_is_one_label_and_the_rest_is_the_templates_own(
            namespace in "[^/]{1,20}|[a-z0-9-]{1,70}", source in "[^/]{1,20}|[a-z0-9-]{1,70}"
        ) {
            let path = format!("/webhooks/{namespace}/{source}/x");
            if let Ok(url) = template(URL).unwrap().fill(path.as_bytes()) {
                let host = url.host();
                let labels: Vec<_> = host.split('.').collect();
                prop_assert_eq!(labels.len(), 5);
                prop_assert!(labels.iter().all(|label| is_dns_label(label.as_bytes())));
                let source = labels[0].strip_suffix("-eventsource-svc").unwrap();
                prop_assert!(is_dns_label(source.as_bytes()));
                prop_assert_eq!(&labels[2..], ["svc", "cluster", "local"]);
                // It parses back to an equal URL: no segment has a character with a meaning in URLs.
                prop_assert_eq!(url.to_string().parse::<UpstreamUrl>().unwrap(), url);
            }
        }
    }
}
