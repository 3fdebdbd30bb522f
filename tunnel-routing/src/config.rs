//! The table of routes as it stands in the configuration file: `[[route]]`, checked.
//!
//! In: what the file says, with the place of every word. Out: a [`RouteList`] in which every route can
//! be used as it is and no two are equal, or every fault with file, line and key. Nothing here
//! listens, dials or waits; what is made of it is [`crate::Routes`]' business.

mod changes;
mod check;
mod conditions;
mod difference;
mod raw;
mod upstreams;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;
use serde::Deserialize;
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::faults::Faults;
use tunnel_ops::settings::FileOnly;
use tunnel_ops::tls_files::{Identity, Roots};

pub use self::difference::RoutesDifference;
pub use self::raw::RawRoute;
use crate::matcher::{Conditions, Matcher};
use crate::odd::OddParts;
use crate::own_answer::{CorsPolicy, FixedAnswer};
use crate::pattern::{Pattern, segment_at};
use crate::rewrite::Rewrite;
use crate::template::{RefusedSegment, Template};
use crate::url::UpstreamUrl;

/// How long each step of a dial to an upstream may take, unless it is said otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the head of an upstream's response may take, unless it is said otherwise: what webhooks, reports and queries
/// need, and more than any idle limit on the way.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The name of the route that `--upstream` makes.
pub const DEFAULT_ROUTE: &str = "default";

/// What counts where a route says nothing, and the upstream for what no route takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDefaults {
    /// The upstream of the route for everything else; `None` for no such route.
    pub upstream: Option<UpstreamUrl>,
    /// CA certificates, beside the system's, for upstreams over TLS.
    pub ca_file: Option<PathBuf>,
    /// For each step of a dial.
    pub connect_timeout: Duration,
    /// For the head of a response, from the end of the request.
    pub head_timeout: Duration,
}

impl Default for RouteDefaults {
    fn default() -> Self {
        Self {
            upstream: None,
            ca_file: None,
            connect_timeout: CONNECT_TIMEOUT,
            head_timeout: HEAD_TIMEOUT,
        }
    }
}

/// The part of a configuration file that has routes.
#[derive(Deserialize)]
struct RoutesFile {
    #[serde(default)]
    route: Vec<RawRoute>,
}

/// All routes of the file, in its order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteList(Vec<RouteConfig>);

/// One route.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RouteConfig {
    /// Its name, a DNS label, which no other route has.
    pub name: Arc<str>,
    /// The line of the file that it begins in; none for the one that `--upstream` makes.
    pub line: Option<usize>,
    /// Which requests it takes.
    pub conditions: Conditions,
    /// What its named segments may be; those that are not listed may be anything.
    pub values: Vec<SegmentValues>,
    /// What it does with them.
    pub action: RouteAction,
    /// What it changes of them, and of the answers.
    pub rewrite: Rewrite,
    /// Which pages may read the client's own answers.
    pub cors: Option<CorsPolicy>,
}

/// What a named segment may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentValues {
    /// The segment's name.
    pub name: Box<str>,
    /// Its place in the path, from zero.
    pub place: usize,
    /// The bytes that it may have.
    pub values: Vec<Box<str>>,
}

/// What a route does with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteAction {
    /// Sends it to one of these upstreams.
    Upstreams(UpstreamsConfig),
    /// Sends it to the upstream that its path names.
    Template(Template, UpstreamOptions),
    /// Answers it by itself.
    Respond(FixedAnswer),
    /// Refuses it, with these words.
    Deny(Box<str>),
}

/// The upstreams of a route.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UpstreamsConfig {
    /// At least one.
    pub members: Vec<UpstreamMember>,
    /// How each is spoken to.
    pub options: UpstreamOptions,
    /// Whether each is asked now and then if it is well.
    pub health: Option<HealthOptions>,
    /// Whether one that fails is left alone for a while.
    pub ejection: Option<EjectionOptions>,
}

/// One upstream of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamMember {
    /// Where it is.
    pub url: UpstreamUrl,
    /// Its share of the requests, beside those of the others; not zero.
    pub weight: u32,
}

/// How an upstream is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamOptions {
    /// For each step of a dial.
    pub connect_timeout: Duration,
    /// For the head of a response, from the end of the request.
    pub head_timeout: Duration,
    /// Longest silence within a message; `None` means any.
    pub idle_timeout: Option<Duration>,
    /// Largest content of a request, in bytes; `None` means any.
    pub max_body: Option<u64>,
    /// What TLS needs; `None` where no upstream speaks it.
    pub tls: Option<TlsOptions>,
}

/// How TLS is spoken to an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// Whom its certificate may come from. `None` only where the files were not to be read.
    pub roots: Option<Roots>,
    /// The name that it is asked for, and that its certificate must have; `None` means its host.
    pub server_name: Option<Box<str>>,
    /// What is shown to an upstream that asks for a certificate.
    pub identity: Option<Identity>,
    /// Whether any certificate will do.
    pub insecure: bool,
}

/// How an upstream is asked whether it is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthOptions {
    /// The path that is asked for, and a query if it has one; well is a status from 200 to 399.
    pub path: PathAndQuery,
    /// The host that is named, where the route's `host_header` is a name; else the upstream's own.
    pub host: Option<HeaderValue>,
    /// Time from one question to the next.
    pub interval: Duration,
    /// Time for the answer.
    pub timeout: Duration,
    /// Failures in a row after which it counts as not well.
    pub unhealthy_after: u32,
    /// Successes in a row after which it counts as well.
    pub healthy_after: u32,
}

/// When an upstream that fails requests is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EjectionOptions {
    /// Failures in a row, to connect or to answer, after which it is.
    pub after: u32,
    /// For how long.
    pub duration: Duration,
}

impl RouteList {
    /// Reads the routes of a file's text, and the files that they name; `path` is what errors call it,
    /// and what other paths are relative to.
    ///
    /// # Errors
    /// All faults at once.
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

    /// The routes of the file, in its order.
    pub fn iter(&self) -> std::slice::Iter<'_, RouteConfig> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These routes, and after them a route for everything else to the upstream of the settings, if there is one.
    pub fn with_upstream(&self, defaults: &RouteDefaults, roots: Option<Roots>) -> Self {
        let Some(upstream) = &defaults.upstream else {
            return self.clone();
        };
        self.with_default(upstream.clone(), UpstreamOptions::of(defaults, roots))
    }

    /// The same, and behind them the route to an upstream for all that no other route takes.
    ///
    /// Where it is the only route, it takes every path as it is. Beside others, of which one may be
    /// there to deny something, no path gets around them by looking like another one.
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
    /// What is allowed and may not be meant, one sentence each: routes that take odd paths where a
    /// narrower one denies something, since nobody knows how every upstream reads such a path.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
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
    /// The route to an upstream for everything that no other takes.
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

    /// Checks the named segments of a path against the values that they may have.
    pub(crate) fn check_values(&self, path: &[u8]) -> Result<(), RefusedSegment> {
        for allowed in &self.values {
            let segment = segment_at(path, allowed.place);
            if !allowed
                .values
                .iter()
                .any(|value| value.as_bytes() == segment)
            {
                return Err(RefusedSegment {
                    name: allowed.name.clone(),
                    problem: "is none of the values that the route allows",
                });
            }
        }
        Ok(())
    }
}

impl UpstreamOptions {
    /// How the upstream of the settings is spoken to.
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
        }
    }
}

#[cfg(test)]
mod tests;
