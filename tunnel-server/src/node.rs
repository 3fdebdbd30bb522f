//! What all parts of a running server share.
//!
//! Made once, when the server has bound its listeners; every connection and session holds it. It has no
//! behaviour of its own beyond answering what the configuration says and how far the server's life has
//! gone.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tunnel_http::outgoing::ViaName;
use tunnel_ops::admin::{BearerFileError, BearerGuard};
use tunnel_ops::descriptors;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_ops::tls_files::{ClientAuth, LiveServerConfig, NextServerConfig, TlsFilesError};

use crate::{
    allowance::Allowance,
    auth::{AuthSetupError, Authenticator, Prepared},
    config::{
        Config,
        effective::{Difference, Effective, differences},
    },
    connect::{checks::Checks, gate::Gate},
    events::{Event, EventKind, Events},
    held::Threads,
    metrics::Metrics,
    public::{
        answer::Cors,
        places::{self, Places},
    },
    registry::Registry,
    router::Router,
    runtimes::NameError,
};

/// How long a stopping server waits for a request that may be on its way. Who connects just in case
/// would hold it up for the whole grace period.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// What all parts of a running server share.
pub struct Node {
    /// The checked configuration, as it is now.
    pub(crate) live: ArcSwap<Config>,
    /// Which credentials are good.
    pub authenticator: Arc<Authenticator>,
    /// From host to session.
    pub router: Router,
    /// Which tunnel each runtime has.
    pub registry: Arc<Registry>,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// Places for public connections.
    pub places: Arc<Places>,
    /// Places for tunnel connections.
    pub tunnel_places: Arc<Places>,
    /// What the listeners show of themselves.
    pub(crate) tls: Tls,
    /// The way into a session.
    pub(crate) gate: Arc<Gate>,
    /// Places for sessions that only check the way.
    pub(crate) checks: Arc<Checks>,
    /// Limits the lines about tunnel clients that are refused.
    pub(crate) refusal_lines: Allowance,
    /// Pages that may read our own answers.
    pub cors: ArcSwap<Cors>,
    /// Our name in `Tunnel-Via` and `Via`.
    pub via: ViaName,
    /// What happens, for whoever watches.
    pub events: Arc<Events>,
    /// Knows the operator's token, if there is one.
    pub(crate) admin_guard: ArcSwapOption<BearerGuard>,
    /// How the last reload of the configuration went.
    pub(crate) last_reload: Mutex<Option<LastReload>>,
    /// When the server was started.
    pub started: SystemTime,
    /// What the server's tasks run on.
    pub(crate) threads: Threads,
    /// How far the server's life has gone.
    pub(crate) life: Life,
}

/// How a reload of the configuration went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastReload {
    pub(crate) is_good: bool,
    pub(crate) at: SystemTime,
}

/// Why a configuration cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// Certificates or revocation lists.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// Credentials.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// A runtime's host.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The operator's token.
    #[error(transparent)]
    AdminToken(#[from] BearerFileError),
    /// A file that held entries holds none.
    #[error(
        "{0}: the file holds no entries any more, as while it is being written: send SIGHUP to take it as it is"
    )]
    Emptied(&'static str),
}

/// What becomes of a runtimes file or revocation list that held entries and holds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// It is not taken over.
    Refuse,
    /// A person has asked for it.
    Take,
}

/// What the listeners show of themselves, and ask of tunnel clients.
pub(crate) struct Tls {
    pub(crate) tunnel: LiveServerConfig,
    /// `None` when the public listener is plain.
    pub(crate) public: Option<LiveServerConfig>,
}

/// What they are to show next.
struct NextTls {
    tunnel: NextServerConfig,
    public: Option<NextServerConfig>,
}

