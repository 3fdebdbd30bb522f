//! Keeps the tunnel up: its sessions with the server, and what follows each.
//!
//! ```text
//!   Tunnel ─┬─ slots (slot.rs), one for each session, each for itself:
//!           │      dial ─▶ serve ─▶ drain, renewal ─▶ dial the next, then leave ─┐
//!           │       ▲         └─▶ lost ──────────────────────┐                   │
//!           │       └────────────────────────────────────────┴───────────────────┘
//!           ├─ dialling (dialling.rs): one slot at a time; when (redial.rs, path.rs)
//!           ├─ the clock (clock.rs): after a jump each slot renews its session
//!           ├─ ages (age.rs): where there is a bound, one slot after the other does
//!           └─ ending: asked to stop, superseded, refused with no session left: all slots leave
//! ```
//!
//! What ends the tunnel ends it as a whole: whatever the slot that hears of it, all of them take no
//! new exchange, finish those that are open, and leave. Then the client waits and begins anew; after a
//! refusal that a person has to mend it ends instead, if it is set to.

mod age;
mod clock;
mod dialling;
mod leaving;
mod path;
mod redial;
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

use self::age::Ages;
use self::clock::{Clock, Reading, Renewal, Renewals, TICK};
use self::dialling::Dialling;
pub(crate) use self::dialling::DiallingParts;
use self::leaving::Owners;
pub(crate) use self::redial::RedialSettings;
use self::redial::Standby;
use self::slot::Slot;
use crate::credential::Credentials;
use crate::session::Session;

/// Tells the time that people see.
pub(crate) type WallClock = Box<dyn Fn() -> SystemTime + Send + Sync>;

/// What a tunnel is made of.
pub(crate) struct TunnelParts {
    /// How sessions are made.
    pub(crate) dialling: DiallingParts,
    /// What the client proves itself by.
    pub(crate) credentials: Arc<Credentials>,
    /// Tells when the credential's files change.
    pub(crate) files: FileWatch,
    /// Sessions to keep.
    pub(crate) sessions: usize,
    /// Longest time that one of them is used.
    pub(crate) max_age: Option<Duration>,
    /// For open exchanges when a session leaves.
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
    /// Why all slots have to leave; the first reason counts.
    ending: watch::Sender<Option<Ending>>,
    /// When all sessions are to be replaced.
    renewals: watch::Sender<Option<Renewal>>,
    ages: Ages,
    leaving: Owners,
    grace_period: Duration,
}

/// Why a tunnel ends, with all of its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ending {
    /// The program is to stop.
    Asked,
    /// A newer instance holds the runtime.
    Superseded,
    /// A person has to mend what the server refuses, and this is why.
    Refused(String),
    /// A fault of this program.
    Fault(String),
}

/// Why a client does not dial again.
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
                leaving: Owners::new(parts.sessions),
                grace_period: parts.grace_period,
            }),
            files: parts.files,
            sessions: parts.sessions,
            standby,
            wall: Box::new(SystemTime::now),
        }
    }

    /// Believes another clock than the system's.
    pub(crate) fn set_wall_clock(&mut self, wall: WallClock) {
        self.wall = wall;
    }

    /// Keeps the tunnel up until asked to stop, and then leaves without loss.
    ///
    /// # Errors
    /// When the server refuses what a person has to mend, and the client is to end then.
    pub(crate) async fn run(self, shutdown: &Shutdown) -> Result<(), GivenUp> {
        let Self {
            shared,
            files,
            sessions,
            mut standby,
            wall,
        } = self;
        let parts = shared.dialling.parts();
        tracing::info!(
            server = %parts.dialler.server(),
            proxy = parts.dialler.proxy().map(tracing::field::display),
            instance = %parts.instance.id(),
            sessions,
            "dialling"
        );
        let credentials = Arc::clone(&shared.credentials);
        let _following = Owned::spawn("credential", async move { credentials.follow(files).await });
        loop {
            let wait = match shared.hold(sessions, &wall, shutdown).await {
                Ending::Asked => return Ok(()),
                Ending::Superseded => {
                    let wait = standby.after_superseded(shared.dialling.held_for(), random());
                    tracing::warn!(
                        ?wait,
                        "another instance of this runtime has taken over: a runtime has one tunnel client, stop one \
                         of them. This one stands by, and takes the runtime when no other holds it"
                    );
                    wait
                }
                Ending::Refused(why) if shared.dialling.parts().exits_on_refusal => {
                    return Err(GivenUp(why));
                }
                Ending::Refused(why) => {
                    let wait = shared.dialling.after_refusal();
                    tracing::error!(why, ?wait, "refused, dialling again later");
                    wait
                }
                Ending::Fault(why) => {
                    tracing::error!(why, "a fault of this program, dialling again");
                    shared.dialling.after_fault();
                    continue;
                }
            };
            let mut credential = shared.credentials.subscribe();
            tokio::select! {
                () = sleep(wait) => {}
                Ok(()) = credential.changed() => {
                    tracing::info!("the credential has changed, or SIGHUP came: dialling now");
                }
                () = shutdown.asked() => return Ok(()),
            }
        }
    }
}

