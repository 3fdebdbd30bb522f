//! The platform itself is asked who a token is.
//!
//! One POST for each question, answered by account, runtime, what it may use and for how long that
//! holds. Questions are bounded in number, each has a deadline, two about one token become one, and an
//! answer is used again for a moment. While the platform is away ([`breaker`]), tokens that it called
//! good go on for a set time, and others are told to come back. An answer that cannot be used is a
//! matter of its token alone: one that was good goes on as if the platform were away for it, any other
//! is refused.

mod answer;
mod breaker;
mod memory;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
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
use tunnel_proto::handshake::Greeting;

use self::answer::{Answer, PlatformReply};
use self::breaker::{Attempt, Breaker};
use self::memory::{Approval, Memory, No};
use super::credential::{CredentialId, CredentialKind};
use super::https::HttpsClient;
use super::refusal::AuthRefusal;
use super::{Judged, Part};
use crate::allowance::Allowance;
use crate::config::PlatformSettings;
use crate::token::{TokenHash, sha256};

/// Largest answer, in bytes: some thousand networks.
const ANSWER_BYTES: usize = 64 * 1024;

/// When a platform that does not say how long its answer holds is asked again.
const RENEW: Duration = Duration::from_secs(15 * 60);

/// When a session that goes on without the platform asks again.
const RENEW_AWAY: Duration = Duration::from_secs(30);

/// Lines about questions without a yes or a no: those of a slip of the platform at once, then one in a second.
/// Strangers can have any number of tokens asked about.
const FAULT_LINES: u32 = 20;
const FAULT_LINE_EACH: Duration = Duration::from_secs(1);

const AWAY: AuthRefusal = AuthRefusal::AuthUnavailable("the platform does not answer");

/// Asks the platform.
pub(super) struct PlatformJudge {
    settings: PlatformSettings,
    client: HttpsClient,
    own_token: ArcSwapOption<PlatformToken>,
    places: Semaphore,
    breaker: Mutex<Breaker>,
    memory: Mutex<Memory>,
    flights: Mutex<Flights>,
    /// Of lines about questions that were answered with neither yes nor no.
    lines: Allowance,
}

/// The bearer token by which the platform knows this server.
#[derive(Clone)]
pub struct PlatformToken(HeaderValue);

/// What is asked: a token, and what the tunnel client says of itself.
pub(super) struct Question {
    token: SecretString,
    sha256: TokenHash,
    instance: String,
    version: String,
    session: u32,
    peer: SocketAddr,
}

/// A question as it travels.
#[derive(Serialize)]
struct QuestionBody<'a> {
    token: &'a str,
    instance: &'a str,
    version: &'a str,
    session: u32,
    peer: SocketAddr,
}

/// What the platform says of a token, or what is left of it.
#[derive(Debug, Clone)]
enum Verdict {
    Yes(Approval),
    No(No),
    /// Neither; the refusal is for a token that was not good before.
    Unclear(No),
    /// It cannot be asked.
    Away,
    /// Too many are asking.
    Busy,
}

/// One question that several requests wait for. The one that holds the lock asks; the others find the verdict.
type Flight = sync::Mutex<Option<Verdict>>;

/// The questions whose answer is awaited, each with the number of waiters.
type Flights = HashMap<TokenHash, (usize, Arc<Flight>)>;

/// One waiter for a question; counted until dropped.
struct FlightSeat<'a> {
    flights: &'a Mutex<Flights>,
    sha256: TokenHash,
    flight: Arc<Flight>,
}

impl PlatformToken {
    /// From a file's text; `None` when there is no token in it.
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

impl Question {
    pub(super) fn new(token: &str, greeting: &Greeting, peer: SocketAddr) -> Self {
        Self {
            token: token.into(),
            sha256: sha256(token),
            instance: greeting.instance.id().as_str().to_owned(),
            version: greeting.version.clone(),
            session: greeting.session_number,
            peer,
        }
    }
}

impl PlatformJudge {
    pub(super) fn new(
        settings: PlatformSettings,
        client: HttpsClient,
        own_token: Option<PlatformToken>,
    ) -> Self {
        Self {
            places: Semaphore::new(settings.concurrency),
            settings,
            client,
            own_token: ArcSwapOption::from_pointee(own_token),
            breaker: Mutex::default(),
            memory: Mutex::default(),
            flights: Mutex::default(),
            lines: Allowance::new(FAULT_LINES, FAULT_LINE_EACH),
        }
    }

