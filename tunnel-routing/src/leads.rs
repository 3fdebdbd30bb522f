//! What a route leads to: its upstreams with their connections.
//!
//! This is the one place that knows how upstreams are made of what the configuration says. They live
//! for as long as a route or an exchange holds them; a reload that does not change what is said of
//! them takes them over, connections and all, and one that does, what is known of each. They are tended only while they are in the table: an
//! exchange that goes on for days does not have an upstream checked that no route leads to any more.

use std::sync::Arc;

use http::Response;
use tunnel_ops::task::Owned;
use tunnel_proto::problem::Problem;

use crate::config::{
    HealthOptions, RouteAction, UpstreamMember, UpstreamOptions as Options, UpstreamsConfig,
};
use crate::upstream::{
    Asked, EjectionSettings, HealthSettings, KnownUpstream, Upstream, UpstreamBody, UpstreamCache,
    UpstreamCondition, UpstreamError, UpstreamOptions, UpstreamSet, UpstreamShared, UpstreamTls,
};
use crate::url::{UpstreamScheme, UpstreamUrl};

/// What upstreams have beside what their routes say.
pub struct LeadParts {
    /// What all of them share.
    pub shared: Arc<UpstreamShared>,
    /// HTTP/1.1 connections kept at rest, for each upstream.
    pub idle_pool: usize,
}

impl LeadParts {
    /// One upstream alone, for whoever wants to know whether it is there.
    ///
    /// # Errors
    /// When it cannot be as the configuration says.
    pub fn upstream(&self, url: &UpstreamUrl, config: &Options) -> Result<Upstream, UpstreamError> {
        Upstream::new(url.clone(), &options(config, self), &self.shared)
    }
}

/// Has upstreams tended for as long as this is held.
pub(crate) type Tending = Arc<Owned<()>>;

/// The upstreams of one route.
pub(crate) struct Upstreams {
    made_of: UpstreamsConfig,
    set: Arc<UpstreamSet>,
}

/// The upstreams of a route whose path names them, each made when it is first asked for.
pub(crate) struct OnDemand {
    made_of: (UpstreamScheme, Options),
    cache: Arc<UpstreamCache>,
}

impl Upstreams {
    /// What is known of each, by those before them, is taken over.
    ///
    /// # Errors
    /// When they cannot be as the configuration says.
    pub(crate) fn new(
        config: &UpstreamsConfig,
        parts: &LeadParts,
        known: impl Fn(&UpstreamUrl) -> Option<KnownUpstream>,
    ) -> Result<Self, UpstreamError> {
        let member = |member: &UpstreamMember| (member.url.clone(), member.weight);
        let ejection = config.ejection.as_ref().map(|ejection| EjectionSettings {
            after: ejection.after,
            duration: ejection.duration,
        });
        let set = UpstreamSet::new(
            config.members.iter().map(member).collect(),
            &options(&config.options, parts),
            config.health.as_ref().map(health),
            ejection,
            &parts.shared,
            known,
        )?;
        Ok(Self {
            made_of: config.clone(),
            set: Arc::new(set),
        })
    }

    /// Begins to tend them. Must be called within a runtime.
    pub(crate) fn tend(&self) -> Tending {
        let set = Arc::clone(&self.set);
        Arc::new(Owned::spawn("upstream", async move { set.tend().await }))
    }

    /// Whether it is what this would make.
    pub(crate) fn is_of(&self, action: &RouteAction) -> bool {
        matches!(action, RouteAction::Upstreams(config) if self.made_of == *config)
    }

    /// What is known of the one with this URL, if there is one.
    pub(crate) fn known(&self, url: &UpstreamUrl) -> Option<KnownUpstream> {
        self.set.known(url)
    }

    /// What is known of each of them.
    pub(crate) fn all_known(&self) -> impl Iterator<Item = (&UpstreamUrl, KnownUpstream)> {
        self.set.all_known()
    }

    /// How each of them is.
    pub(crate) fn conditions(&self) -> Vec<UpstreamCondition> {
        self.set.conditions().collect()
    }

    /// Sends a request to one of them.
    pub(crate) async fn ask(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Problem> {
        self.set.ask(asked).await
    }
}

impl OnDemand {
    /// None so far.
    ///
    /// # Errors
    /// When they cannot be as the configuration says.
    pub(crate) fn new(
        scheme: UpstreamScheme,
        config: &Options,
        parts: &LeadParts,
    ) -> Result<Self, UpstreamError> {
        let cache = UpstreamCache::new(scheme, &options(config, parts), &parts.shared)?;
        Ok(Self {
            made_of: (scheme, config.clone()),
            cache: Arc::new(cache),
        })
    }

    /// Begins to tend them. Must be called within a runtime.
    pub(crate) fn tend(&self) -> Tending {
        let cache = Arc::clone(&self.cache);
        Arc::new(Owned::spawn("upstream", async move { cache.tend().await }))
    }

    /// Whether it is what this would make.
    pub(crate) fn is_of(&self, action: &RouteAction) -> bool {
        let RouteAction::Template(template, options) = action else {
            return false;
        };
        self.made_of.0 == template.base().scheme() && self.made_of.1 == *options
    }

    /// The upstream with this URL.
    pub(crate) fn get(&self, url: UpstreamUrl) -> Arc<Upstream> {
        self.cache.get(url)
    }
}

fn options(options: &Options, parts: &LeadParts) -> UpstreamOptions {
    let tls = options.tls.as_ref();
    let tls = tls.map(|tls| UpstreamTls {
        roots: tls.roots.clone(),
        server_name: tls.server_name.as_deref().map(str::to_owned),
        identity: tls.identity.clone(),
        insecure: tls.insecure,
    });
    UpstreamOptions {
        tls: tls.unwrap_or_default(),
        connect_timeout: options.connect_timeout,
        head_timeout: options.head_timeout,
        idle_timeout: options.idle_timeout,
        max_body: options.max_body,
        idle_pool: parts.idle_pool,
    }
}

fn health(options: &HealthOptions) -> HealthSettings {
    HealthSettings {
        path: options.path.clone(),
        host: options.host.clone(),
        interval: options.interval,
        timeout: options.timeout,
        unhealthy_after: options.unhealthy_after,
        healthy_after: options.healthy_after,
    }
}
