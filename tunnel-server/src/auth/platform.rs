//! Verifies tokens by asking the platform over HTTPS (`--auth-url`).
//!
//! Each query is one POST. The answer has the account, the runtime, its limits and how long the answer is valid. The
//! number of open queries is bounded, each has a deadline, concurrent queries about one token become one, and an answer
//! is cached for a moment. While the platform is unreachable ([`breaker`]), tokens that it has approved stay valid for
//! `--auth-outage`, and other clients are refused for now. An answer that is missing or cannot be used concerns its token
//! alone: an approved token is treated as if the platform were unreachable, any other is refused.

mod answer;
mod breaker;
mod cache;
mod shares;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use http::{HeaderValue, Request, header};
use http_body_util::Full;
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::sync::{self, Semaphore};
use tokio::time::timeout;
use tunnel_http::permits::network;
use tunnel_proto::handshake::Greeting;

use self::answer::{Answer, PlatformReply};
use self::breaker::{Attempt, Breaker, Failure, Subject};
use self::cache::{Approval, DecisionCache, Denial};
use self::shares::Shares;
use super::credential::{CredentialId, CredentialKind};
use super::refusal::AuthRefusal;
use super::{Verified, VerifiedCredential};
use crate::allowance::Allowance;
use crate::client_address::ClientAddress;
use crate::config::PlatformSettings;
use crate::token::{TokenHash, sha256};
use tunnel_ops::https::HttpsClient;

/// Largest answer, in bytes. Enough for a list of some thousand networks.
const ANSWER_BYTES: usize = 64 * 1024;

/// Time to the next query if an answer does not say how long it is valid.
const RENEW: Duration = Duration::from_secs(15 * 60);

/// Time to the next query of a session while the platform is unreachable.
const RENEW_UNREACHABLE: Duration = Duration::from_secs(30);

/// Log lines about queries without an approval or a denial: the first 20 at once, then one per second, since any client
/// can cause any number of queries.
const FAULT_LINES: u32 = 20;
const FAULT_LINE_EACH: Duration = Duration::from_secs(1);

const UNREACHABLE: AuthRefusal = AuthRefusal::AuthUnavailable("the platform does not answer");

/// Verifies tokens by asking the platform.
pub(super) struct PlatformVerifier {
    settings: PlatformSettings,
    client: HttpsClient,
    own_token: ArcSwapOption<PlatformToken>,
    permits: Semaphore,
    shares: Shares,
    breaker: Mutex<Breaker>,
    cache: Mutex<DecisionCache>,
    open_queries: Mutex<OpenQueries>,
    /// Limits log lines about queries without an approval or a denial.
    lines: Allowance,
}

/// The bearer token by which this server authenticates to the platform.
#[derive(Clone)]
pub struct PlatformToken(HeaderValue);

/// A query: a token, and the tunnel client's description of itself.
pub(super) struct PlatformQuery {
    token: SecretString,
    sha256: TokenHash,
    instance: String,
    version: String,
    session: u32,
    peer: ClientAddress,
}

/// The JSON body of a query.
#[derive(Serialize)]
struct QueryBody<'a> {
    token: &'a str,
    instance: &'a str,
    version: &'a str,
    session: u32,
    peer: ClientAddress,
}

/// The decision about a token.
#[derive(Debug, Clone)]
enum Decision {
    Approved(Approval),
    Denied(Denial),
    /// The answer is missing or cannot be used. The denial is for a token that was not approved before.
    Inconclusive(Denial),
    /// The platform is unreachable, for any token.
    Unreachable,
    /// Too many queries are open.
    Busy,
}

/// One query that several clients wait for. The one that holds the lock sends it; the others find the decision.
type SharedQuery = sync::Mutex<Option<Decision>>;

/// The open queries, each with the number of waiters.
type OpenQueries = HashMap<TokenHash, (usize, Arc<SharedQuery>)>;

/// One waiter for a query; counted until dropped.
struct Waiter<'a> {
    open_queries: &'a Mutex<OpenQueries>,
    sha256: TokenHash,
    shared: Arc<SharedQuery>,
}

impl PlatformToken {
    /// Parses a file's text; `None` if it is not one token of printable ASCII characters without spaces.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }
}

impl std::fmt::Debug for PlatformToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlatformToken").finish_non_exhaustive()
    }
}

impl PlatformQuery {
    pub(super) fn new(token: &str, greeting: &Greeting, peer: ClientAddress) -> Self {
        Self {
            token: token.into(),
            sha256: sha256(token),
            instance: greeting.instance.id().to_string(),
            version: greeting.version.clone(),
            session: greeting.session_number,
            peer,
        }
    }
}

