//! Links between server nodes, by which a request reaches a session that another node holds.
//!
//! ```text
//!   node A                                                      node B
//!   public ─▶ no session here ─▶ Peers::choose ─▶ link ═══TLS═══▶ relay ─▶ its own session ═══▶ tunnel client
//!                                                  ◀─ held | not_held | a limit ─┘
//! ```
//!
//! A link is a session of the tunnel's own wire over mutual TLS: the node that dials opens the exchanges. Each shard of a
//! node has its own link to each other node, so that an exchange stays on its core. A forwarded request is served from
//! the other node's own sessions or not at all, so that it is forwarded once at most.

pub(crate) mod accept;
mod ask;
mod link;
mod note;
mod relay;
mod traced_relay;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval},
};
use tunnel_directory::{Epoch, Holder, NodeName, NodeState, RuntimeLabel};
use tunnel_ops::{telemetry::tracer::Tracer, tls_files::LiveServerConfig};
use tunnel_proto::{memory::MemoryAccount, session::Session};

use self::link::{Link, Target};
pub(crate) use self::{
    ask::{Answers, open_stream},
    note::{Hints, Note},
};
use crate::{
    directory::EtcdDirectory, lifecycle::Lifecycle, metrics::Metrics, peer_tls::PeerTls,
    registry::Registry,
};

/// The status by which a node says that it has a session for a forwarded request with content, and asks for the
/// content. No upstream can send it: nodes remove it from what a tunnel client answers.
pub(crate) const HELD: u16 = 199;

/// Most nodes that may refuse one request, one after another.
const REFUSALS: usize = 2;

/// Time between two checks of which nodes there are.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Longest time after its start that a node stays not ready for want of a link: the node at the other end may be dead.
const LINKING: Duration = Duration::from_secs(3);

/// The parts of the server that the connections of the peer listener use.
pub(crate) struct PeerListener {
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) tls: Arc<LiveServerConfig>,
    pub(crate) tracer: Tracer,
    /// The admin API of this node alone, for other nodes.
    pub(crate) api: axum::Router,
}

/// The links of one shard to all other nodes.
pub(crate) struct Peers {
    directory: Arc<EtcdDirectory>,
    tls: Arc<ArcSwap<PeerTls>>,
    metrics: Arc<Metrics>,
    /// Notified when a link has opened.
    linked: Arc<Notify>,
    memory: Arc<MemoryAccount>,
    /// Whether this shard's links send reports to other nodes; only those of one shard do.
    sends_reports: bool,
    links: Mutex<HashMap<NodeName, Link>>,
    /// Counts choices.
    turn: AtomicUsize,
}

/// A node that holds a runtime, and the link to it.
pub struct Forward {
    /// The node, and the revision of its record.
    pub(crate) holder: (NodeName, i64),
    pub(crate) session: Session,
    pub(crate) epoch: Epoch,
    /// There is a link to a further node that holds it and may be tried.
    pub(crate) has_other: bool,
}

/// The nodes that a request was forwarded to in vain, by the revision of their record: a node that takes the runtime
/// again has a new record, and may be tried again.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    /// Those that did not take it.
    refused: Vec<(NodeName, i64)>,
    /// The one whose session was lost or silent before anything was received. It may have another session.
    unheard: Option<(NodeName, i64)>,
}

impl Tried {
    /// The node did not take the request.
    pub(crate) fn on_refused(&mut self, holder: (NodeName, i64)) {
        self.refused.push(holder);
    }

    /// The node has taken the request, and received nothing for it.
    pub(crate) fn on_unheard(&mut self, holder: (NodeName, i64)) {
        self.unheard = Some(holder);
    }

    fn has_refused(&self, holder: &Holder) -> bool {
        self.refused.iter().any(|refused| is_of(refused, holder))
    }

    fn is_unheard(&self, holder: &Holder) -> bool {
        let unheard = self.unheard.as_ref();
        unheard.is_some_and(|unheard| is_of(unheard, holder))
    }
}

/// Whether this is the record of the holder.
fn is_of((node, revision): &(NodeName, i64), holder: &Holder) -> bool {
    *node == holder.node && *revision == holder.revision
}

