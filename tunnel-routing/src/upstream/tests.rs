//! Upstreams that are asked through a session in memory, as exchanges ask them, with upstreams and
//! name servers that do what a test says.

mod limits;
mod names;
mod secure;
mod several;
mod simulation;
mod uploads;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use testkit::deadline::SOON;
use testkit::tunnel::{FakeEnd, answer_all};
use tokio::io::duplex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tunnel_ops::task::Owned;
use tunnel_proto::exchange::{AsProblem, RecvBody};
use tunnel_proto::problem::{Problem, Reason};
use tunnel_proto::session::{SessionEnd, SessionSettings, Side};

use super::*;
use crate::request::{Informational, RequestBody};

/// What a route leads to.
enum Target {
    One(Arc<Upstream>),
    Several(Arc<UpstreamSet>),
}

/// A tunnel server's end of a session, at whose other end all requests go to one target.
struct Route {
    server: FakeEnd,
    _client: Owned<SessionEnd>,
    _tasks: [Owned<()>; 2],
}

fn options() -> UpstreamOptions {
    UpstreamOptions {
        tls: None,
        connect_timeout: SOON,
        head_timeout: SOON,
        idle_timeout: None,
        max_body: None,
        http: UpstreamHttp::Auto,
    }
}

fn shared() -> Arc<UpstreamShared> {
    Arc::new(UpstreamShared::new(
        &[],
        tunnel_proto::memory::MemoryAccount::new(usize::MAX),
        64,
    ))
}

/// An upstream with these options.
fn upstream(url: &str, options: &UpstreamOptions) -> Arc<Upstream> {
    Arc::new(Upstream::new(url.parse().unwrap(), options, &shared()).unwrap())
}

impl Target {
    async fn forward(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        match self {
            Self::One(upstream) => upstream.forward(request).await,
            Self::Several(set) => set.forward(request).await,
        }
    }
}

impl Route {
    /// To one upstream.
    fn to(upstream: Arc<Upstream>) -> Self {
        let supervised = Arc::clone(&upstream);
        let supervising = Owned::spawn("supervising", async move { supervised.supervise().await });
        Self::new(Target::One(upstream), supervising)
    }

    /// To several.
    fn to_set(set: UpstreamSet) -> (Self, Arc<UpstreamSet>) {
        let set = Arc::new(set);
        let supervised = Arc::clone(&set);
        let supervising = Owned::spawn("supervising", async move { supervised.supervise().await });
        (
            Self::new(Target::Several(Arc::clone(&set)), supervising),
            set,
        )
    }

    fn new(target: Target, supervising: Owned<()>) -> Self {
        let (server_io, client_io) = duplex(64 * 1024);
        let end = |io, side| FakeEnd::new(io, Bytes::new(), side, SessionSettings::default());
        let client = end(client_io, Side::Client);
        let target = Arc::new(target);
        let answer = move |request: Request<RecvBody>, informational| {
            let target = Arc::clone(&target);
            let request = request.map(RequestBody::Session);
            let informational = Informational::Session(informational);
            let mut routed = RoutedRequest::new(request, informational, Progress::of_test());
            async move { target.forward(&mut routed).await }
        };
        let serving = answer_all(client.session, client.events, answer, |_| {});
        Self {
            server: end(server_io, Side::Server),
            _client: client.driver,
            _tasks: [Owned::spawn("serving", serving), supervising],
        }
    }

    /// The content of an answer that is whole.
    async fn fetch<B>(&self, request: Request<B>) -> String
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + fmt::Debug,
    {
        self.server.fetch(request).await.into_body()
    }
}

impl Deref for Route {
    type Target = FakeEnd;

    fn deref(&self) -> &FakeEnd {
        &self.server
    }
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("https://a-b.tunnels.test{path}"))
        .body(Empty::new())
        .unwrap()
}

/// An answer with this content.
fn answer(content: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{content}",
        content.len()
    )
}
