//! The upstreams of one route: one or several of the same.
//!
//! ```text
//!   exchange ─▶ ask ─▶ balance ─▶ upstream ── refused ─▶ another
//!                         ▲ failures, answers
//!   tend ─▶ health ───────┘
//! ```
//!
//! In: a request that the route sends here. Out: the response of one of them, or the [`Problem`]. A
//! route with one upstream asks it, and none of the rest is touched.

use std::sync::Arc;

use http::Response;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tunnel_proto::problem::{Fault, Hop, Problem, Reason};

use super::ask::Failed;
use super::balance::{Balance, Known, WEIGHT_MAX};
use super::destination::Destination;
use super::health::{self, Health, HealthSettings};
use super::settings::{UpstreamError, UpstreamOptions, UpstreamShared};
use super::tls::TlsOffers;
use super::{Asked, Reach, Upstream, UpstreamBody, tls_for};
use crate::url::{UpstreamScheme, UpstreamUrl};

pub(crate) use super::balance::EjectionSettings;

/// The upstreams of one route.
pub(crate) struct UpstreamSet {
    members: Arc<Members>,
    health: Option<Arc<HealthSettings>>,
}

struct Members {
    upstreams: Vec<Arc<Upstream>>,
    balance: Balance,
}

/// What is known of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamCondition {
    /// Nothing: it was not needed so far.
    Unknown,
    /// The last connection to it was made.
    Up,
    /// The last connection to it failed.
    Unreachable,
    /// It is left alone for a time, after failures in a row.
    Ejected,
    /// Its checks fail.
    Unhealthy,
}

#[cfg(test)]
impl UpstreamCondition {
    /// One word.
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

/// What one set knows of an upstream, for another that has it too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownUpstream {
    place: Known,
    reach: Reach,
}

impl UpstreamSet {
    /// A route's upstreams, each with its share. What is `known` of them, by their URLs, from sets before
    /// this one, is taken over, so that a reload never has anybody asked who is known to be dead. The
    /// settings need not be the same: those of this set take it back when they find otherwise, and what
    /// they never could is not taken over.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub(crate) fn new(
        members: Vec<(UpstreamUrl, u32)>,
        options: &UpstreamOptions,
        health: Option<HealthSettings>,
        ejection: Option<EjectionSettings>,
        shared: &Arc<UpstreamShared>,
        known: impl Fn(&UpstreamUrl) -> Option<KnownUpstream>,
    ) -> Result<Self, UpstreamError> {
        if members.is_empty() {
            return Err(UpstreamError::NoUpstream);
        }
        if members
            .iter()
            .any(|(_, weight)| !(1..=WEIGHT_MAX).contains(weight))
        {
            return Err(UpstreamError::Weight);
        }
        let is_https = |(url, _): &(UpstreamUrl, u32)| url.scheme() == UpstreamScheme::Https;
        let scheme = members.iter().find(|member| is_https(member));
        let tls = scheme.map(|(url, _)| tls_for(url.scheme(), url, options));
        let tls: Option<TlsOffers> = tls.transpose()?.flatten();
        let (urls, weights): (Vec<_>, Vec<u32>) = members.into_iter().unzip();
        let upstream = |url| {
            let destination = Destination::new(url);
            Arc::new(Upstream::with_tls(
                destination,
                tls.clone(),
                options,
                shared,
            ))
        };
        // One alone is asked in any case, and nobody counts how it does.
        let ejection = ejection.filter(|_| urls.len() > 1);
        let balance = Balance::new(weights, ejection, Instant::now());
        let upstreams: Vec<_> = urls.into_iter().map(upstream).collect();
        for (index, upstream) in upstreams.iter().enumerate() {
            if let Some(known) = known(upstream.url()) {
                balance.learn(index, &known.place, health.is_some());
                upstream.learn(known.reach);
            }
        }
        Ok(Self {
            members: Arc::new(Members { upstreams, balance }),
            health: health.map(Arc::new),
        })
    }

    /// Sends a request to the one whose turn it is, and waits for the head of its response. As long as
    /// nobody has acted on it for sure, the others are asked, each once; one other when it does no harm
    /// to ask twice.
    pub(crate) async fn ask(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Problem> {
        match &self.members.upstreams[..] {
            [one] => one.ask(asked).await,
            _ => self.members.ask(asked).await,
        }
    }

    /// Tends all upstreams, and checks them if that is wanted, for as long as it is polled.
    pub(crate) async fn tend(&self) {
        let mut tasks = JoinSet::new();
        for (index, upstream) in self.members.upstreams.iter().enumerate() {
            let tended = Arc::clone(upstream);
            tasks.spawn(async move { tended.tend().await });
            if let Some(health) = &self.health {
                let (members, health) = (Arc::clone(&self.members), Arc::clone(health));
                tasks.spawn(async move { members.keep_checking(index, &health).await });
            }
        }
        // None ends by itself, so that this is a fault of ours; the others go on.
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "an upstream is not tended any more");
            }
        }
        std::future::pending().await
    }

    /// What is known of the one with this URL, if there is one.
    pub(crate) fn known(&self, url: &UpstreamUrl) -> Option<KnownUpstream> {
        let mut all = self.all_known();
        all.find_map(|(one, known)| (one == url).then_some(known))
    }

    /// What is known of each of them.
    pub(crate) fn all_known(&self) -> impl Iterator<Item = (&UpstreamUrl, KnownUpstream)> {
        let all = self.members.upstreams.iter().enumerate();
        all.map(|(index, upstream)| {
            let known = KnownUpstream {
                place: self.members.balance.known(index),
                reach: upstream.reach(),
            };
            (upstream.url(), known)
        })
    }

    /// How each of them is.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = UpstreamCondition> {
        let now = Instant::now();
        let all = self.members.upstreams.iter().enumerate();
        all.map(move |(index, upstream)| {
            if self.members.balance.is_unhealthy(index) {
                UpstreamCondition::Unhealthy
            } else if self.members.balance.is_ejected(index, now) {
                UpstreamCondition::Ejected
            } else {
                match upstream.reach() {
                    Reach::Unknown => UpstreamCondition::Unknown,
                    Reach::Reached => UpstreamCondition::Up,
                    Reach::Failed => UpstreamCondition::Unreachable,
                }
            }
        })
    }
}