    /// From now on the platform knows this server by this token.
    pub(super) fn replace_token(&self, token: PlatformToken) {
        self.own_token.store(Some(Arc::new(token)));
    }

    /// Whether the last question had no answer.
    pub(super) fn is_away(&self) -> bool {
        self.breaker.lock().away_since().is_some()
    }

    /// Questions whose answer is awaited.
    pub(super) fn questions(&self) -> usize {
        self.flights.lock().len()
    }

    /// Answers that are remembered.
    pub(super) fn answers_known(&self) -> usize {
        self.memory.lock().len()
    }

    /// The runtime that the platform says the token is for.
    pub(super) async fn judge(&self, question: &Arc<Question>) -> Result<Judged, AuthRefusal> {
        match self.verdict(question).await {
            Verdict::Yes(good) => Ok(self.good(question, &good)),
            Verdict::No(no) => Err(no.refusal),
            Verdict::Unclear(no) => self.without_platform(question).map_err(|_| no.refusal),
            Verdict::Away => self.without_platform(question),
            Verdict::Busy => Err(AuthRefusal::AuthBusy),
        }
    }

    async fn verdict(&self, question: &Question) -> Verdict {
        let cached = self
            .memory
            .lock()
            .fresh(&question.sha256, self.settings.cache);
        if let Some(verdict) = cached {
            return verdict;
        }
        let seat = self.seat(question.sha256);
        // Twice, since the request before this one may wait for a permit first.
        let Ok(mut verdict) = timeout(2 * self.client.deadline(), seat.flight.lock()).await else {
            return Verdict::Busy;
        };
        // If the request that asked was dropped, the next asks anew.
        if let Some(verdict) = &*verdict {
            return verdict.clone();
        }
        let asked = self.ask(question).await;
        verdict.insert(asked).clone()
    }

    async fn ask(&self, question: &Question) -> Verdict {
        let deadline = self.client.deadline();
        let Ok(Ok(_place)) = timeout(deadline, self.places.acquire()).await else {
            return Verdict::Busy;
        };
        let Some(attempt) = Attempt::begin(&self.breaker) else {
            return Verdict::Away;
        };
        let Some(request) = self.request(question) else {
            return Verdict::Away;
        };
        let token = question.token.expose_secret();
        let reply = PlatformReply::of(self.client.ask(request, ANSWER_BYTES).await, token);
        let url = &self.settings.url;
        match reply {
            PlatformReply::Nothing(_) => attempt.failed(),
            // Any answer shows that it is there.
            _ => attempt.succeeded(),
        }
        match reply {
            PlatformReply::Yes(answer) => {
                let good = Approval::new(answer);
                self.memory.lock().good(question.sha256, good.clone());
                Verdict::Yes(good)
            }
            PlatformReply::No(told) => self.refused(question, AuthRefusal::PlatformRefused(told)),
            PlatformReply::Rejected(told) => {
                self.refused(question, AuthRefusal::PlatformRejected(told))
            }
            PlatformReply::Busy(status) => {
                if let Some(left_out) = self.lines.take() {
                    tracing::warn!(%url, %status, left_out, "the platform has no time to say who a token is");
                }
                self.unclear(question, AuthRefusal::AuthBusy)
            }
            PlatformReply::Unclear(fault) => {
                if let Some(left_out) = self.lines.take() {
                    tracing::warn!(%url, fault, left_out, "the platform's answer about a token cannot be used: mend the platform");
                }
                self.unclear(question, AuthRefusal::PlatformUnclear(fault))
            }
            PlatformReply::Nothing(fault) => {
                if let Some(left_out) = self.lines.take() {
                    tracing::warn!(%url, fault, left_out, "the platform cannot be asked who a token is");
                }
                Verdict::Away
            }
        }
    }

