//! Checks routes as written. The check continues after a fault, so that all faults are reported.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use toml::Spanned;
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::config_value::{Count, PositiveDuration};
use tunnel_ops::tls_files::Roots;

use super::raw::{RawRoute, Text};
use super::{
    Conditions, DEFAULT_ROUTE, Matcher, RouteAction, RouteConfig, RouteDefaults, RouteList,
};
use crate::matcher::ROUTES_MAX;
use crate::template::is_dns_label;

/// The state of the check of one file.
pub(super) struct Checker<'a> {
    pub(super) file: &'a TomlFile,
    /// What applies where a route has no setting of its own.
    pub(super) defaults: &'a RouteDefaults,
    /// Whether files that routes name are read.
    pub(super) reads_files: bool,
    /// Roots that were read: many routes name the same file, and the system has many.
    roots: HashMap<Option<PathBuf>, Roots>,
    pub(super) faults: &'a mut Vec<ConfigFileError>,
}

impl RouteList {
    /// Checks the routes of a file, and reads the files that they name if `reads_files`. Faults are added to `faults`;
    /// `None` if a route is not good by itself.
    pub fn check(
        routes: &[RawRoute],
        file: &TomlFile,
        defaults: &RouteDefaults,
        reads_files: bool,
        faults: &mut Vec<ConfigFileError>,
    ) -> Option<Self> {
        let mut checker = Checker {
            file,
            defaults,
            reads_files,
            roots: HashMap::new(),
            faults,
        };
        if let Some(route) = routes.get(ROUTES_MAX) {
            let problem = format!("there may be at most {ROUTES_MAX} routes");
            checker.fault(route.name.span(), "route", problem);
            return None;
        }
        checker.names(routes);
        // All routes, also after one that is not good.
        let checked: Vec<_> = routes.iter().map(|raw| checker.route(raw)).collect();
        let checked: Option<Vec<_>> = checked.into_iter().collect();
        // How routes go together can be checked only when all could be read.
        let list = Self(checked?);
        checker.overlaps(&list, routes);
        checker.preflights(&list, routes);
        Some(list)
    }
}

