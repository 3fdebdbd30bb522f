//! Checks the conditions of a route, and the allowed values of its segments.

use http::Method;

use super::SegmentValues;
use super::check::Checker;
use super::raw::RawRoute;
use crate::matcher::Conditions;
use crate::odd::OddParts;
use crate::pattern::{Pattern, Segment};
use crate::template::{Template, is_dns_label};

/// Most allowed values of a segment.
const VALUES_MAX: usize = 4096;

/// Most methods of one route.
const METHODS_MAX: usize = 32;

impl Checker<'_> {
    pub(super) fn conditions(&mut self, raw: &RawRoute) -> Option<Conditions> {
        let host = match &raw.host {
            Some(host) => self.take(host, "route.host").map(Some),
            None => Some(None),
        };
        let methods = self.methods(raw);
        let allowed = self.odd_parts(raw);
        let path = self.path(raw, allowed.unwrap_or(OddParts::ALL));
        Some(Conditions {
            host: host?,
            methods: methods?,
            path: path?,
            allow_paths_with: allowed?,
            is_denial: raw.deny.is_some(),
            prefix: None,
        })
    }

    /// The odd parts that the route allows. A route that denies takes all, so that it denies odd paths too.
    fn odd_parts(&mut self, raw: &RawRoute) -> Option<OddParts> {
        if let Some(old) = &raw.allow_odd_paths {
            let problem = "it was replaced by `allow_paths_with`: list what paths may contain, such as \
                           `allow_paths_with = [\"encoded_slash\"]`";
            self.fault(old.span(), "route.allow_odd_paths", problem);
            return None;
        }
        let mut parts = Some(OddParts::NONE);
        for text in &raw.allow_paths_with {
            let part = self.take::<OddParts>(text, "route.allow_paths_with");
            parts = parts.zip(part).map(|(parts, part)| parts.with(part));
        }
        match raw.deny {
            Some(_) => parts.map(|_| OddParts::ALL),
            None => parts,
        }
    }

    fn path(&mut self, raw: &RawRoute, allowed: OddParts) -> Option<Pattern> {
        let path: Pattern = self.take(&raw.path, "route.path")?;
        let odd_parts = |segment: &Segment| match segment {
            Segment::Literal(text) => OddParts::of(text.as_bytes()),
            Segment::Named(_) => OddParts::NONE,
        };
        let parts = path.segments().iter().map(odd_parts);
        let refused = parts.fold(OddParts::NONE, OddParts::with).without(allowed);
        if !refused.is_empty() {
            let problem = format!(
                "contains {refused}; such paths are refused unless `allow_paths_with` lists {}",
                refused.names().collect::<Vec<_>>().join(", ")
            );
            self.fault(raw.path.span(), "route.path", problem);
            return None;
        }
        Some(path)
    }

    fn methods(&mut self, raw: &RawRoute) -> Option<Vec<Method>> {
        let Some(given) = &raw.methods else {
            return Some(Vec::new());
        };
        let problem = match given.get_ref().len() {
            0 => "the list is empty: omit it to allow all methods".to_owned(),
            1..=METHODS_MAX => String::new(),
            _ => format!("at most {METHODS_MAX} methods"),
        };
        if !problem.is_empty() {
            self.fault(given.span(), "route.methods", problem);
            return None;
        }
        let mut methods = Some(Vec::new());
        for text in given.get_ref() {
            let method = self.method(text, "route.methods");
            methods = methods.zip(method).map(|(mut methods, method)| {
                methods.push(method);
                methods
            });
        }
        methods
    }

    /// Methods are compared as they are written (RFC 9110 section 9.1).
    pub(super) fn method(&mut self, text: &super::raw::Text, key: &str) -> Option<Method> {
        let method = Method::from_bytes(text.get_ref().as_bytes()).ok();
        let method = method.filter(|method| !method.as_str().contains(char::is_lowercase));
        let problem = match &method {
            None => "expected a method such as `GET`, in upper case",
            Some(method) if *method == Method::CONNECT => {
                "CONNECT is not carried; an upgrade counts as GET"
            }
            Some(_) => return method,
        };
        self.fault(text.span(), key, problem);
        None
    }

    pub(super) fn values(&mut self, raw: &RawRoute, path: &Pattern) -> Option<Vec<SegmentValues>> {
        let mut all = Some(Vec::new());
        for (name, given) in &raw.values {
            let key = format!("route.values.{name}");
            let index = path.index_of(name);
            let problem = match given.get_ref().len() {
                _ if index.is_none() => format!("the path has no segment `{{{name}}}`"),
                0 => "the list is empty: omit it to allow all values, or use `deny`".to_owned(),
                1..=VALUES_MAX => String::new(),
                _ => format!("at most {VALUES_MAX} values"),
            };
            if !problem.is_empty() {
                self.fault(given.span(), &key, problem);
                all = None;
                continue;
            }
            for value in given.get_ref() {
                let text = value.get_ref();
                if text.is_empty()
                    || !text
                        .bytes()
                        .all(|byte| byte.is_ascii_graphic() && byte != b'/')
                {
                    self.fault(
                        value.span(),
                        &key,
                        "not a path segment: visible ASCII without `/`",
                    );
                    all = None;
                }
            }
            let values = given.get_ref().iter();
            let values = SegmentValues {
                name: name.as_str().into(),
                index: index.unwrap_or_default(),
                values: values
                    .map(|value| value.get_ref().as_str().into())
                    .collect(),
            };
            all = all.map(|mut all| {
                all.push(values);
                all
            });
        }
        all
    }

    /// Reports values that cannot be a label of the template's host, and so would always be refused.
    pub(super) fn values_of_template(
        &mut self,
        raw: &RawRoute,
        template: &Template,
        values: &[SegmentValues],
    ) {
        for segment in values {
            if !template.names().any(|name| *name == *segment.name) {
                continue;
            }
            let given = raw.values.get(&*segment.name);
            for value in given.into_iter().flat_map(|given| given.get_ref()) {
                if !is_dns_label(value.get_ref().as_bytes()) {
                    let problem = "the upstream's host is made of it, so it must be a DNS label of lower-case \
                                   letters, digits and inner hyphens";
                    self.fault(
                        value.span(),
                        &format!("route.values.{}", segment.name),
                        problem,
                    );
                }
            }
        }
    }
}