impl PlatformVerifier {
    pub(super) fn new(
        settings: PlatformSettings,
        client: HttpsClient,
        own_token: Option<PlatformToken>,
    ) -> Self {
        Self {
            permits: Semaphore::new(settings.concurrency),
            shares: Shares::new(settings.concurrency),
            settings,
            client,
            own_token: ArcSwapOption::from_pointee(own_token),
            breaker: Mutex::default(),
            cache: Mutex::default(),
            open_queries: Mutex::default(),
            lines: Allowance::new(FAULT_LINES, FAULT_LINE_EACH),
        }
    }

    /// Replaces the token by which this server authenticates to the platform.
    pub(super) fn replace_token(&self, token: PlatformToken) {
        self.own_token.store(Some(Arc::new(token)));
    }

    /// Whether the last query was not answered.
    pub(super) fn is_unreachable(&self) -> bool {
        self.breaker.lock().has_failed()
    }

    /// The number of open queries.
    pub(super) fn open_queries(&self) -> usize {
        self.open_queries.lock().len()
    }

    /// The number of cached answers.
    pub(super) fn cached_answers(&self) -> usize {
        self.cache.lock().len()
    }

    /// Verifies a token.
    ///
    /// # Errors
    /// When the platform denies it, or its answer is missing or cannot be used and the token was not approved before.
    pub(super) async fn verify(&self, query: &Arc<PlatformQuery>) -> Result<Verified, AuthRefusal> {
        match self.decision(query).await {
            Decision::Approved(approval) => Ok(Self::approved(query, &approval)),
            Decision::Denied(denial) => Err(denial.refusal),
            Decision::Inconclusive(denial) => {
                self.without_platform(query).map_err(|_| denial.refusal)
            }
            Decision::Unreachable => self.without_platform(query),
            Decision::Busy => Err(AuthRefusal::AuthBusy),
        }
    }

    async fn decision(&self, query: &PlatformQuery) -> Decision {
        let cached = self.cache.lock().fresh(&query.sha256, self.settings.cache);
        if let Some(decision) = cached {
            return decision;
        }
        let waiter = self.join_query(query.sha256);
        // Twice the deadline, because the query before this one may wait for a permit first.
        let Ok(mut decision) = timeout(2 * self.client.deadline(), waiter.shared.lock()).await
        else {
            return Decision::Busy;
        };
        // If the client that sent the query has gone, the next one sends it again.
        if let Some(decision) = &*decision {
            return decision.clone();
        }
        let new = self.ask(query).await;
        decision.insert(new).clone()
    }

    async fn ask(&self, query: &PlatformQuery) -> Decision {
        let network = network(query.peer.ip);
        let subject = match self.cache.lock().last_approval(&query.sha256) {
            Some(_) => Subject::Approved(query.sha256),
            None => Subject::Stranger(network),
        };
        let share = match subject {
            Subject::Approved(_) => None,
            Subject::Stranger(network) => Some(self.shares.join(network)),
        };
        let permits = async {
            let of_share = match &share {
                Some(share) => share.permit().await,
                None => None,
            };
            Some((of_share, self.permits.acquire().await.ok()?))
        };
        let Ok(Some(_permits)) = timeout(self.client.deadline(), permits).await else {
            return Decision::Busy;
        };
        let Some(attempt) = Attempt::begin(&self.breaker, subject) else {
            return Decision::Unreachable;
        };
        let Some(request) = self.request(query) else {
            return Decision::Unreachable;
        };
        let token = query.token.expose_secret();
        let reply = PlatformReply::of(self.client.send(request, ANSWER_BYTES).await, token);
        let url = &self.settings.url;
        match reply {
            PlatformReply::NoConnection(_) => attempt.failed(Failure::NoConnection),
            PlatformReply::NoAnswer(_) => attempt.failed(Failure::NoAnswer),
            // Any answer shows that the platform is reachable.
            _ => attempt.succeeded(),
        }
        match reply {
            PlatformReply::Approved(answer) => {
                let approval = Approval::new(answer);
                self.cache
                    .lock()
                    .insert_approval(query.sha256, approval.clone());
                Decision::Approved(approval)
            }
            PlatformReply::Denied(reason) => self.deny(query, AuthRefusal::PlatformRefused(reason)),
            PlatformReply::Rejected(reason) => {
                self.deny(query, AuthRefusal::PlatformRejected(reason))
            }
            PlatformReply::Busy(status) => {
                if let Some(left_out) = self.lines.take() {
                    tracing::warn!(%url, %status, left_out, "the platform limits the rate of token queries");
                }
                self.inconclusive(query, AuthRefusal::AuthBusy)
            }
            PlatformReply::Unusable(fault) => {
                if let Some(left_out) = self.lines.take() {
                    tracing::warn!(%url, fault, left_out, "the platform's answer about a token cannot be used: repair the platform");
                }
                self.inconclusive(query, AuthRefusal::PlatformUnclear(fault))
            }
            PlatformReply::NoAnswer(fault) => {
                self.log_no_answer(&fault);
                self.inconclusive(query, UNREACHABLE)
            }
            PlatformReply::NoConnection(fault) => {
                self.log_no_answer(&fault);
                Decision::Unreachable
            }
        }
    }