impl Checker<'_> {
    pub(super) fn fault(&mut self, span: Range<usize>, key: &str, problem: impl Into<String>) {
        self.faults.push(self.file.error_at(span, key, problem));
    }

    /// The value; or a fault at its position.
    pub(super) fn take<T>(&mut self, text: &Text, key: &str) -> Option<T>
    where
        T: FromStr<Err: ToString>,
    {
        let parsed = text.get_ref().parse::<T>();
        parsed
            .map_err(|error| self.fault(text.span(), key, error.to_string()))
            .ok()
    }

    pub(super) fn duration(
        &mut self,
        text: Option<&Text>,
        key: &str,
        default: Duration,
    ) -> Option<Duration> {
        match text {
            None => Some(default),
            Some(text) => self.take::<PositiveDuration>(text, key).map(Duration::from),
        }
    }

    pub(super) fn count<const MIN: u32, const MAX: u32>(
        &mut self,
        number: Option<&Spanned<i64>>,
        key: &str,
        default: u32,
    ) -> Option<u32> {
        let Some(number) = number else {
            return Some(default);
        };
        let parsed = number.get_ref().to_string().parse::<Count<MIN, MAX>>();
        parsed
            .map(u32::from)
            .map_err(|error| self.fault(number.span(), key, error.to_string()))
            .ok()
    }

    /// The system's roots and those of a CA file.
    pub(super) fn roots(&mut self, ca_file: Option<&Path>, span: Range<usize>) -> Option<Roots> {
        let key = ca_file.map(Path::to_owned);
        if let Some(roots) = self.roots.get(&key) {
            return Some(roots.clone());
        }
        match Roots::load(ca_file) {
            Ok(roots) => {
                self.roots.insert(key, roots.clone());
                Some(roots)
            }
            Err(error) => {
                self.fault(span, "route.tls.ca_file", error.to_string());
                None
            }
        }
    }

    fn names(&mut self, routes: &[RawRoute]) {
        let mut lines: HashMap<&str, usize> = HashMap::new();
        for route in routes {
            let (name, span) = (route.name.get_ref().as_str(), route.name.span());
            if !is_dns_label(name.as_bytes()) {
                let problem = "expected lower-case letters, digits and inner hyphens, at most 63";
                self.fault(span, "route.name", problem);
                continue;
            }
            if name == DEFAULT_ROUTE && self.defaults.upstream.is_some() {
                let problem = "the route that `upstream` makes has this name";
                self.fault(span, "route.name", problem);
                continue;
            }
            let line = self.file.line_of(span.start);
            if let Some(first) = lines.insert(name, line) {
                let problem = format!("`{name}` is the route in line {first} already");
                self.fault(span, "route.name", problem);
            }
        }
    }

    fn route(&mut self, raw: &RawRoute) -> Option<RouteConfig> {
        // Each part is checked, whatever is wrong with another.
        let conditions = self.conditions(raw);
        let cors = match &raw.cors {
            Some(cors) => self.cors(cors).map(Some),
            None => Some(None),
        };
        let path = conditions.as_ref().map(|conditions| &conditions.path);
        let values = path.and_then(|path| self.values(raw, path));
        let rewrite = self.rewrite(raw, path);
        let action = self.action(raw, path);
        if let (Some(RouteAction::Template(template, _)), Some(values)) = (&action, &values) {
            self.values_of_template(raw, template, values);
        }
        let rewrite = rewrite?;
        Some(RouteConfig {
            name: Arc::from(raw.name.get_ref().as_str()),
            line: Some(self.file.line_of(raw.name.span().start)),
            conditions: Conditions {
                prefix: rewrite.prefix.clone(),
                ..conditions?
            },
            values: values?,
            action: action?,
            rewrite,
            cors: cors?,
        })
    }

    /// Before a page sends a request by a route with CORS, its browser sends `OPTIONS`, which a route for the same
    /// paths must take.
    fn preflights(&mut self, routes: &RouteList, raw: &[RawRoute]) {
        let takes = |conditions: &Conditions| {
            conditions.methods.is_empty() || conditions.methods.contains(&Method::OPTIONS)
        };
        for (route, raw) in routes.iter().zip(raw) {
            let (own, Some(methods), Some(_)) = (&route.conditions, &raw.methods, &route.cors)
            else {
                continue;
            };
            let is_beside = |other: &RouteConfig| {
                let other = &other.conditions;
                takes(other) && other.host == own.host && other.path.has_shape_of(&own.path)
            };
            if !routes.iter().any(is_beside) {
                let problem = "browsers ask with OPTIONS first: add it here or to another route with this host and \
                               path, or the route's pages never come here";
                self.fault(methods.span(), "route.methods", problem);
            }
        }
    }

    fn overlaps(&mut self, routes: &RouteList, raw: &[RawRoute]) {
        let (_, overlaps) = Matcher::new(routes.iter().map(|route| &route.conditions));
        for overlap in overlaps {
            let (Some(first), Some(second)) = (raw.get(overlap.first), raw.get(overlap.second))
            else {
                continue;
            };
            let problem = format!(
                "`{}` takes the same requests as the route `{}` in line {}, and neither says more about them: \
                 change host, path or methods of one",
                second.path.get_ref(),
                first.name.get_ref(),
                self.file.line_of(first.path.span().start),
            );
            self.fault(second.path.span(), "route.path", problem);
        }
        let is_for_all = |(_, route): &(&RawRoute, &RouteConfig)| {
            let conditions = &route.conditions;
            conditions.host.is_none()
                && conditions.methods.is_empty()
                && conditions.path.as_str() == "/*"
        };
        let for_all = raw.iter().zip(routes).find(is_for_all);
        if let (Some((raw, _)), true) = (for_all, self.defaults.upstream.is_some()) {
            let problem = "`/*` takes the same requests as the route that `upstream` (--upstream) makes: leave \
                           one of them out";
            self.fault(raw.path.span(), "route.path", problem);
        }
    }
}
