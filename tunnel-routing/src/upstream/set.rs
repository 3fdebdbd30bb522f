//! The upstreams of one route.
//!
//! ```text
//!   request ─▶ forward ─▶ balance ─▶ upstream ── failed untouched ─▶ another
//!                            ▲ failures, successes
//!   supervise ─▶ health ─────┘
//! ```
//!
//! In: a request that the route sends here. Out: the response of one of them, or the [`Problem`]. With a single
//! upstream there is no balancing.

use std::sync::Arc;

use http::Response;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tunnel_proto::problem::{Fault, Hop, Problem, Reason};

use super::balance::{Balance, MemberState};
use super::destination::Destination;
use super::forward::ForwardError;
use super::health::{self, Health};
use super::settings::{HealthOptions, UpstreamError, UpstreamShared, UpstreamsConfig, WEIGHT_MAX};
use super::tls::TlsOffers;
use super::{LastDial, RoutedRequest, Upstream, UpstreamBody, tls_for};
use crate::url::{UpstreamScheme, UpstreamUrl};

/// The upstreams of one route.
pub(crate) struct UpstreamSet {
    config: UpstreamsConfig,
    members: Arc<Members>,
    health: Option<Arc<HealthOptions>>,
}

struct Members {
    upstreams: Vec<Arc<Upstream>>,
    balance: Balance,
}

/// The condition of an upstream, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamCondition {
    /// Not connected to so far.
    Unknown,
    /// The last dial succeeded.
    Up,
    /// The last dial failed.
    Unreachable,
    /// Passed over for a while, after failures in a row.
    Ejected,
    /// Its health checks fail.
    Unhealthy,
}

impl UpstreamCondition {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Unreachable => "unreachable",
            Self::Ejected => "ejected",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// What a set knows of an upstream, for the set of another route or table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpstreamState {
    member: MemberState,
    last_dial: LastDial,
}

impl UpstreamSet {
    /// The upstreams of a route. `state` gives what sets before this one know of an upstream, so that after a reload
    /// no request goes to one that is known to be down. Only what this set can revise is taken over: health with
    /// checks, ejection with its setting.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub(crate) fn new(
        config: &UpstreamsConfig,
        shared: &Arc<UpstreamShared>,
        state: impl Fn(&UpstreamUrl) -> Option<UpstreamState>,
    ) -> Result<Self, UpstreamError> {
        let UpstreamsConfig {
            members, options, ..
        } = config;
        if members.is_empty() {
            return Err(UpstreamError::NoUpstream);
        }
        let weights = members.iter().map(|member| member.weight);
        if !weights
            .clone()
            .all(|weight| (1..=WEIGHT_MAX).contains(&weight))
        {
            return Err(UpstreamError::Weight);
        }
        let urls = members.iter().map(|member| &member.url);
        let https = urls
            .clone()
            .find(|url| url.scheme() == UpstreamScheme::Https);
        let tls = https.map(|url| tls_for(url.scheme(), url, options));
        let tls: Option<TlsOffers> = tls.transpose()?.flatten();
        let upstream = |url: &UpstreamUrl| {
            let destination = Destination::new(url.clone());
            Arc::new(Upstream::with_tls(
                destination,
                tls.clone(),
                options,
                shared,
            ))
        };
        // A single upstream gets all requests, whatever became of the last ones.
        let ejection = config.ejection.filter(|_| members.len() > 1);
        let balance = Balance::new(weights, ejection, Instant::now());
        let upstreams: Vec<_> = urls.map(upstream).collect();
        for (index, upstream) in upstreams.iter().enumerate() {
            if let Some(state) = state(upstream.url()) {
                balance.restore(index, &state.member, config.health.is_some());
                upstream.restore(state.last_dial);
            }
        }
        Ok(Self {
            members: Arc::new(Members { upstreams, balance }),
            health: config.health.clone().map(Arc::new),
            config: config.clone(),
        })
    }

    /// Whether a set made from `config` would be like this one.
    pub(crate) fn is_from(&self, config: &UpstreamsConfig) -> bool {
        self.config == *config
    }

    /// Sends a request to the next upstream and waits for the head of its response. While a request has certainly not
    /// been acted on, the other upstreams are tried, each once; when that is unknown but a repetition is harmless, one
    /// other.
    pub(crate) async fn forward(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        match &self.members.upstreams[..] {
            [one] => one.forward(request).await,
            _ => self.members.forward(request).await,
        }
    }

    /// Supervises all upstreams and runs their health checks, for as long as it is polled.
    pub(crate) async fn supervise(&self) {
        let mut tasks = JoinSet::new();
        for (index, upstream) in self.members.upstreams.iter().enumerate() {
            let upstream = Arc::clone(upstream);
            tasks.spawn(async move { upstream.supervise().await });
            if let Some(health) = &self.health {
                let (members, health) = (Arc::clone(&self.members), Arc::clone(health));
                tasks.spawn(async move { members.check_health(index, &health).await });
            }
        }
        // None of the tasks ends by itself: one that does is a defect, and the others go on.
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "an upstream is no longer supervised");
            }
        }
        std::future::pending().await
    }

    /// The state of the upstream with this URL, if there is one.
    pub(crate) fn state(&self, url: &UpstreamUrl) -> Option<UpstreamState> {
        let mut all = self.states();
        all.find_map(|(one, state)| (one == url).then_some(state))
    }

    /// The state of each upstream.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&UpstreamUrl, UpstreamState)> {
        let all = self.members.upstreams.iter().enumerate();
        all.map(|(index, upstream)| {
            let state = UpstreamState {
                member: self.members.balance.state(index),
                last_dial: upstream.last_dial(),
            };
            (upstream.url(), state)
        })
    }

    /// The condition of each upstream.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = UpstreamCondition> {
        let now = Instant::now();
        let all = self.members.upstreams.iter().enumerate();
        all.map(move |(index, upstream)| {
            if self.members.balance.is_unhealthy(index) {
                UpstreamCondition::Unhealthy
            } else if self.members.balance.is_ejected(index, now) {
                UpstreamCondition::Ejected
            } else {
                match upstream.last_dial() {
                    LastDial::None => UpstreamCondition::Unknown,
                    LastDial::Succeeded => UpstreamCondition::Up,
                    LastDial::Failed => UpstreamCondition::Unreachable,
                }
            }
        })
    }
}

