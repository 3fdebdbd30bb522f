//! The idle limit of the path: how long a connection without traffic lives.
//!
//! ```text
//!   15 s ├────┤ping                   a session is kept idle without pings, then pinged:
//!   30 s ├─────────┤ping              an answer proves that the path allows this time
//!   60 s ├──────────────× cut         a cut has a time; no answer means that it was earlier
//! ```
//!
//! The sessions run at once, so that the probe takes as long as the longest of them. The kernel's keepalives go on as
//! under any session: the limit is that of devices that do not count keepalives, which pings have to stay below.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::millis;
use tunnel_proto::session::{DEFAULT_PING_INTERVAL, Session};

use super::session::CheckSession;
use super::text::span;

/// The shortest idle time; each further one is twice as long.
const FIRST: Duration = Duration::from_secs(15);

/// Most sessions at once: what a server allows for a runtime, less the one of the check itself.
const SESSIONS: usize = 7;

/// The longest idle time that can be requested; a server ends a check after an hour.
pub(super) const LONGEST: Duration = Duration::from_secs(50 * 60);

/// The result of an idle probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IdleReport {
    /// The idle limit lies between these two; `None` if none was found.
    #[serde(rename = "limit_ms", serialize_with = "as_two_ms")]
    pub limit: Option<(Duration, Duration)>,
    /// The longest idle time after which a session still worked.
    #[serde(rename = "proven_ms", serialize_with = "as_ms")]
    pub proven: Duration,
    /// The advised time between pings: the default, or less if the limit requires it.
    #[serde(rename = "advised_ping_interval_ms", serialize_with = "as_ms")]
    pub advised: Duration,
}

/// Times of the measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Time without traffic after which a session counts as idle.
    pub(super) settled: Duration,
    /// Time-out of a ping.
    pub(super) answer: Duration,
    /// Time between two checks for traffic.
    pub(super) poll: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            settled: Duration::from_millis(1_500),
            answer: Duration::from_secs(15),
            poll: Duration::from_millis(100),
        }
    }
}

/// The outcome of a session that was kept idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleOutcome {
    /// It answered the ping.
    Alive,
    /// It was cut after this idle time.
    CutAfter(Duration),
    /// It did not answer the ping.
    Silent,
    /// The server ended it, which says nothing of the path.
    Ended(CloseReason),
}

/// The idle times to try, the longest last.
pub(super) fn times(longest: Duration) -> Vec<Duration> {
    let longest = longest.min(LONGEST);
    let doubled = (0..).map(|power| FIRST * (1_u32 << power));
    let mut times: Vec<Duration> = doubled
        .take(SESSIONS)
        .take_while(|time| *time < longest)
        .collect();
    times.truncate(SESSIONS - 1);
    times.push(longest);
    times
}

/// The idle limit as far as the sessions have shown it.
#[derive(Debug, Default)]
pub(super) struct IdleLimitEstimate {
    proven: Duration,
    limit: Option<(Duration, Duration)>,
}

impl IdleLimitEstimate {
    /// Adds the outcome of a session that was to be idle for `idle`, and returns a line about it.
    ///
    /// # Errors
    /// When the server ended it.
    pub(super) fn add(
        &mut self,
        idle: Duration,
        outcome: IdleOutcome,
    ) -> Result<String, CloseReason> {
        Ok(match outcome {
            IdleOutcome::Alive => {
                self.proven = self.proven.max(idle);
                format!("idle for {}: the connection still works", span(idle))
            }
            IdleOutcome::CutAfter(after) => {
                // At least the time after which another one still worked.
                self.limit = Some((after.min(idle).max(self.proven), after.max(self.proven)));
                format!("idle for {}: the connection was cut", span(after))
            }
            IdleOutcome::Silent => {
                self.limit = Some((self.proven, idle));
                format!(
                    "idle for {}: the connection is dead, without a close",
                    span(idle)
                )
            }
            IdleOutcome::Ended(reason) => return Err(reason),
        })
    }

    /// Whether further sessions add nothing.
    pub(super) fn is_over(&self) -> bool {
        self.limit.is_some()
    }

    /// The limit, and the interval advised for it.
    pub(super) fn report(&self) -> IdleReport {
        // Two pings within the shortest time that may be too long, so that one may be late.
        let advised = match self.limit {
            Some((at_least, _)) => {
                (at_least / 2).clamp(Duration::from_secs(1), DEFAULT_PING_INTERVAL)
            }
            None => DEFAULT_PING_INTERVAL,
        };
        IdleReport {
            limit: self.limit,
            proven: self.proven,
            advised,
        }
    }
}

