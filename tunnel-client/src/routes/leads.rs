//! What a route leads to: its upstreams with their connections.
//!
//! This is the one place that knows how upstreams are made of what the configuration says. They live
//! for as long as a route or an exchange holds them; a reload that does not change what is said of
//! them takes them over, connections and all.

use std::collections::HashMap;
use std::sync::Arc;

use http::Response;
use parking_lot::Mutex;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::TlsFilesError;
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::config::{RouteAction, UpstreamOptions, UpstreamScheme, UpstreamUrl, UpstreamsConfig};
use crate::upstream::{Asked, Upstream, UpstreamBody, UpstreamSettings};

/// Upstreams made on demand that are kept for one template.
const ON_DEMAND_MAX: usize = 256;

/// What upstreams have beside what their routes say.
pub(crate) struct LeadParts {
    /// HTTP/1.1 connections kept at rest, for each upstream.
    pub(crate) idle_pool: usize,
}

/// The upstreams of one route.
pub(super) struct Upstreams {
    made_of: UpstreamsConfig,
    first: Live,
}

/// The upstreams of a route whose path names them, each made when it is first asked for.
pub(super) struct OnDemand {
    made_of: (UpstreamScheme, UpstreamOptions),
    idle_pool: usize,
    made: Mutex<HashMap<UpstreamUrl, Arc<Live>>>,
}

/// An upstream, and the task that closes the connections that it does not need.
pub(super) struct Live {
    upstream: Arc<Upstream>,
    _sweeping: Owned<()>,
}

impl Upstreams {
    /// Must be called within a runtime.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(super) fn new(config: &UpstreamsConfig, parts: &LeadParts) -> Result<Self, TlsFilesError> {
        // There is at least one, as it is checked.
        let first = config.members.first().ok_or(TlsFilesError::NoRoots)?;
        Ok(Self {
            first: Live::new(first.url.clone(), &config.options, parts.idle_pool)?,
            made_of: config.clone(),
        })
    }

    /// Whether it is what this would make.
    pub(super) fn is_of(&self, action: &RouteAction) -> bool {
        matches!(action, RouteAction::Upstreams(config) if self.made_of == *config)
    }

    /// Sends a request to one of them.
    pub(super) async fn ask(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Problem> {
        self.first.ask(asked).await
    }
}

impl OnDemand {
    /// None so far. Must be called within a runtime.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(super) fn new(
        scheme: UpstreamScheme,
        options: &UpstreamOptions,
        parts: &LeadParts,
    ) -> Result<Self, TlsFilesError> {
        Ok(Self {
            made_of: (scheme, options.clone()),
            idle_pool: parts.idle_pool,
            made: Mutex::default(),
        })
    }

    /// Whether it is what this would make.
    pub(super) fn is_of(&self, action: &RouteAction) -> bool {
        let RouteAction::Template(template, options) = action else {
            return false;
        };
        self.made_of.0 == template.base().scheme() && self.made_of.1 == *options
    }

    /// The upstream with this URL.
    pub(super) fn get(&self, url: UpstreamUrl) -> Result<Arc<Live>, Problem> {
        let mut made = self.made.lock();
        if let Some(live) = made.get(&url) {
            return Ok(Arc::clone(live));
        }
        let live = Live::new(url.clone(), &self.made_of.1, self.idle_pool)
            .map_err(|error| Problem::new(Hop::Client, Reason::InternalError, error.to_string()))?;
        let live = Arc::new(live);
        if made.len() >= ON_DEMAND_MAX {
            made.clear();
        }
        made.insert(url, Arc::clone(&live));
        Ok(live)
    }
}

impl Live {
    fn new(
        url: UpstreamUrl,
        options: &UpstreamOptions,
        idle_pool: usize,
    ) -> Result<Self, TlsFilesError> {
        let upstream = Arc::new(Upstream::new(UpstreamSettings {
            url,
            roots: options.tls.as_ref().and_then(|tls| tls.roots.clone()),
            connect_timeout: options.connect_timeout,
            head_timeout: options.head_timeout,
            idle_pool,
        })?);
        let swept = Arc::clone(&upstream);
        Ok(Self {
            upstream,
            _sweeping: Owned::spawn("upstream", async move { swept.sweep().await }),
        })
    }

    /// Sends it a request.
    pub(super) async fn ask(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Problem> {
        self.upstream.ask(asked).await
    }
}