impl Members {
    async fn ask(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Problem> {
        // There is always one.
        let now = Instant::now();
        let first = self.balance.next(&[], now).unwrap_or_default();
        let are_all_out = self.balance.is_out(first, now);
        match self.ask_one(first, asked, now).await {
            Ok(response) => Ok(response),
            Err(failed) if !failed.may_ask_another => Err(failed.problem),
            Err(failed) => Box::pin(self.ask_others(first, are_all_out, failed, asked)).await,
        }
    }

    /// Asks the others, after one has failed. Of those that are out one is asked, or all, each once, when
    /// there were no others to begin with: some of them may be well again.
    async fn ask_others(
        &self,
        first: usize,
        are_all_out: bool,
        mut failed: Failed,
        asked: &mut Asked,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let mut tried = vec![first];
        loop {
            let now = Instant::now();
            let next = self.balance.next(&tried, now).filter(|next| {
                // One that is out is better than none, but not worth the time of a dial after others.
                are_all_out || tried.len() == 1 || !self.balance.is_out(*next, now)
            });
            let Some(next) = next else {
                return Err(self.none_reached(&failed.problem));
            };
            tracing::debug!(problem = %failed.problem, "another upstream is asked");
            let was_untouched = failed.is_untouched;
            failed = match self.ask_one(next, asked, now).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            if !(was_untouched && failed.is_untouched && failed.may_ask_another) {
                return Err(failed.problem);
            }
            tried.push(next);
        }
    }

    /// Nobody is left to be asked, of whom none was reached; how the last one failed.
    fn none_reached(&self, last: &Problem) -> Problem {
        let detail = format!(
            "none of the route's {} upstreams can be reached: {}",
            self.upstreams.len(),
            last.detail()
        );
        Problem::new(Hop::Client, Reason::UpstreamsDown, detail)
    }

    /// Asks one whose turn came at this time, and takes note of how it did.
    async fn ask_one(
        &self,
        index: usize,
        asked: &mut Asked,
        picked: Instant,
    ) -> Result<Response<UpstreamBody>, Failed> {
        let upstream = &self.upstreams[index];
        let answered = upstream.try_ask(asked).await;
        match &answered {
            Ok(_) => self.balance.on_success(index, picked),
            Err(failed) if is_failure(&failed.problem) && !failed.is_known => {
                if let Some(out) = self.balance.on_failure(index, Instant::now()) {
                    tracing::warn!(
                        upstream = %upstream.url(),
                        ?out,
                        problem = %failed.problem,
                        "an upstream failed too often, and is left alone for a while"
                    );
                }
            }
            Err(_) => {}
        }
        answered
    }

    async fn keep_checking(&self, index: usize, settings: &HealthSettings) {
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

/// Whether a problem says that an upstream is not well; that it refuses an upgrade does not.
fn is_failure(problem: &Problem) -> bool {
    problem.reason().fault() == Fault::Upstream && problem.reason() != Reason::UpgradeFailed
}