impl IdleReport {
    /// On one line.
    pub(super) fn line(&self, ping_interval: Duration) -> String {
        let found = match self.limit {
            Some((from, to)) if to.saturating_sub(from) < Duration::from_secs(3) => {
                format!("connections are cut after {} without traffic", span(to))
            }
            Some((from, to)) => {
                format!(
                    "connections live for {} without traffic, and not for {}",
                    span(from),
                    span(to)
                )
            }
            None => format!("no idle limit up to {}", span(self.proven)),
        };
        let advice = match self.is_too_slow(ping_interval) {
            true => format!(
                "; a ping every {} is too late: set --ping-interval={}s at most, here or at the server",
                span(ping_interval),
                self.advised.as_secs()
            ),
            false => format!("; a ping every {} is enough", span(ping_interval)),
        };
        found + &advice
    }

    /// Whether pings at this interval may come too late.
    pub(super) fn is_too_slow(&self, ping_interval: Duration) -> bool {
        (self.limit).is_some_and(|(at_least, _)| ping_interval >= at_least)
    }
}

/// Keeps these sessions idle, each for its time, and reports their outcomes as lines.
///
/// # Errors
/// When the server ends one of them.
pub(super) async fn probe(
    sessions: Vec<(Duration, CheckSession)>,
    timing: Timing,
    progress: &mut (dyn FnMut(String) + Send),
) -> Result<IdleReport, CloseReason> {
    let mut holding = JoinSet::new();
    for (idle, session) in sessions {
        holding.spawn(async move {
            let outcome = keep_idle(session.handle(), idle, timing).await;
            session.close().await;
            (idle, outcome)
        });
    }
    let mut estimate = IdleLimitEstimate::default();
    while let Some(ended) = holding.join_next().await {
        if let Ok((idle, outcome)) = ended {
            progress(estimate.add(idle, outcome)?);
        }
        if estimate.is_over() {
            break;
        }
    }
    Ok(estimate.report())
}

/// Dials a session for each of these times, as far as the server accepts them.
///
/// # Errors
/// When the server accepts none.
pub(super) async fn sessions<E>(
    times: Vec<Duration>,
    mut dial: impl AsyncFnMut() -> Result<CheckSession, E>,
) -> Result<Vec<(Duration, CheckSession)>, E> {
    let mut sessions = Vec::new();
    // The longest first: it counts most if the server does not accept all.
    for idle in times.into_iter().rev() {
        match dial().await {
            Ok(session) => sessions.push((idle, session)),
            Err(error) if sessions.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sessions)
}

async fn keep_idle(session: &Session, idle: Duration, timing: Timing) -> IdleOutcome {
    let began = match settle(session, timing).await {
        Ok(began) => began,
        Err(after) => return ended(session, after),
    };
    let left = idle.saturating_sub(began.elapsed());
    tokio::select! {
        () = sleep(left) => {}
        () = session.closed() => return ended(session, began.elapsed()),
    }
    let (_, heard) = session.bytes();
    session.ping_now();
    let answered = async {
        while session.bytes().1 == heard {
            tokio::select! {
                () = sleep(timing.poll) => {}
                () = session.closed() => return false,
            }
        }
        true
    };
    match timeout(timing.answer, answered).await {
        Ok(true) => IdleOutcome::Alive,
        Ok(false) => match ended(session, idle) {
            IdleOutcome::Ended(reason) => IdleOutcome::Ended(reason),
            _ => IdleOutcome::Silent,
        },
        Err(_) => IdleOutcome::Silent,
    }
}

/// The outcome of a session that ended after this idle time: a cut, unless the server gave a reason of its own.
fn ended(session: &Session, after: Duration) -> IdleOutcome {
    match session.close_reason() {
        Some(
            reason @ (CloseReason::Drained
            | CloseReason::Expired
            | CloseReason::Revoked
            | CloseReason::Disconnected
            | CloseReason::Superseded
            | CloseReason::Conflict
            | CloseReason::Overloaded),
        ) => IdleOutcome::Ended(reason),
        _ => IdleOutcome::CutAfter(after),
    }
}

/// Waits until the session is idle, and returns since when; or how long it was idle when it ended.
async fn settle(session: &Session, timing: Timing) -> Result<Instant, Duration> {
    let (mut bytes, mut since) = (session.bytes(), Instant::now());
    while since.elapsed() < timing.settled {
        tokio::select! {
            () = sleep(timing.poll) => {}
            () = session.closed() => return Err(since.elapsed()),
        }
        if session.bytes() != bytes {
            (bytes, since) = (session.bytes(), Instant::now());
        }
    }
    Ok(since)
}

fn as_ms<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(millis(*time))
}

fn as_two_ms<S: Serializer>(
    times: &Option<(Duration, Duration)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    times
        .map(|(from, to)| [millis(from), millis(to)])
        .serialize(serializer)
}

#[cfg(test)]
mod tests;