impl Members {
    async fn forward(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        // There is at least one member.
        let now = Instant::now();
        let first = self.balance.next(&[], now).unwrap_or_default();
        // `next` prefers upstreams that are not out: if it returns one that is, all are.
        let are_all_out = self.balance.is_out(first, now);
        match self.forward_to(first, request, now).await {
            Ok(response) => Ok(response),
            Err(failed) if !failed.may_try_another => Err(failed.problem),
            Err(failed) => {
                Box::pin(self.forward_to_others(first, are_all_out, failed, request)).await
            }
        }
    }

    /// Tries the other upstreams, each once, after `first` has failed. One that is out is tried only as the first
    /// alternative, or if all were out from the start, since some may be well again.
    async fn forward_to_others(
        &self,
        first: usize,
        are_all_out: bool,
        mut failed: ForwardError,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let mut tried = vec![first];
        loop {
            let now = Instant::now();
            let next = self.balance.next(&tried, now).filter(|next| {
                // An upstream that is out is better than none, but not worth the time of a dial after others.
                are_all_out || tried.len() == 1 || !self.balance.is_out(*next, now)
            });
            let Some(next) = next else {
                return Err(self.none_reached(tried.len(), &failed.problem));
            };
            tracing::debug!(problem = %failed.problem, "another upstream is tried");
            let was_untouched = failed.is_untouched;
            failed = match self.forward_to(next, request, now).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            if !(was_untouched && failed.is_untouched && failed.may_try_another) {
                return Err(failed.problem);
            }
            tried.push(next);
        }
    }

    /// The problem when none of the `tried` upstreams was reached; `last` is that of the last one tried.
    fn none_reached(&self, tried: usize, last: &Problem) -> Problem {
        let detail = format!(
            "tried {tried} of the route's {} upstreams, and none can be reached: {}",
            self.upstreams.len(),
            last.detail()
        );
        Problem::new(Hop::Client, Reason::UpstreamsDown, detail)
    }

    /// Tries one upstream, picked at this time, and records the result for balancing.
    async fn forward_to(
        &self,
        index: usize,
        request: &mut RoutedRequest,
        picked: Instant,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let upstream = &self.upstreams[index];
        let result = upstream.try_forward(request).await;
        match &result {
            Ok(_) => self.balance.on_success(index, picked),
            Err(failed) if is_failure(&failed.problem) && !failed.is_shared => {
                if let Some(out) = self.balance.on_failure(index, Instant::now()) {
                    tracing::warn!(
                        upstream = %upstream.url(),
                        ?out,
                        problem = %failed.problem,
                        "an upstream failed too often, and is passed over for a while"
                    );
                }
            }
            Err(_) => {}
        }
        result
    }

    async fn check_health(&self, index: usize, settings: &HealthOptions) {
        let upstream = &self.upstreams[index];
        let mut health = Health::new(self.balance.is_unhealthy(index));
        health::keep_checking(upstream, settings, |checked| {
            let changed = health.on_checked(checked.is_ok(), settings);
            let Some(is_unhealthy) = changed else {
                return;
            };
            self.balance.set_unhealthy(index, is_unhealthy);
            let upstream = upstream.url();
            match checked {
                Ok(()) => tracing::info!(%upstream, "an upstream is healthy again"),
                Err(error) => tracing::warn!(%upstream, error, "an upstream is unhealthy"),
            }
        })
        .await;
    }
}

/// Whether a problem counts as a failure of the upstream. A refused upgrade does not.
fn is_failure(problem: &Problem) -> bool {
    problem.reason().fault() == Fault::Upstream && problem.reason() != Reason::UpgradeFailed
}