impl Peers {
    pub(crate) fn new(
        directory: Arc<EtcdDirectory>,
        tls: Arc<ArcSwap<PeerTls>>,
        metrics: Arc<Metrics>,
        registry: &Registry,
        sends_reports: bool,
    ) -> Arc<Self> {
        directory.expect_links();
        Arc::new(Self {
            directory,
            tls,
            metrics,
            linked: registry.linked().clone(),
            memory: registry.link_memory().clone(),
            sends_reports,
            links: Mutex::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// The node that a request for this runtime is forwarded to: one that has not received it in vain, is not silent, does
    /// not leave, in the zone of this one, with the fewest open exchanges, in this order.
    pub(crate) fn choose(&self, label: &RuntimeLabel, tried: &Tried) -> Option<Forward> {
        let left = REFUSALS.checked_sub(tried.refused.len() + 1)?;
        let (epoch, mut holders) = self.directory.holders(label.as_str())?;
        // Of equals another one each time.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = holders.len().max(1);
        holders.rotate_left(turn % count);
        let links = self.links.lock();
        let own_zone = self.directory.node().zone.as_ref();
        let open = holders.into_iter().filter_map(|holder| {
            let session = links.get(&holder.node)?.session(&holder)?;
            (!tried.has_refused(&holder)).then_some((holder, session))
        });
        let mut fresh = 0;
        let rank = |(holder, session): &(Holder, Session)| {
            let is_unheard = tried.is_unheard(holder);
            let is_silent = session.is_silent();
            fresh += usize::from(!is_unheard && !is_silent);
            let is_far = holder.zone.as_ref() != own_zone;
            let outstanding = session.outstanding();
            (
                is_unheard,
                is_silent,
                holder.is_leaving,
                is_far,
                outstanding,
            )
        };
        let (holder, session) = open.min_by_key(rank)?;
        Some(Forward {
            holder: (holder.node, holder.revision),
            session,
            epoch,
            has_other: left > 0 && fresh > 1,
        })
    }

    /// Whether [`Self::choose`] finds a node that is not silent.
    pub(crate) fn has_choice(&self, label: &RuntimeLabel, tried: &Tried) -> bool {
        let forward = self.choose(label, tried);
        forward.is_some_and(|forward| !forward.session.is_silent())
    }

    /// Waits, if the node was paused, until it knows what has happened meanwhile.
    pub(crate) async fn catch_up(&self) {
        if self.directory.was_paused() {
            Box::pin(self.directory.catch_up()).await;
        }
    }

    /// Keeps links to all other nodes, until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let began = Instant::now();
        let mut is_linking = true;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.linked.notified(), if is_linking => {}
            }
            self.update();
            if self.sends_reports {
                self.directory.on_links(self.open_links());
            }
            if is_linking && (self.has_all_links() || began.elapsed() >= LINKING) {
                is_linking = false;
                self.directory.on_linked();
            }
        }
    }

    /// Whether there is a link to each other node that takes sessions.
    fn has_all_links(&self) -> bool {
        let links = self.links.lock();
        let own = self.directory.incarnation();
        let nodes = self.directory.nodes().into_iter();
        let mut others = nodes.filter(|(_, incarnation, record)| {
            *incarnation != own && record.peer.is_some() && record.state == NodeState::Serving
        });
        others.all(|(name, ..)| links.get(&name).is_some_and(Link::is_open))
    }

    /// The number of other nodes to which there is a link.
    fn open_links(&self) -> usize {
        let links = self.links.lock();
        links.values().filter(|link| link.is_open()).count()
    }

    fn update(&self) {
        let nodes = self.directory.nodes();
        let own = self.directory.incarnation();
        let mut links = self.links.lock();
        for (name, incarnation, record) in nodes {
            let Some(address) = record.peer.filter(|_| incarnation != own) else {
                continue;
            };
            let target = Target {
                name: name.clone(),
                incarnation,
                address,
            };
            match links.get(&name) {
                Some(link) if link.is_to(&target) => {}
                _ => {
                    links.insert(name, Link::to(target, self.dialling()));
                }
            }
        }
        // A node whose key is gone may be alive: its link stays as long as it is open.
        links.retain(|name, link| link.is_open() || self.directory.has_node(name));
    }

    fn dialling(&self) -> link::Dialling {
        link::Dialling {
            tls: self.tls.clone(),
            open: self.metrics.peers.links(),
            linked: self.linked.clone(),
            reporter: self.sends_reports.then(|| self.directory.clone()),
            memory: self.memory.clone(),
        }
    }
}
