//! Upstreams that are asked through a session in memory, as exchanges ask them, with upstreams and
//! name servers that do what a test says.

mod limits;
mod names;
mod secure;
mod several;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use testkit::deadline::SOON;
use tokio::io::duplex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tunnel_ops::task::Owned;
use tunnel_proto::exchange::{AsProblem, ExchangeError, RecvBody, exchange, serve};
use tunnel_proto::problem::{Problem, Reason};
use tunnel_proto::session::{Session, SessionEvent, SessionEvents, SessionSettings, Side};

use super::*;
use crate::request::{Informational, RequestBody};

/// What a route leads to.
enum Target {
    One(Arc<Upstream>),
    Several(Arc<UpstreamSet>),
}

/// A tunnel server's end of a session, at whose other end all requests go to one target.
struct Route {
    session: Session,
    _events: SessionEvents,
    _tasks: Vec<Owned<()>>,
}

fn options() -> UpstreamOptions {
    UpstreamOptions {
        tls: None,
        connect_timeout: SOON,
        head_timeout: SOON,
        idle_timeout: None,
        max_body: None,
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
        let settings = SessionSettings::default();
        let (session, server_events, driver) =
            Session::new(server_io, Bytes::new(), Side::Server, settings);
        let driving = Owned::spawn("server", async move {
            driver.await;
        });
        let (client, mut events, driver) =
            Session::new(client_io, Bytes::new(), Side::Client, settings);
        let client_driving = Owned::spawn("client", async move {
            driver.await;
        });
        let target = Arc::new(target);
        let serving = Owned::spawn("serving", async move {
            let mut streams = JoinSet::new();
            while let Some(event) = events.next(&client).await {
                let SessionEvent::Stream(stream) = event else {
                    continue;
                };
                let target = Arc::clone(&target);
                streams.spawn(serve(
                    stream,
                    move |request: Request<RecvBody>, informational| {
                        let target = Arc::clone(&target);
                        let progress = Progress::of_test();
                        let request = request.map(RequestBody::Session);
                        let informational = Informational::Session(informational);
                        let mut routed = RoutedRequest::new(request, informational, progress);
                        async move { target.forward(&mut routed).await }
                    },
                ));
            }
        });
        Self {
            session,
            _events: server_events,
            _tasks: vec![driving, client_driving, serving, supervising],
        }
    }

    /// One exchange, up to the head of its response.
    async fn ask<B>(&self, request: Request<B>) -> Result<Response<RecvBody>, Problem>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + fmt::Debug,
    {
        match timeout(SOON, exchange(&self.session, request, |_, _| {})).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(ExchangeError::Failed { problem, .. })) => Err(problem),
            Ok(Err(other)) => panic!("{other:?}"),
            Err(_) => panic!("no answer"),
        }
    }

    /// The content of an answer that is whole.
    async fn fetch<B>(&self, request: Request<B>) -> String
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + fmt::Debug,
    {
        let response = self.ask(request).await.unwrap();
        let content = timeout(SOON, response.into_body().collect()).await;
        let content = content.unwrap().unwrap().to_bytes();
        String::from_utf8(content.to_vec()).unwrap()
    }

    async fn failure<B>(&self, request: Request<B>) -> Reason
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + fmt::Debug,
    {
        self.ask(request).await.unwrap_err().reason()
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
