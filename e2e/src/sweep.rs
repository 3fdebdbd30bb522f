//! What one hostile peer can do to others: each shape of hostility, over each protocol, from each place.
//!
//! ```text
//!   hostile platform clients ──▶ tunnel server ──▶ tunnel client ──▶ hostile upstream
//!                                   │    ▲            │
//!   neighbours ─────────────────────┘    └─ hostile   └▶ hostile tunnel server
//!                                           tunnel client
//! ```
//!
//! A [`Shape`] is one item of [`shapes::SHAPES`]. It says for a [`Place`] and a [`Protocol`] what the hostile peers do, as an
//! [`Attack`], or that there is no such thing. A [`stand::Stand`] has programs with default settings, neighbours and upstreams;
//! [`cell::Cell`] runs an attack there, and [`table`] shows what came of it.

pub mod bounds;
pub mod cell;
pub mod encode;
mod hostile;
pub mod line;
pub mod neighbour;
pub mod origin;
pub mod peer;
pub mod shapes;
pub mod stand;
pub mod table;
pub mod tunnel_end;

use std::{pin::Pin, sync::Arc};

use self::{
    origin::Exchange,
    peer::{Peer, Reads},
    tunnel_end::TunnelEnd,
};

/// What a platform client speaks, and with that what it is answered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, on both sides.
    Http1,
    /// HTTP/2 without TLS. From a platform client the upstream speaks HTTP/1.1, as it does by default.
    Http2,
    /// A WebSocket over HTTP/1.1.
    WebSocket,
    /// Calls of gRPC, over HTTP/2 on both sides.
    Grpc,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Http1, Self::Http2, Self::WebSocket, Self::Grpc];

    /// Whether it is HTTP/2.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::WebSocket => "WebSocket",
            Self::Grpc => "gRPC",
        }
    }
}

/// Where the hostile peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A platform client at the server's public listener.
    Public,
    /// A platform client at the listener of `tunnel-client serve`.
    Serve,
    /// An upstream, or one path of it, of a tunnel client.
    Upstream,
    /// A tunnel client with a token of its own.
    TunnelClient,
    /// A tunnel server that a client dials beside a good one.
    TunnelServer,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Public,
        Self::Serve,
        Self::Upstream,
        Self::TunnelClient,
        Self::TunnelServer,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "public listener",
            Self::Serve => "`serve`",
            Self::Upstream => "hostile upstream",
            Self::TunnelClient => "hostile tunnel client",
            Self::TunnelServer => "hostile server",
        }
    }
}

/// Something to do, again and again.
pub type Deed<T> = Arc<dyn Fn(T) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A deed of a function.
pub fn deed<T, F>(function: impl Fn(T) -> F + Send + Sync + 'static) -> Deed<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    Arc::new(move |of| Box::pin(function(of)))
}

/// A kind of hostility.
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// What it is from a place over a protocol; `None` where it is nothing.
    pub attack: fn(Place, Protocol) -> Option<Attack>,
}

/// What programs and neighbours have to have for an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing.
    Plain,
    /// TLS at the public listener.
    PublicTls,
    /// A PROXY header is expected from the hostile addresses.
    ProxyHeader,
    /// The hostile upstream is asked for TLS.
    UpstreamTls,
    /// Nothing listens where the hostile upstream should.
    NoUpstream,
    /// Hostile peers connect to the tunnel listener.
    TunnelListener,
    /// Hostile peers dial as tunnel clients, with a token that nobody has given.
    WrongToken,
    /// The hostile tunnel server refuses each dial.
    RefusingServer,
}

/// Connections of platform clients, hostile or not.
#[derive(Clone)]
pub struct Callers {
    /// How many are open at once.
    pub count: usize,
    /// What each does. Behind that it stays open.
    pub deed: Deed<Arc<Peer>>,
    /// What each reads.
    pub reads: Reads,
    /// The window of each stream of HTTP/2.
    pub window: u32,
    /// Whether there is a new one when it has done all.
    pub is_repeated: bool,
}

/// What hostile peers do, and those who ask for it.
#[derive(Clone)]
pub struct Attack {
    /// Platform clients.
    pub callers: Option<Callers>,
    /// The upstream.
    pub upstream: Deed<Exchange>,
    /// The hostile end of a tunnel.
    pub tunnel_end: Option<Deed<TunnelEnd>>,
    /// What the programs are started for.
    pub stage: Stage,
}

impl Attack {
    /// Nothing, before an upstream that takes requests and never answers.
    pub fn new() -> Self {
        Self {
            callers: None,
            upstream: deed(hold),
            tunnel_end: None,
            stage: Stage::Plain,
        }
    }

    /// So many connections of platform clients that read what comes.
    #[must_use]
    pub fn by_callers<F>(
        mut self,
        count: usize,
        of: impl Fn(Arc<Peer>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.callers = Some(Callers {
            count,
            deed: deed(of),
            reads: Reads::All,
            window: 65_535,
            is_repeated: false,
        });
        self
    }

    /// The platform clients read only this, and their streams have this window.
    #[must_use]
    pub fn that_read(mut self, reads: Reads, window: u32) -> Self {
        if let Some(callers) = &mut self.callers {
            callers.reads = reads;
            callers.window = window;
        }
        self
    }

    /// The platform clients connect again when they have done all.
    #[must_use]
    pub fn again(mut self) -> Self {
        if let Some(callers) = &mut self.callers {
            callers.is_repeated = true;
        }
        self
    }

    /// The upstream does this with each request.
    #[must_use]
    pub fn answered<F>(mut self, by: impl Fn(Exchange) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.upstream = deed(by);
        self
    }

    /// The end of the tunnel does this.
    #[must_use]
    pub fn by_tunnel_end<F>(mut self, of: impl Fn(TunnelEnd) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tunnel_end = Some(deed(of));
        self
    }

    /// The programs are started for this.
    #[must_use]
    pub fn at(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }
}

impl Default for Attack {
    fn default() -> Self {
        Self::new()
    }
}

/// An upstream that keeps a request, and neither reads nor answers; a WebSocket is opened.
pub async fn hold(exchange: Exchange) {
    if exchange.peer.protocol() == Protocol::WebSocket {
        exchange.peer.answer(exchange.stream, &[], false).await;
    }
    std::future::pending().await
}
