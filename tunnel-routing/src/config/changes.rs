//! Checks what a route changes, and its CORS policy.

use std::ops::Range;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use toml::Spanned;

use super::CorsPolicy;
use super::check::Checker;
use super::raw::{RawChanges, RawCors, RawRoute, Text};
use crate::odd::OddParts;
use crate::pattern::{Pattern, Segment};
use crate::rewrite::{
    CHANGES_BYTES, CHANGES_MAX, Changes, HostHeader, Prefix, Rewrite, is_changeable,
};

/// Methods of a CORS policy that names none.
const CORS_METHODS: &str = "GET, HEAD, PUT, PATCH, POST, DELETE";

/// Most origins of one route.
const ORIGINS_MAX: usize = 256;

impl Checker<'_> {
    pub(super) fn rewrite(&mut self, raw: &RawRoute, path: Option<&Pattern>) -> Option<Rewrite> {
        let prefix = self.prefix(raw, path);
        let host = self.host_header(raw);
        let request = self.changes(raw.request_headers.as_ref(), "route.request_headers");
        let response = self.changes(raw.response_headers.as_ref(), "route.response_headers");
        Some(Rewrite {
            prefix: prefix?,
            host: host?,
            request: request?,
            response: response?,
        })
    }

    fn prefix(&mut self, raw: &RawRoute, path: Option<&Pattern>) -> Option<Option<Prefix>> {
        let (key, from, to) = match (&raw.strip_prefix, &raw.replace_prefix) {
            (None, None) => return Some(None),
            (Some(_), Some(both)) => {
                let problem = "strip_prefix is given as well: leave one of them out";
                self.fault(both.span(), "route.replace_prefix", problem);
                return None;
            }
            (Some(from), None) => ("route.strip_prefix", from, None),
            (None, Some(both)) => {
                let both = both.get_ref();
                ("route.replace_prefix", &both.from, Some(&both.to))
            }
        };
        for text in [Some(from), to].into_iter().flatten() {
            self.prefix_text(text, key)?;
        }
        let prefix = Prefix::new(from.get_ref(), to.map_or("", |to| to.get_ref()));
        if path.is_some_and(|path| !begins_with(path, prefix.from())) {
            let problem = "the path does not begin with it, so nothing would ever be replaced";
            self.fault(from.span(), key, problem);
            return None;
        }
        Some(Some(prefix))
    }

    fn prefix_text(&mut self, text: &Text, key: &str) -> Option<()> {
        let bytes = text.get_ref().as_bytes();
        let fits = |byte: &u8| byte.is_ascii_graphic() && !b"?#{}*".contains(byte);
        if bytes.first() != Some(&b'/')
            || !bytes.iter().all(fits)
            || !OddParts::of(bytes).is_empty()
        {
            let problem = "expected whole segments of a path such as `/workflows`, without dot segments and `;`";
            self.fault(text.span(), key, problem);
            return None;
        }
        Some(())
    }

    fn host_header(&mut self, raw: &RawRoute) -> Option<HostHeader> {
        let Some(given) = &raw.host_header else {
            return Some(HostHeader::Keep);
        };
        match given.get_ref().as_str() {
            "keep" => return Some(HostHeader::Keep),
            "upstream" => return Some(HostHeader::Upstream),
            _ => {}
        }
        // A name, with or without a port.
        let authority = given.get_ref().parse::<http::uri::Authority>().ok();
        let authority = authority.filter(|authority| !authority.as_str().contains('@'));
        let value = authority.and_then(|name| HeaderValue::from_str(name.as_str()).ok());
        if value.is_none() {
            let problem = "expected `keep`, `upstream` or a host name";
            self.fault(given.span(), "route.host_header", problem);
        }
        value.map(HostHeader::Set)
    }

    fn changes(&mut self, raw: Option<&Spanned<RawChanges>>, key: &str) -> Option<Changes> {
        let Some(raw) = raw else {
            return Some(Changes::default());
        };
        let before = self.faults.len();
        let RawChanges { set, add, remove } = raw.get_ref();
        let mut changes = Changes::default();
        for text in remove {
            let name = self.field_name(text.get_ref(), text.span(), &format!("{key}.remove"));
            changes.remove.extend(name);
        }
        for (name, value) in set {
            let field = self.field(name, value, &format!("{key}.set"));
            changes.set.extend(field);
        }
        for (name, value) in add {
            let field = self.field(name, value, &format!("{key}.add"));
            changes.add.extend(field);
        }
        if changes.count() > CHANGES_MAX || changes.bytes() > CHANGES_BYTES {
            let problem = format!(
                "there may be at most {CHANGES_MAX} changes, which add at most {CHANGES_BYTES} bytes"
            );
            self.fault(raw.span(), key, problem);
        }
        (self.faults.len() == before).then_some(changes)
    }

    fn field(&mut self, name: &str, value: &Text, key: &str) -> Option<(HeaderName, HeaderValue)> {
        let name = self.field_name(name, value.span(), key);
        let text = value.get_ref();
        let parsed = HeaderValue::from_str(text).ok();
        // HTTP carries no white space around a value.
        let parsed = parsed.filter(|_| text.trim() == text);
        if parsed.is_none() {
            let problem = "a field's value is printable ASCII without white space around it";
            self.fault(value.span(), key, problem);
        }
        name.zip(parsed)
    }

    fn field_name(&mut self, text: &str, span: Range<usize>, key: &str) -> Option<HeaderName> {
        let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
            self.fault(span, key, format!("`{text}` is no name of a field"));
            return None;
        };
        if !is_changeable(&name) {
            let instead = match name.as_str() {
                "host" => ": use host_header",
                _ => "",
            };
            let problem = format!(
                "`{name}` belongs to a connection, frames the message or is the tunnel's own{instead}"
            );
            self.fault(span, key, problem);
            return None;
        }
        Some(name)
    }

    pub(super) fn cors(&mut self, raw: &Spanned<RawCors>) -> Option<CorsPolicy> {
        let before = self.faults.len();
        let cors = raw.get_ref();
        let origins = self.origins(&cors.origins, cors.credentials);
        let methods: Vec<_> = (cors.methods.iter().flatten())
            .filter_map(|text| self.method(text, "route.cors.methods"))
            .map(|method| method.to_string())
            .collect();
        let headers: Vec<_> = (cors.headers.iter())
            .filter_map(|text| self.cors_header(text))
            .map(|name| name.to_string())
            .collect();
        let max_age = cors.max_age.as_ref();
        let max_age = max_age
            .and_then(|text| self.duration(Some(text), "route.cors.max_age", Duration::ZERO));
        let methods = match cors.methods {
            Some(_) => methods.join(", "),
            None => CORS_METHODS.to_owned(),
        };
        let headers = (!headers.is_empty()).then(|| headers.join(", "));
        (self.faults.len() == before).then_some(CorsPolicy {
            origins,
            methods: HeaderValue::from_str(&methods).ok()?,
            headers: headers.and_then(|headers| HeaderValue::from_str(&headers).ok()),
            credentials: cors.credentials,
            max_age,
        })
    }

    fn cors_header(&mut self, text: &Text) -> Option<HeaderName> {
        let name = HeaderName::from_bytes(text.get_ref().as_bytes()).ok();
        if name.is_none() {
            self.fault(
                text.span(),
                "route.cors.headers",
                "expected the name of a field",
            );
        }
        name
    }

    /// The allowed origins; empty for any.
    fn origins(&mut self, given: &Spanned<Vec<Text>>, credentials: bool) -> Vec<HeaderValue> {
        let key = "route.cors.origins";
        let texts = given.get_ref();
        if texts.is_empty() || texts.len() > ORIGINS_MAX {
            let problem = format!("expected one to {ORIGINS_MAX} origins");
            self.fault(given.span(), key, problem);
        }
        if texts.iter().any(|text| text.get_ref() == "*") {
            if texts.len() > 1 {
                self.fault(
                    given.span(),
                    key,
                    "`*` is every origin: leave out the others",
                );
            }
            if credentials {
                let problem = "with credentials each origin must be named, or every page could use what it knows \
                               the user by";
                self.fault(given.span(), key, problem);
            }
            return Vec::new();
        }
        let mut origins = Vec::new();
        for text in texts {
            match origin(text.get_ref()) {
                Some(origin) => origins.push(origin),
                None => {
                    let problem = "expected an origin such as `https://app.example.com`, in lower case, without path";
                    self.fault(text.span(), key, problem);
                }
            }
        }
        origins
    }
}

/// An origin as browsers write it (RFC 6454 section 6.2): it is compared byte for byte.
fn origin(text: &str) -> Option<HeaderValue> {
    let rest = (text.strip_prefix("https://")).or_else(|| text.strip_prefix("http://"))?;
    let is_host =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b':' | b'[' | b']');
    let fits = !rest.is_empty() && rest.bytes().all(is_host);
    fits.then(|| HeaderValue::from_str(text).ok()).flatten()
}

/// Whether every path that a pattern matches begins with these segments.
fn begins_with(path: &Pattern, prefix: &str) -> bool {
    let prefix = prefix.strip_prefix('/').unwrap_or(prefix);
    let mut own = path.segments().iter();
    prefix.is_empty()
        || prefix
            .split('/')
            .all(|text| matches!(own.next(), Some(Segment::Literal(literal)) if **literal == *text))
}
