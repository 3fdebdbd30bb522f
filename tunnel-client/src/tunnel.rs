//! Keeps the tunnel up: dials its sessions with the server, and replaces each one that ends.
//!
//! ```text
//!   Tunnel ─┬─ slots (slot.rs), one for each session, independent of each other:
//!           │      dial ─▶ serve ─▶ drain, renewal ─▶ dial the next, then leave ─┐
//!           │       ▲         └─▶ lost ──────────────────────┐                   │
//!           │       └────────────────────────────────────────┴───────────────────┘
//!           ├─ dialling (dialling.rs): one slot at a time; when and where (redial.rs, redial/* of tunnel-proto; refusals.rs, path.rs)
//!           ├─ the clock (clock.rs): after a jump each slot renews its session
//!           ├─ ages (age.rs): with a bound, one slot after the other does
//!           └─ end: shutdown, superseded, refused with no session left: all slots leave
//! ```
//!
//! A tunnel ends as a whole: whichever slot has the reason, all of them take no new exchange, finish those that are open,
//! and leave. Then the client waits and starts over. After a final refusal it exits instead, if it is configured to.

mod age;
mod clock;
mod dialling;
mod leaving;
mod locations;
mod path;
mod refusals;
mod slot;
mod starting;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tunnel_ops::signals::Shutdown;
use tunnel_ops::task::Owned;
use tunnel_ops::watch::FileWatch;
use tunnel_proto::control::millis;

use self::age::Ages;
use self::clock::{Clock, ClockReading, Renewal, RenewalSchedule, TICK};
use self::dialling::Dialling;
pub(crate) use self::dialling::DiallingParts;
use self::leaving::LeavingSessions;
use self::refusals::Standby;
use self::slot::Slot;
use crate::admin::Welcomed;
use crate::credential::Credentials;
use crate::session::Session;
use crate::status::{ServerView, WaitReason};

/// Returns the time of day.
pub(crate) type WallClock = Box<dyn Fn() -> SystemTime + Send + Sync>;

/// The parts of a tunnel.
pub(crate) struct TunnelParts {
    /// Dials the sessions.
    pub(crate) dialling: DiallingParts,
    /// The credentials of the client.
    pub(crate) credentials: Arc<Credentials>,
    /// Watches the credential's files.
    pub(crate) files: FileWatch,
    /// The number of sessions to keep.
    pub(crate) sessions: usize,
    /// Longest time that a session is used; `None` is without limit.
    pub(crate) max_age: Option<Duration>,
    /// Time for open exchanges when a session leaves.
    pub(crate) grace_period: Duration,
}

/// The sessions of this instance.
pub(crate) struct Tunnel {
    shared: Arc<Shared>,
    files: FileWatch,
    sessions: usize,
    standby: Standby,
    wall: WallClock,
}

/// What all slots share.
struct Shared {
    dialling: Dialling,
    credentials: Arc<Credentials>,
    /// Why all slots have to leave; the first reason is kept.
    ending: watch::Sender<Option<EndReason>>,
    /// When all sessions are to be replaced.
    renewals: watch::Sender<Option<Renewal>>,
    ages: Ages,
    leaving: LeavingSessions,
    grace_period: Duration,
}

/// Why a tunnel and all of its slots end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EndReason {
    /// The program shuts down.
    Shutdown,
    /// A newer instance holds the runtime.
    Superseded,
    /// The server refuses the client for this reason, which is final.
    Refused(String),
    /// An internal error of this program.
    Fault(String),
}

/// The error of a client that does not dial again: the reason of the refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GivenUp(String);

impl Tunnel {
    /// A tunnel that is not dialled yet.
    pub(crate) fn new(parts: TunnelParts) -> Self {
        let (ending, _) = watch::channel(None);
        let (renewals, _) = watch::channel(None);
        let standby = Standby::new(parts.dialling.refusal_wait);
        Self {
            shared: Arc::new(Shared {
                dialling: Dialling::new(parts.dialling),
                credentials: parts.credentials,
                ending,
                renewals,
                ages: Ages::new(parts.max_age),
                leaving: LeavingSessions::new(parts.sessions),
                grace_period: parts.grace_period,
            }),
            files: parts.files,
            sessions: parts.sessions,
            standby,
            wall: Box::new(SystemTime::now),
        }
    }

    /// The last welcome of a server.
    pub(crate) fn welcomed(&self) -> watch::Receiver<Option<Welcomed>> {
        self.shared.dialling.welcomed()
    }

    /// Replaces the system's clock.
    pub(crate) fn set_wall_clock(&mut self, wall: WallClock) {
        self.wall = wall;
    }