    fn refused(&self, question: &Question, refusal: AuthRefusal) -> Verdict {
        let no = No::new(refusal);
        self.memory.lock().refused(question.sha256, no.clone());
        Verdict::No(no)
    }

    /// Neither yes nor no: the refusal is for a token that was not good before.
    fn unclear(&self, question: &Question, refusal: AuthRefusal) -> Verdict {
        let no = No::new(refusal);
        self.memory.lock().unclear(question.sha256, no.clone());
        Verdict::Unclear(no)
    }

    fn request(&self, question: &Question) -> Option<Request<Full<bytes::Bytes>>> {
        let asked = QuestionBody {
            token: question.token.expose_secret(),
            instance: &question.instance,
            version: &question.version,
            session: question.session,
            peer: question.peer,
        };
        let mut request = Request::post(self.settings.url.uri())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json");
        if let Some(token) = &*self.own_token.load() {
            request = request.header(header::AUTHORIZATION, token.0.clone());
        }
        let json = serde_json::to_vec(&asked).ok()?;
        request.body(Full::from(json)).ok()
    }

    fn good(&self, question: &Arc<Question>, good: &Approval) -> Judged {
        let holds = good.answer.holds;
        let expires = holds.and_then(|holds| good.at.checked_add(holds));
        let renew_at = good.at + spread(holds.unwrap_or(RENEW), question);
        Judged {
            renewable_end: expires,
            ..judged(question, &good.answer, expires, renew_at)
        }
    }

    /// A token goes on that was good when the platform went away, or began to say neither yes nor no about
    /// it, for as long as is set.
    fn without_platform(&self, question: &Arc<Question>) -> Result<Judged, AuthRefusal> {
        let away_since = self.breaker.lock().away_since();
        let memory = self.memory.lock();
        let good = memory.known(&question.sha256).ok_or(AWAY)?;
        let away_since = away_since.into_iter().chain(good.unclear_since());
        let away_since = away_since.min().ok_or(AWAY)?;
        let left = self.settings.outage.saturating_sub(away_since.elapsed());
        if left.is_zero() || !good.holds_at(away_since) {
            return Err(AWAY);
        }
        let now = SystemTime::now();
        let renew_at = now + spread(RENEW_AWAY.min(left), question);
        let expires = now.checked_add(left);
        // That the platform is still away then puts off nothing.
        Ok(judged(question, &good.answer, expires, renew_at))
    }

    fn seat(&self, sha256: TokenHash) -> FlightSeat<'_> {
        let mut flights = self.flights.lock();
        let (seats, flight) = flights.entry(sha256).or_default();
        *seats += 1;
        FlightSeat {
            flights: &self.flights,
            sha256,
            flight: flight.clone(),
        }
    }
}

impl Drop for FlightSeat<'_> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        // Counted here and not by the flight's own count, which falls only after the lock is free: of two
        // that leave at once, neither would see that it is the last.
        if let Entry::Occupied(mut flight) = flights.entry(self.sha256) {
            let (seats, _) = flight.get_mut();
            *seats -= 1;
            if *seats == 0 {
                flight.remove();
            }
        }
    }
}

fn judged(
    question: &Arc<Question>,
    answer: &Answer,
    expires: Option<SystemTime>,
    renew_at: SystemTime,
) -> Judged {
    let token = question.token.expose_secret();
    Judged {
        named: answer.named.clone(),
        part: Part {
            id: CredentialId::of_token(CredentialKind::Platform, answer.id.as_deref(), token),
            issued: None,
            expires,
            listed: None,
            signed_with: None,
            chain: None,
        },
        question: Some(question.clone()),
        renew_at: Some(renew_at),
        renewable_end: None,
    }
}

/// Seven to nine tenths of the time: before it is over, and not all tokens at once.
fn spread(time: Duration, question: &Question) -> Duration {
    let draw = question.sha256.first().copied().unwrap_or_default();
    time.mul_f64(0.7 + 0.2 * f64::from(draw) / 255.0)
}

#[cfg(test)]
mod tests;
