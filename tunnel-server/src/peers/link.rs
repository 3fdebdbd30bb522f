//! One link to another node: dialled, kept, and dialled again.

use std::{convert::Infallible, future::pending, io, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use prometheus::IntGauge;
use rustls_pki_types::ServerName;
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel_directory::{
    Holder, Incarnation, NodeName, NodeRun,
    shared::{REPORT_INTERVAL, SentReports},
};
use tunnel_ops::{
    read_ahead::ReadAhead,
    socket::{set_unsent_limit, set_user_timeout},
    task::Owned,
};
use tunnel_proto::{
    control::Control,
    limits,
    memory::MemoryAccount,
    session::{Session, SessionEnd, SessionEvent, SessionSettings, Side, SilenceLimits},
};

use crate::{
    directory::EtcdDirectory,
    peer_tls::{ALPN, PeerTls},
};

/// Time for TCP and TLS.
const DIAL: Duration = Duration::from_secs(2);

/// Shortest and longest time until the next dial.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Time between pings: a node that is silent for two of them is dead. Nodes are near each other.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(2);

/// How long sent bytes may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a link leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) name: NodeName,
    pub(super) incarnation: Incarnation,
    pub(super) address: String,
}

/// What a dial needs.
pub(super) struct Dialling {
    pub(super) tls: Arc<ArcSwap<PeerTls>>,
    /// Counts open links.
    pub(super) open: IntGauge,
    /// Notified when the link has opened.
    pub(super) linked: Arc<Notify>,
    /// The source of the reports that are sent to the other node; `None` on links that only forward.
    pub(super) reporter: Option<Arc<EtcdDirectory>>,
    /// Counts what is received and not sent on yet.
    pub(super) memory: Arc<MemoryAccount>,
}

/// A link, which ends when it is dropped.
pub(super) struct Link {
    target: Target,
    session: Arc<ArcSwapOption<Session>>,
    _task: Owned<()>,
}

/// Counts an open link until it is dropped, and takes its session away then.
struct OpenLink<'a> {
    session: &'a ArcSwapOption<Session>,
    open: &'a IntGauge,
}

impl Link {
    /// Dials a node, again and again until there is a link.
    pub(super) fn to(target: Target, dialling: Dialling) -> Self {
        let session = Arc::new(ArcSwapOption::empty());
        let task = keep(target.clone(), dialling, session.clone());
        Self {
            target,
            session,
            _task: Owned::spawn("peer-link", task),
        }
    }

    /// Whether it leads to this run of the node.
    pub(super) fn is_to(&self, target: &Target) -> bool {
        self.target.incarnation == target.incarnation && self.target.address == target.address
    }

    pub(super) fn is_open(&self) -> bool {
        self.session.load().is_some()
    }

    /// The session, if there is one that takes exchanges.
    pub(super) fn any_session(&self) -> Option<Session> {
        let session = self.session.load();
        let session = session.as_deref()?;
        session.is_open().then(|| session.clone())
    }

    /// The session for an exchange, if the holder can be reached.
    pub(super) fn session(&self, holder: &Holder) -> Option<Session> {
        let session = self.session.load();
        let session = session.as_deref()?;
        let is_good = self.target.incarnation == holder.incarnation && session.is_open();
        is_good.then(|| session.clone())
    }
}

async fn keep(target: Target, dialling: Dialling, current: Arc<ArcSwapOption<Session>>) {
    let (shortest, longest) = PAUSE;
    let mut pause = shortest;
    loop {
        match timeout(DIAL, dial(&target, &dialling.tls.load_full())).await {
            Ok(Ok(stream)) => {
                pause = shortest;
                let node = &target.name;
                tracing::info!(%node, "linked to another node");
                let end = carry(stream, &target, &dialling, &current).await;
                let reason = end.reason().name();
                tracing::warn!(%node, reason, %end, "the link to another node has ended");
            }
            Ok(Err(error)) => {
                tracing::debug!(node = %target.name, %error, "cannot dial another node");
            }
            Err(_) => tracing::debug!(node = %target.name, "another node does not answer"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// A link's socket, at either end, with the options of one.
pub(super) fn link_socket(socket: TcpStream) -> io::Result<ReadAhead<TcpStream>> {
    socket.set_nodelay(true)?;
    set_user_timeout(&socket, Some(USER_TIMEOUT))?;
    set_unsent_limit(&socket, limits::UNSENT_BYTES)?;
    Ok(ReadAhead::new(socket))
}

async fn dial(target: &Target, tls: &PeerTls) -> io::Result<TlsStream<ReadAhead<TcpStream>>> {
    let config = tls.client(&target.name).map_err(io::Error::other)?;
    let socket = TcpStream::connect(target.address.as_str()).await?;
    let socket = link_socket(socket)?;
    // Sent as a hint only: the certificate's URI decides.
    let name = ServerName::try_from("tunnel-node").map_err(io::Error::other)?;
    let mut stream = TlsConnector::from(config).connect(name, socket).await?;
    let connection = stream.get_mut().1;
    connection.set_buffer_limit(Some(limits::TLS_BYTES));
    match connection.alpn_protocol() {
        Some(ALPN) => Ok(stream),
        _ => Err(io::Error::other("the other end is no peer listener")),
    }
}

/// Moves the bytes of a link until it ends; returns why it did.
async fn carry(
    stream: TlsStream<ReadAhead<TcpStream>>,
    target: &Target,
    Dialling {
        open,
        linked,
        reporter,
        memory,
        ..
    }: &Dialling,
    current: &ArcSwapOption<Session>,
) -> SessionEnd {
    let settings = SessionSettings {
        ping_interval: PING_INTERVAL,
        exchanges: limits::EXCHANGES_MAX,
        silence: SilenceLimits::DATA_CENTRE,
    };
    let (session, mut events, driver) = Session::new(stream, Bytes::new(), Side::Server, settings);
    session.set_account(memory);
    current.store(Some(Arc::new(session.clone())));
    open.inc();
    linked.notify_waiters();
    let _open = OpenLink {
        session: current,
        open,
    };
    let listen = async {
        while let Some(event) = events.next(&session).await {
            if let SessionEvent::Control(Control::Drain { .. }) = event {
                // The other node ends.
                session.start_drain();
            }
        }
    };
    let reporting = async {
        match reporter {
            Some(directory) => send_reports(directory, target, &session).await,
            None => pending().await,
        }
    };
    tokio::select! {
        (end, ()) = async { tokio::join!(driver, listen) } => end,
        never = reporting => match never {},
    }
}

/// Sends reports to the other node; never ends.
async fn send_reports(directory: &EtcdDirectory, target: &Target, session: &Session) -> Infallible {
    let mut each = interval(REPORT_INTERVAL);
    each.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = SentReports::default();
    let node = NodeRun {
        node: target.name.clone(),
        incarnation: target.incarnation,
    };
    loop {
        each.tick().await;
        directory.report_to(&node, &mut sent, |report| {
            session.send(Control::Node { report }).is_ok()
        });
    }
}

impl Drop for OpenLink<'_> {
    fn drop(&mut self) {
        self.session.store(None);
        self.open.dec();
    }
}