/// How far the server's life has gone, stage by stage; what each means stands in `server/drain.rs`.
pub(crate) struct Life {
    leaving: Stage,
    /// The same as the stage, for those who ask with each request.
    is_draining: AtomicBool,
    /// Over how long clients are to be spread, in milliseconds; from draining on.
    spread_ms: AtomicU64,
    draining: Stage,
    stopping: Stage,
    ending: Stage,
    ended: Stage,
    /// Sessions whose client has no other session elsewhere yet.
    pub(crate) settled: TaskTracker,
    /// Public connections.
    pub(crate) public: TaskTracker,
}

struct Stage {
    trigger: Trigger,
    reached: Shutdown,
}

impl Node {
    /// The configuration as it is now. Not to be held for long: it may be replaced.
    #[must_use]
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.live.load()
    }

    /// What each setting that is in force stands at.
    pub(crate) fn effective(&self) -> Effective {
        self.config().effective(&self.authenticator.contents())
    }

    /// Takes over another configuration, wholly or not at all, and tells what differs. What it changes
    /// counts from here on, for what is open too where that has a meaning; sessions without a right to their
    /// runtime any more end.
    ///
    /// # Errors
    /// When a file that it names cannot be used. All that was good before then stays.
    pub(crate) fn apply(
        &self,
        mut config: Config,
        emptied: Emptied,
    ) -> Result<Vec<Difference>, ApplyError> {
        // All that can fail.
        let credentials = Prepared::read(&config)?;
        if emptied == Emptied::Refuse {
            self.check_not_emptied(&config, &credentials)?;
        }
        let told = config.effective(&credentials.contents());
        let differences = differences(&self.effective(), &told);
        config.keep_started(&self.config());
        let tls = self.tls.prepare(&config, credentials.client_auth())?;
        let hosts = self.router.prepare(&config.runtimes)?;
        let admin_guard = admin_guard(&config)?;
        // From here on it counts.
        self.tls.commit(tls);
        self.tls.show(&self.metrics);
        self.router.commit(hosts);
        self.registry.set_limits(&config);
        let all = places::within(
            config.settings.max_connections as usize,
            descriptors::limit(),
        );
        let each = config.settings.max_connections_per_address as usize;
        self.places.set(all, each);
        let each = config.settings.max_tunnel_connections_per_address as usize;
        self.tunnel_places.set(all, each);
        self.cors
            .store(Arc::new(Cors::of(&config.settings.cors_origin)));
        self.admin_guard.store(admin_guard.map(Arc::new));
        self.live.store(Arc::new(config));
        // The last, since sessions look around when it is done.
        self.authenticator.replace(credentials);
        Ok(differences)
    }

    /// Refuses files that held entries and hold none: whoever writes a file in place empties it first, which would
    /// disconnect everybody, or lift all revocations, for the gap.
    fn check_not_emptied(&self, config: &Config, next: &Prepared) -> Result<(), ApplyError> {
        let had_runtimes = self.config().runtimes.iter().next().is_some();
        if had_runtimes && config.runtimes.iter().next().is_none() {
            return Err(ApplyError::Emptied("runtimes"));
        }
        let is_list_named = config.settings.revocations.is_some();
        if is_list_named && self.authenticator.has_revocation_list() && !next.has_revocations() {
            return Err(ApplyError::Emptied("revocations"));
        }
        Ok(())
    }

    /// The configuration was read again.
    pub(crate) fn on_reload(&self, is_good: bool) {
        self.metrics.on_reload(is_good);
        let at = SystemTime::now();
        *self.last_reload.lock() = Some(LastReload { is_good, at });
        let reloaded = Event::new(EventKind::Reloaded);
        self.events.tell(match is_good {
            true => reloaded,
            false => reloaded.reason("not_good"),
        });
    }

    /// Whether what an address says of who asked before it is believed.
    #[must_use]
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.config()
            .settings
            .trusted_proxies
            .iter()
            .any(|network| network.contains(&address))
    }

    /// Whether the server was asked to stop.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.life.leaving.reached.is_asked()
    }

    /// Resolves when the server accepts no more, and its clients are to go elsewhere.
    pub async fn draining(&self) {
        self.life.draining.reached.asked().await;
    }

    /// Whether the server accepts no more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.life.is_draining.load(Ordering::Relaxed)
    }

    /// Resolves when connections are to end with the requests that they carry.
    pub async fn stopping(&self) {
        self.life.stopping.reached.asked().await;
    }

    /// Resolves a moment after that: for so long a stopping server waits for those that have not
    /// asked for anything yet.
    pub async fn patience_ended(&self) {
        self.stopping().await;
        sleep(STOP_PATIENCE).await;
    }

    /// The same, to be waited for.
    pub(crate) fn stopping_stage(&self) -> &Shutdown {
        &self.life.stopping.reached
    }

    /// Reached when what is still open is to end, as well as its protocol allows. Holds nothing of the
    /// node.
    pub(crate) fn ending_stage(&self) -> &Shutdown {
        &self.life.ending.reached
    }

    /// Resolves when what has not ended by then is cut.
    pub async fn ended(&self) {
        self.life.ended.reached.asked().await;
    }
}

