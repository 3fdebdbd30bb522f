//! The configuration of routes: `[[route]]`, checked.
//!
//! In: the tables of the file, with the position of each value. Out: a [`RouteList`] whose routes can be used as they
//! are and do not overlap, or every fault with file, line and key. Nothing here listens, dials or waits;
//! [`crate::Routes`] makes the table.

mod changes;
mod check;
mod conditions;
mod difference;
mod raw;
mod upstreams;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::faults::Faults;
use tunnel_ops::settings::FileOnly;
use tunnel_ops::tls_files::Roots;

pub use self::difference::RoutesDifference;
pub use self::raw::RawRoute;
use crate::direct_response::{CorsPolicy, DirectResponse};
use crate::matcher::{Conditions, Matcher};
use crate::odd::OddParts;
use crate::pattern::{Pattern, segment_at};
use crate::rewrite::Rewrite;
use crate::template::{RefusedSegment, Template};
pub use crate::upstream::{
    EjectionOptions, HealthOptions, TlsOptions, UpstreamHttp, UpstreamMember, UpstreamOptions,
    UpstreamsConfig,
};
use crate::url::UpstreamUrl;

/// Default limit of each step of a dial to an upstream.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Default limit for the head of a response: long enough for webhooks, reports and queries, and longer than any idle
/// limit on the way.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The name of the route for `--upstream`.
pub const DEFAULT_ROUTE: &str = "default";

/// What applies where a route has no setting of its own, and the upstream of the default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDefaults {
    /// The upstream of the route for requests that no other takes; `None` for no such route.
    pub upstream: Option<UpstreamUrl>,
    /// CA certificates for upstreams over TLS, beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Limit of each step of a dial.
    pub connect_timeout: Duration,
    /// Limit from the end of a request to the head of its response.
    pub head_timeout: Duration,
    /// The version of HTTP for `https` upstreams.
    pub http: UpstreamHttp,
}

impl Default for RouteDefaults {
    fn default() -> Self {
        Self {
            upstream: None,
            ca_file: None,
            connect_timeout: CONNECT_TIMEOUT,
            head_timeout: HEAD_TIMEOUT,
            http: UpstreamHttp::default(),
        }
    }
}

/// The part of a configuration file that has routes.
#[derive(Deserialize)]
struct RoutesFile {
    #[serde(default)]
    route: Vec<RawRoute>,
}

/// The routes of a file, in its order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteList(Vec<RouteConfig>);

/// The configuration of one route.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RouteConfig {
    /// Its name, a DNS label, unique in the list.
    pub name: Arc<str>,
    /// The line of the file at which it begins; `None` for the default route.
    pub line: Option<usize>,
    /// The requests that it takes.
    pub conditions: Conditions,
    /// Allowed values of named segments; a segment that is not listed may be anything.
    pub values: Vec<SegmentValues>,
    /// What it does with requests.
    pub action: RouteAction,
    /// What it changes of requests and responses.
    pub rewrite: Rewrite,
    /// Which pages may read responses of the client itself.
    pub cors: Option<CorsPolicy>,
}

/// The allowed values of a named segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentValues {
    /// The segment's name.
    pub name: Box<str>,
    /// Its index in the path.
    pub index: usize,
    /// The allowed values.
    pub values: Vec<Box<str>>,
}

/// What a route does with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteAction {
    /// Forwards it to one of these upstreams.
    Upstreams(UpstreamsConfig),
    /// Forwards it to the upstream whose URL the path fills in.
    Template(Template, UpstreamOptions),
    /// Responds itself.
    Respond(DirectResponse),
    /// Denies it, with this text.
    Deny(Box<str>),
}

impl RouteList {
    /// Reads `[[route]]` of a file's text, and the files that it names, with the default settings; other keys are
    /// ignored. `path` is the file's name in errors, and other paths are relative to it.
    ///
    /// # Errors
    /// With all faults.
    pub fn from_toml(
        path: impl Into<PathBuf>,
        text: &str,
    ) -> Result<Self, Faults<ConfigFileError>> {
        Self::from_file(&TomlFile::from_text(path, text), &RouteDefaults::default())
    }

    fn from_file(
        file: &TomlFile,
        defaults: &RouteDefaults,
    ) -> Result<Self, Faults<ConfigFileError>> {
        let RoutesFile { mut route } = file.parse()?;
        let folder = file.path().parent().unwrap_or_else(|| Path::new(""));
        for path in route.paths() {
            *path = folder.join(&*path);
        }
        let mut faults = Vec::new();
        match Self::check(&route, file, defaults, true, &mut faults) {
            Some(routes) if faults.is_empty() => Ok(routes),
            _ => Err(Faults::new(faults)),
        }
    }