    fn log_no_answer(&self, fault: &str) {
        if let Some(left_out) = self.lines.take() {
            let url = &self.settings.url;
            tracing::warn!(%url, fault, left_out, "the platform does not answer a token query");
        }
    }

    fn deny(&self, query: &PlatformQuery, refusal: AuthRefusal) -> Decision {
        let denial = Denial::new(refusal);
        self.cache
            .lock()
            .insert_denial(query.sha256, denial.clone());
        Decision::Denied(denial)
    }

    /// Neither an approval nor a denial. The refusal is for a token that was not approved before.
    fn inconclusive(&self, query: &PlatformQuery, refusal: AuthRefusal) -> Decision {
        let denial = Denial::new(refusal);
        self.cache
            .lock()
            .insert_inconclusive(query.sha256, denial.clone());
        Decision::Inconclusive(denial)
    }

    fn request(&self, query: &PlatformQuery) -> Option<Request<Full<bytes::Bytes>>> {
        let body = QueryBody {
            token: query.token.expose_secret(),
            instance: &query.instance,
            version: &query.version,
            session: query.session,
            peer: query.peer,
        };
        let mut request = Request::post(self.settings.url.uri())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json");
        if let Some(token) = &*self.own_token.load() {
            request = request.header(header::AUTHORIZATION, token.0.clone());
        }
        let json = serde_json::to_vec(&body).ok()?;
        request.body(Full::from(json)).ok()
    }

    fn approved(query: &Arc<PlatformQuery>, approval: &Approval) -> Verified {
        let valid_for = approval.answer.valid_for;
        let expires = valid_for.and_then(|valid_for| approval.received_at.checked_add(valid_for));
        let renew_at = approval.received_at + spread(valid_for.unwrap_or(RENEW), query);
        Verified {
            renewable_end: expires,
            ..verified(query, &approval.answer, expires, renew_at)
        }
    }

    /// Accepts, for `--auth-outage`, a token that was approved when the platform became unreachable, or when its answers
    /// about the token began to be missing or unusable.
    fn without_platform(&self, query: &Arc<PlatformQuery>) -> Result<Verified, AuthRefusal> {
        let unreachable_since = self.breaker.lock().unreachable_since();
        let cache = self.cache.lock();
        let approval = cache.last_approval(&query.sha256).ok_or(UNREACHABLE)?;
        let unreachable_since = unreachable_since
            .into_iter()
            .chain(approval.unusable_since());
        let unreachable_since = unreachable_since.min().ok_or(UNREACHABLE)?;
        let left = self
            .settings
            .outage
            .saturating_sub(unreachable_since.elapsed());
        if left.is_zero() || !approval.is_valid_at(unreachable_since) {
            return Err(UNREACHABLE);
        }
        let now = SystemTime::now();
        let renew_at = now + spread(RENEW_UNREACHABLE.min(left), query);
        let expires = now.checked_add(left);
        // A renewal while the platform is unreachable does not postpone the expiry.
        Ok(verified(query, &approval.answer, expires, renew_at))
    }

    fn join_query(&self, sha256: TokenHash) -> Waiter<'_> {
        let mut open_queries = self.open_queries.lock();
        let (waiters, shared) = open_queries.entry(sha256).or_default();
        *waiters += 1;
        Waiter {
            open_queries: &self.open_queries,
            sha256,
            shared: shared.clone(),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut open_queries = self.open_queries.lock();
        // Counted explicitly. The reference count of the `Arc` falls only after this lock is released, so of two
        // waiters that leave at once neither would see that it is the last.
        if let Entry::Occupied(mut shared) = open_queries.entry(self.sha256) {
            let (waiters, _) = shared.get_mut();
            *waiters -= 1;
            if *waiters == 0 {
                shared.remove();
            }
        }
    }
}

fn verified(
    query: &Arc<PlatformQuery>,
    answer: &Answer,
    expires: Option<SystemTime>,
    renew_at: SystemTime,
) -> Verified {
    let token = query.token.expose_secret();
    Verified {
        named: answer.named.clone(),
        credential: VerifiedCredential {
            id: CredentialId::of_token(CredentialKind::Platform, answer.id.as_deref(), token),
            issued: None,
            expires,
            listed: None,
            signed_with: None,
            chain: None,
        },
        query: Some(query.clone()),
        renew_at: Some(renew_at),
        renewable_end: None,
    }
}

/// Seven to nine tenths of the time, so that tokens are renewed before it is over and not all at once.
fn spread(time: Duration, query: &PlatformQuery) -> Duration {
    let draw = query.sha256.first().copied().unwrap_or_default();
    time.mul_f64(0.7 + 0.2 * f64::from(draw) / 255.0)
}

#[cfg(test)]
mod tests;