impl Tls {
    pub(crate) fn new(
        config: &Config,
        client_auth: Option<ClientAuth>,
    ) -> Result<Self, TlsFilesError> {
        let public = |identity| LiveServerConfig::new(identity, &[b"h2", b"http/1.1"], None);
        Ok(Self {
            tunnel: LiveServerConfig::new(config.tunnel_tls.clone(), &[b"http/1.1"], client_auth)?,
            public: config.public_tls.clone().map(public).transpose()?,
        })
    }

    fn prepare(
        &self,
        config: &Config,
        client_auth: Option<ClientAuth>,
    ) -> Result<NextTls, TlsFilesError> {
        let public = self.public.as_ref().zip(config.public_tls.clone());
        let public = public.map(|(public, identity)| public.prepare(identity, None));
        Ok(NextTls {
            tunnel: (self.tunnel).prepare(config.tunnel_tls.clone(), client_auth)?,
            public: public.transpose()?,
        })
    }

    fn commit(&self, next: NextTls) {
        self.tunnel.commit(next.tunnel);
        if let (Some(public), Some(next)) = (&self.public, next.public) {
            public.commit(next);
        }
    }

    /// Until when the certificates are good.
    pub(crate) fn show(&self, metrics: &Metrics) {
        metrics.show_certificate("tunnel", self.tunnel.not_after());
        if let Some(public) = &self.public {
            metrics.show_certificate("public", public.not_after());
        }
    }
}

/// Reads the operator's token, if there is to be one.
pub(crate) fn admin_guard(config: &Config) -> Result<Option<BearerGuard>, BearerFileError> {
    let path = config.settings.admin_token_file.as_deref();
    path.map(BearerGuard::load).transpose()
}

impl Life {
    pub(crate) fn new() -> Self {
        Self {
            leaving: Stage::new(),
            is_draining: AtomicBool::new(false),
            spread_ms: AtomicU64::new(0),
            draining: Stage::new(),
            stopping: Stage::new(),
            ending: Stage::new(),
            ended: Stage::new(),
            settled: TaskTracker::new(),
            public: TaskTracker::new(),
        }
    }

    pub(crate) fn leave(&self) {
        self.leaving.trigger.ask();
    }

    /// Over how long clients are spread that are told to leave.
    pub(crate) fn spread(&self) -> Duration {
        Duration::from_millis(self.spread_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn drain(&self, spread: Duration) {
        let spread_ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX);
        self.spread_ms.store(spread_ms, Ordering::Relaxed);
        self.settled.close();
        self.is_draining.store(true, Ordering::Relaxed);
        self.draining.trigger.ask();
    }

    pub(crate) fn stop(&self) {
        self.public.close();
        self.stopping.trigger.ask();
    }

    pub(crate) fn end(&self) {
        self.ending.trigger.ask();
    }

    pub(crate) fn cut(&self) {
        self.ended.trigger.ask();
    }
}

impl Stage {
    fn new() -> Self {
        let (trigger, reached) = Shutdown::manual();
        Self { trigger, reached }
    }
}