    /// Keeps the tunnel up until shutdown, and then leaves without loss.
    ///
    /// # Errors
    /// When the server refuses the client for a final reason, and the client is configured to exit then.
    pub(crate) async fn run(self, shutdown: &Shutdown) -> Result<(), GivenUp> {
        let Self {
            shared,
            files,
            sessions,
            mut standby,
            wall,
        } = self;
        let parts = shared.dialling.parts();
        for dialler in &parts.diallers {
            tracing::info!(
                server = %dialler.server(),
                proxy = dialler.proxy().map(tracing::field::display),
                instance = %parts.instance.id(),
                sessions,
                "dialling"
            );
        }
        let status = Arc::clone(&parts.sessions.status);
        let servers = parts.diallers.iter().map(|dialler| ServerView {
            url: dialler.server().to_string(),
            proxy: dialler.proxy().map(ToString::to_string),
        });
        status.on_start(parts.instance.id().to_string(), servers.collect());
        let credentials = Arc::clone(&shared.credentials);
        let _following = Owned::spawn("credential", async move { credentials.follow(files).await });
        loop {
            let wait = match shared.keep_sessions(sessions, &wall, shutdown).await {
                EndReason::Shutdown => return Ok(()),
                EndReason::Superseded => {
                    let wait = standby.after_superseded(shared.dialling.on_superseded(), random());
                    tracing::warn!(
                        wait_ms = millis(wait),
                        "another instance of this runtime has taken over: a runtime has one tunnel client, stop one \
                         of them. This one stands by, and takes the runtime when no other holds it"
                    );
                    status.on_wait(WaitReason::Standby, wait);
                    wait
                }
                EndReason::Refused(why) if shared.dialling.parts().exits_on_refusal => {
                    return Err(GivenUp(why));
                }
                EndReason::Refused(why) => {
                    let wait = shared.dialling.after_refusal();
                    tracing::error!(why, wait_ms = millis(wait), "refused, dialling again later");
                    status.on_wait(WaitReason::Refusal, wait);
                    wait
                }
                EndReason::Fault(why) => {
                    tracing::error!(why, "internal error, dialling again");
                    shared.dialling.after_fault();
                    continue;
                }
            };
            let mut credential = shared.credentials.subscribe();
            tokio::select! {
                () = sleep(wait) => {}
                Ok(()) = credential.changed() => {
                    tracing::info!("the credential has changed, or SIGHUP was received: dialling now");
                }
                () = shutdown.requested() => return Ok(()),
            }
        }
    }
}

impl Shared {
    /// Keeps the sessions up until there is a reason to end, then leaves and returns the reason.
    async fn keep_sessions(
        self: &Arc<Self>,
        sessions: usize,
        wall: &WallClock,
        shutdown: &Shutdown,
    ) -> EndReason {
        self.ending.send_replace(None);
        self.dialling.begin();
        let mut slots = JoinSet::new();
        for _ in 0..sessions {
            slots.spawn(Slot::new(Arc::clone(self)).run());
        }
        let ending = tokio::select! {
            ending = self.ended() => ending,
            () = shutdown.requested() => {
                self.dialling.parts().sessions.status.on_stop();
                self.end(EndReason::Shutdown)
            }
            // A slot ends before the tunnel only by a panic.
            Some(Err(error)) = slots.join_next() => {
                self.end(EndReason::Fault(format!("a slot for a session failed: {error}")))
            }
            never = self.follow_clock(wall) => match never {},
        };
        tokio::select! {
            () = async { while slots.join_next().await.is_some() {} } => {}
            () = shutdown.forced() => {}
        }
        ending
    }

    /// Makes all slots leave, unless they do already. Returns the first reason.
    fn end(&self, ending: EndReason) -> EndReason {
        let mut first = ending.clone();
        self.ending.send_if_modified(|standing| {
            if let Some(standing) = standing {
                first = standing.clone();
                return false;
            }
            *standing = Some(ending);
            true
        });
        first
    }

    /// Waits until all slots have to leave.
    async fn ended(&self) -> EndReason {
        let mut ending = self.ending.subscribe();
        match ending.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ending)) => ending.clone(),
            // Unreachable: `self` owns the sender.
            Ok(None) | Err(_) => EndReason::Shutdown,
        }
    }

    /// Has all sessions replaced when time has jumped: a NAT or proxy in between may have dropped their connections
    /// without a notice.
    async fn follow_clock(&self, wall: &WallClock) -> std::convert::Infallible {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let read = || ClockReading {
            wall: wall(),
            monotonic: Instant::now(),
        };
        let mut clock = Clock::new(read());
        let mut renewals = RenewalSchedule::default();
        loop {
            ticks.tick().await;
            let jump = clock.on_tick(read());
            if let Some(jump) = jump {
                tracing::warn!(?jump, "time has jumped");
            }
            if let Some(renewal) = renewals.on_tick(jump.is_some(), Instant::now()) {
                tracing::info!("replacing all sessions, since time has jumped");
                self.dialling.after_jump();
                self.renewals.send_replace(Some(renewal));
            }
        }
    }

    /// Handles a credential that expires soon: the session continues with the one in the files, if that is another or was
    /// refused before. Returns false if only a new session can use it.
    fn on_expiring(&self, session: &mut Session, within: Duration) -> bool {
        match self.credentials.read() {
            Ok(latest) if session.uses(&latest) => tracing::warn!(
                in_ms = millis(within),
                "the credential of a session expires, and its file holds no newer one: put one there"
            ),
            Ok(latest) => return session.use_credential(latest),
            Err(error) => tracing::warn!(
                in_ms = millis(within),
                %error,
                "the credential of a session expires, and a newer one cannot be read"
            ),
        }
        true
    }
}

/// A random number; without one from the system, a constant, which only spreads the waits less.
fn random() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