    /// The routes, in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, RouteConfig> {
        self.0.iter()
    }

    /// The number of routes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These routes, and the default route to the upstream of the settings if there is one.
    pub fn with_upstream(&self, defaults: &RouteDefaults, roots: Option<Roots>) -> Self {
        let Some(upstream) = &defaults.upstream else {
            return self.clone();
        };
        self.with_default(upstream.clone(), UpstreamOptions::of(defaults, roots))
    }

    /// These routes, and a default route for requests that no other takes.
    ///
    /// Alone, the default route takes every path. Beside other routes, of which one may deny something, it takes no
    /// odd paths, so that no path gets around a route by looking like another.
    #[must_use]
    pub fn with_default(&self, upstream: UpstreamUrl, options: UpstreamOptions) -> Self {
        let allowed = match self.is_empty() {
            true => OddParts::ALL,
            false => OddParts::NONE,
        };
        let mut routes = self.0.clone();
        routes.push(RouteConfig::default_to(upstream, options, allowed));
        Self(routes)
    }
}

impl RouteList {
    /// Warnings, one sentence each: routes that take odd paths beside a narrower route that denies something, since
    /// upstreams read such paths differently; routes of gRPC services whose upstreams get HTTP/1.1.
    pub fn warnings(&self) -> Vec<String> {
        let grpc = self.iter().filter_map(RouteConfig::grpc_warning);
        let mut warnings: Vec<_> = grpc.collect();
        for denial in self.iter().filter(|route| route.conditions.is_denial) {
            let is_beside = |route: &&RouteConfig| {
                let (own, other) = (&denial.conditions, &route.conditions);
                let is_of_host =
                    other.host.is_none() || own.host.is_none() || other.host == own.host;
                !other.is_denial
                    && !other.allow_paths_with.is_empty()
                    && is_of_host
                    && other.path.covers(&own.path)
            };
            for route in self.iter().filter(is_beside) {
                warnings.push(format!(
                    "route `{}` takes paths with {}: an upstream may read one of them as a path that \
                     route `{}` denies",
                    route.name, route.conditions.allow_paths_with, denial.name
                ));
            }
        }
        warnings
    }
}

impl<'a> IntoIterator for &'a RouteList {
    type Item = &'a RouteConfig;
    type IntoIter = std::slice::Iter<'a, RouteConfig>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl RouteConfig {
    /// The default route.
    fn default_to(url: UpstreamUrl, options: UpstreamOptions, allowed: OddParts) -> Self {
        Self {
            name: DEFAULT_ROUTE.into(),
            line: None,
            conditions: Conditions {
                host: None,
                methods: Vec::new(),
                path: Pattern::all(),
                allow_paths_with: allowed,
                is_denial: false,
                prefix: None,
            },
            values: Vec::new(),
            action: RouteAction::Upstreams(UpstreamsConfig {
                members: vec![UpstreamMember { url, weight: 1 }],
                options,
                health: None,
                ejection: None,
            }),
            rewrite: Rewrite::default(),
            cors: None,
        }
    }

    /// Whether the path is that of the methods of a gRPC service, as in `/package.Service/*`. gRPC-Web and Connect have
    /// such paths as well.
    pub fn is_of_grpc(&self) -> bool {
        let methods = &self.conditions.methods;
        let is_sent_on = self.rewrite.prefix.is_none();
        is_sent_on
            && (methods.is_empty() || methods.contains(&Method::POST))
            && self.conditions.path.is_of_grpc()
    }

    /// The first upstream, or the template, that gets HTTP/1.1 alone where gRPC calls are to be expected.
    fn grpc_warning(&self) -> Option<String> {
        let gets_http1 = |url: &UpstreamUrl, options: &UpstreamOptions| {
            options.http.for_scheme(url.scheme()) == UpstreamHttp::Http1
        };
        let upstream = match &self.action {
            RouteAction::Upstreams(upstreams) => {
                let mut members = upstreams.members.iter();
                let member = members.find(|member| gets_http1(&member.url, &upstreams.options));
                member?.url.to_string()
            }
            RouteAction::Template(template, options) if gets_http1(template.base(), options) => {
                template.to_string()
            }
            _ => return None,
        };
        let name = &self.name;
        let is_warned = self.is_of_grpc();
        is_warned.then(|| {
            format!(
                "route `{name}` has the path of a gRPC service, but {upstream} is sent HTTP/1.1, over which gRPC calls \
                 fail: give it h2c://, or https:// without `http = \"1.1\"`"
            )
        })
    }

    /// Checks the named segments of a path against their allowed values.
    pub(crate) fn check_values(&self, path: &[u8]) -> Result<(), RefusedSegment> {
        for allowed in &self.values {
            let segment = segment_at(path, allowed.index);
            if !allowed
                .values
                .iter()
                .any(|value| value.as_bytes() == segment)
            {
                return Err(RefusedSegment {
                    name: allowed.name.clone(),
                    problem: "is not one of the values that the route allows",
                });
            }
        }
        Ok(())
    }
}

impl UpstreamOptions {
    /// The options of an upstream without settings of its own.
    pub fn of(defaults: &RouteDefaults, roots: Option<Roots>) -> Self {
        let tls = roots.map(|roots| TlsOptions {
            roots: Some(roots),
            server_name: None,
            identity: None,
            insecure: false,
        });
        Self {
            connect_timeout: defaults.connect_timeout,
            head_timeout: defaults.head_timeout,
            idle_timeout: None,
            max_body: None,
            tls,
            http: defaults.http,
        }
    }
}

#[cfg(test)]
mod tests;
