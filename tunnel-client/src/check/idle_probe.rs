//! For how long the way bears silence: sessions that are held idle, each for longer than the one before.
//!
//! ```text
//!   15 s ├────┤ad                     a session is held idle without pings, then pinged:
//!   30 s ├─────────┤ad                an answer proves that the way has borne so much
//!   60 s ├──────────────× cut         a cut says when, silence only that it was before
//! ```
//!
//! Side by side, so that it takes no longer than the longest of them. The kernel's keepalives go on, as they
//! do under any session: what is found is the limit of whoever does not count them, which pings have to beat.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tunnel_proto::close::CloseReason;
use tunnel_proto::session::Session;

use super::session::CheckSession;
use super::words::span;

/// The shortest idle time; each further one is twice as long.
const FIRST: Duration = Duration::from_secs(15);

/// Most sessions at once: what a server allows for a runtime, but for the one that has checked the way.
const SESSIONS: usize = 7;

/// Longest idle time that can be asked for; a server ends a check after an hour.
pub(super) const LONGEST: Duration = Duration::from_secs(50 * 60);

/// A session's own ping interval where nothing asks for less.
const USUAL: Duration = Duration::from_secs(15);

/// How long the way bears silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IdleReport {
    /// The idle limit lies between these two; `None`: none was found.
    #[serde(rename = "limit_ms", serialize_with = "as_two_ms")]
    pub limit: Option<(Duration, Duration)>,
    /// The longest silence that was borne.
    #[serde(rename = "proven_ms", serialize_with = "as_ms")]
    pub proven: Duration,
    /// The time between pings that is advised.
    #[serde(rename = "advised_ping_interval_ms", serialize_with = "as_ms")]
    pub advised: Duration,
}

/// How times are measured; tests have less of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Silence after which a session counts as idle.
    pub(super) settled: Duration,
    /// Time for a ping to be answered.
    pub(super) answer: Duration,
    /// Between two looks.
    pub(super) look: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            settled: Duration::from_millis(1_500),
            answer: Duration::from_secs(15),
            look: Duration::from_millis(100),
        }
    }
}

/// How a session that was held idle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// It answers.
    Alive,
    /// It was cut after so much silence.
    CutAfter(Duration),
    /// It was idle for its time, and does not answer.
    Silent,
    /// The server has ended it, which tells nothing of the way.
    Ended(CloseReason),
}

/// The idle times that are tried, the longest last.
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

/// What the sessions have shown so far, told as it comes.
#[derive(Debug, Default)]
pub(super) struct Finding {
    proven: Duration,
    limit: Option<(Duration, Duration)>,
}

impl Finding {
    /// Takes in how a session ended that was held idle for `idle`; what is told of that.
    ///
    /// # Errors
    /// When it was the server that ended it.
    pub(super) fn add(&mut self, idle: Duration, held: Held) -> Result<String, CloseReason> {
        Ok(match held {
            Held::Alive => {
                self.proven = self.proven.max(idle);
                format!("idle for {}: the way is still there", span(idle))
            }
            Held::CutAfter(after) => {
                // It was proven for a while by those that ended well.
                self.limit = Some((after.min(idle).max(self.proven), after.max(self.proven)));
                format!("idle for {}: the connection was cut", span(after))
            }
            Held::Silent => {
                self.limit = Some((self.proven, idle));
                format!(
                    "idle for {}: the way is gone, and nobody said so",
                    span(idle)
                )
            }
            Held::Ended(reason) => return Err(reason),
        })
    }

    /// Whether the rest tells no more.
    pub(super) fn is_over(&self) -> bool {
        self.limit.is_some()
    }

    /// What is advised.
    pub(super) fn report(&self) -> IdleReport {
        // Two pings within the shortest time that may be too long: one may be late.
        let advised = match self.limit {
            Some((at_least, _)) => (at_least / 2).clamp(Duration::from_secs(1), USUAL),
            None => USUAL,
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
                format!("the way is cut after {} of silence", span(to))
            }
            Some((from, to)) => format!(
                "the way bears {} of silence, and not {}",
                span(from),
                span(to)
            ),
            None => format!("no idle limit up to {}", span(self.proven)),
        };
        let advice = match self.is_too_slow(ping_interval) {
            true => format!(
                "; pings come each {}, which is too seldom: set --ping-interval={}s at most, here or at the server",
                span(ping_interval),
                self.advised.as_secs()
            ),
            false => format!("; pings each {} hold it", span(ping_interval)),
        };
        found + &advice
    }

    /// Whether pings at this interval may come too late.
    pub(super) fn is_too_slow(&self, ping_interval: Duration) -> bool {
        let Some((bearable, _)) = self.limit else {
            return false;
        };
        ping_interval >= bearable
    }
}