impl Shared {
    /// Keeps the sessions up until there is a reason to leave, and then does.
    async fn hold(
        self: &Arc<Self>,
        sessions: usize,
        wall: &WallClock,
        shutdown: &Shutdown,
    ) -> Ending {
        self.ending.send_replace(None);
        self.dialling.begin();
        let mut slots = JoinSet::new();
        for _ in 0..sessions {
            slots.spawn(Slot::new(Arc::clone(self)).run());
        }
        let ending = tokio::select! {
            ending = self.ended() => ending,
            () = shutdown.asked() => self.end(Ending::Asked),
            // No slot ends before the tunnel does, unless by a fault of ours.
            Some(Err(error)) = slots.join_next() => {
                self.end(Ending::Fault(format!("a slot for a session failed: {error}")))
            }
            never = self.follow_clock(wall) => match never {},
        };
        tokio::select! {
            () = async { while slots.join_next().await.is_some() {} } => {}
            () = shutdown.forced() => {}
        }
        ending
    }

    /// Has all slots leave, unless they do already; why they do.
    fn end(&self, ending: Ending) -> Ending {
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

    /// Returns when all slots have to leave.
    async fn ended(&self) -> Ending {
        let mut ending = self.ending.subscribe();
        match ending.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ending)) => ending.clone(),
            // Never: the sender is our own.
            Ok(None) | Err(_) => Ending::Asked,
        }
    }

    /// Has all sessions replaced whenever time has jumped: whatever lies between may have forgotten
    /// them meanwhile, without a notice.
    async fn follow_clock(&self, wall: &WallClock) -> std::convert::Infallible {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let read = || Reading {
            wall: wall(),
            monotonic: Instant::now(),
        };
        let mut clock = Clock::new(read());
        let mut renewals = Renewals::default();
        loop {
            ticks.tick().await;
            let jump = clock.on_tick(read());
            if let Some(jump) = jump {
                tracing::warn!(?jump, "time has jumped");
            }
            if let Some(renewal) = renewals.on_tick(jump.is_some(), Instant::now()) {
                tracing::info!("all sessions are replaced, since time has jumped");
                self.dialling.after_jump();
                self.renewals.send_replace(Some(renewal));
            }
        }
    }

    /// The credential that a session goes by runs out. Has it go on by what the files hold now, if that
    /// is newer, or was not taken before; false if it cannot.
    fn on_expiring(&self, session: &mut Session, within: Duration) -> bool {
        match self.credentials.read() {
            Ok(latest) if session.goes_by(&latest) => tracing::warn!(
                ?within,
                "the credential of a session runs out, and its file holds no newer one: put one there"
            ),
            Ok(latest) => return session.use_credential(latest),
            Err(error) => tracing::warn!(
                ?within,
                %error,
                "the credential of a session runs out, and there is no newer one"
            ),
        }
        true
    }
}

/// Any number; one that is not random only makes a wait less spread.
fn random() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX / 2)
}