/// Holds these sessions idle, each for its time, and tells what comes of it.
///
/// # Errors
/// When the server ends one of them.
pub(super) async fn probe(
    sessions: Vec<(Duration, CheckSession)>,
    timing: Timing,
    tell: &mut (dyn FnMut(String) + Send),
) -> Result<IdleReport, CloseReason> {
    let mut holding = JoinSet::new();
    for (idle, session) in sessions {
        holding.spawn(async move {
            let held = hold(session.handle(), idle, timing).await;
            session.close().await;
            (idle, held)
        });
    }
    let mut finding = Finding::default();
    while let Some(ended) = holding.join_next().await {
        if let Ok((idle, held)) = ended {
            tell(finding.add(idle, held)?);
        }
        if finding.is_over() {
            break;
        }
    }
    Ok(finding.report())
}

/// Dials a session for each of these times, as far as the server gives them.
///
/// # Errors
/// When it gives none.
pub(super) async fn sessions<E>(
    times: Vec<Duration>,
    mut dial: impl AsyncFnMut() -> Result<CheckSession, E>,
) -> Result<Vec<(Duration, CheckSession)>, E> {
    let mut sessions = Vec::new();
    // The longest first: it is the one that counts if there is no room for all.
    for idle in times.into_iter().rev() {
        match dial().await {
            Ok(session) => sessions.push((idle, session)),
            Err(error) if sessions.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sessions)
}

async fn hold(session: &Session, idle: Duration, timing: Timing) -> Held {
    let began = match settle(session, timing).await {
        Ok(began) => began,
        Err(after) => return gone(session, after),
    };
    let left = idle.saturating_sub(began.elapsed());
    tokio::select! {
        () = sleep(left) => {}
        () = session.closed() => return gone(session, began.elapsed()),
    }
    let (_, heard) = session.bytes();
    session.suspect();
    let answered = async {
        while session.bytes().1 == heard {
            tokio::select! {
                () = sleep(timing.look) => {}
                () = session.closed() => return false,
            }
        }
        true
    };
    match timeout(timing.answer, answered).await {
        Ok(true) => Held::Alive,
        Ok(false) => match gone(session, idle) {
            Held::Ended(reason) => Held::Ended(reason),
            _ => Held::Silent,
        },
        Err(_) => Held::Silent,
    }
}

/// What a session's end after so much silence tells: of the way, unless the server says that it was its own doing.
fn gone(session: &Session, after: Duration) -> Held {
    match session.close_reason() {
        Some(
            reason @ (CloseReason::Drained
            | CloseReason::Expired
            | CloseReason::Revoked
            | CloseReason::Disconnected
            | CloseReason::Superseded
            | CloseReason::Conflict
            | CloseReason::Overloaded),
        ) => Held::Ended(reason),
        _ => Held::CutAfter(after),
    }
}

/// Waits until nothing is sent and received any more: since when that is so; or after how much silence the
/// session has ended.
async fn settle(session: &Session, timing: Timing) -> Result<Instant, Duration> {
    let (mut seen, mut since) = (session.bytes(), Instant::now());
    while since.elapsed() < timing.settled {
        tokio::select! {
            () = sleep(timing.look) => {}
            () = session.closed() => return Err(since.elapsed()),
        }
        if session.bytes() != seen {
            (seen, since) = (session.bytes(), Instant::now());
        }
    }
    Ok(since)
}

fn as_ms<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(time.as_millis())
}

fn as_two_ms<S: Serializer>(
    times: &Option<(Duration, Duration)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    times
        .map(|(from, to)| [from.as_millis(), to.as_millis()])
        .serialize(serializer)
}

#[cfg(test)]
mod tests;
