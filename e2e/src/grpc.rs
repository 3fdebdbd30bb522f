//! A gRPC client and server by tonic, with a small service that has a method of each kind.
//!
//! What a call is to do stands in its message ([`Say`]): be held, fail with details, go on for
//! ever. The server records each call and each one that was given up.

use std::{future::pending, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::mpsc::{Sender, channel},
    task::JoinSet,
    time::sleep,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Response, Result, Status, Streaming,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};

use crate::{
    deadline::SOON,
    entry::Entry,
    grpc::generated::{
        echo_client::EchoClient,
        echo_server::{Echo, EchoServer},
    },
    http1::Fields,
    record::Record,
};

/// What `build.rs` makes of the service's description.
mod generated {
    #![allow(
        missing_docs,
        unreachable_pub,
        unnameable_types,
        unused_qualifications,
        clippy::pedantic,
        clippy::too_many_lines,
        clippy::use_self,
        clippy::or_fun_call,
        clippy::allow_attributes_without_reason,
        reason = "generated code follows its generator's rules"
    )]
    include!(concat!(env!("OUT_DIR"), "/e2e.Echo.rs"));
}

/// A message, and what to do with it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Say {
    /// Comes back as it is.
    #[prost(string, tag = "1")]
    pub text: String,
    /// How many answers there shall be, where there may be many; 0 for no end.
    #[prost(uint32, tag = "2")]
    pub count: u32,
    /// The pause between answers, in milliseconds.
    #[prost(uint32, tag = "3")]
    pub every_ms: u32,
    /// A status code other than 0 is what the call ends with, with details and metadata.
    #[prost(int32, tag = "4")]
    pub fail_with: i32,
    /// Whether the call is to be held for ever.
    #[prost(bool, tag = "5")]
    pub hold: bool,
}

/// An answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Said {
    /// What was said; gathered texts are joined by spaces.
    #[prost(string, tag = "1")]
    pub text: String,
    /// The answer's number, from 0.
    #[prost(uint32, tag = "2")]
    pub number: u32,
}

/// The details that go with a failure.
pub const DETAILS: &[u8] = b"\x08\x09details \x00 of any bytes";

/// What happened at a gRPC server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A method was called, with this metadata.
    Called(&'static str, Fields),
    /// A call was given up before it had ended.
    GivenUp(&'static str),
}

/// A running gRPC server.
pub struct GrpcUpstream {
    address: SocketAddr,
    record: Arc<Record<Event>>,
    _serving: JoinSet<()>,
}

/// The service alone, for a server that answers other paths too.
#[derive(Clone)]
pub(crate) struct GrpcService(EchoServer<Service>);

impl Default for GrpcService {
    fn default() -> Self {
        Self(EchoServer::new(Service {
            record: Arc::default(),
            streams: Mutex::default(),
        }))
    }
}

impl GrpcService {
    /// Answers a call.
    pub(crate) async fn answer(
        &self,
        request: http::Request<Incoming>,
    ) -> http::Response<UnsyncBoxBody<Bytes, io::Error>> {
        let Ok(response) = tower_call(self.0.clone(), request).await;
        response.map(|body| body.map_err(io::Error::other).boxed_unsync())
    }
}

/// Calls a service that is always ready, as generated ones are.
async fn tower_call<S, R>(mut service: S, request: R) -> std::result::Result<S::Response, S::Error>
where
    S: tonic::codegen::Service<R>,
{
    service.call(request).await
}

/// A gRPC client of an entry.
pub type GrpcClient = EchoClient<Channel>;

impl GrpcUpstream {
    /// Starts a server on a free port, h2c.
    pub async fn start() -> Self {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let incoming = incoming.with_nodelay(Some(true));
        let address = incoming.local_addr().unwrap();
        let record = Arc::new(Record::default());
        let service = Service {
            record: record.clone(),
            streams: Mutex::default(),
        };
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let server = Server::builder().add_service(EchoServer::new(service));
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self {
            address,
            record,
            _serving: serving,
        }
    }

    /// The address as a tunnel client's `--upstream` wants it.
    pub fn url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// The server, without a tunnel before it.
    pub fn entry(&self) -> Entry {
        Entry::direct(self.address)
    }

    /// Waits for a call of `method` and gives its metadata.
    pub async fn wait_called(&self, method: &str) -> Fields {
        let called = |event: &Event| match event {
            Event::Called(name, fields) => (*name == method).then(|| fields.clone()),
            Event::GivenUp(_) => None,
        };
        self.record
            .wait_for("a call at the gRPC server", SOON, called)
            .await
    }

    /// Waits until a call of `method` was given up.
    pub async fn wait_given_up(&self, method: &str, limit: Duration) {
        let given_up = |event: &Event| match event {
            Event::GivenUp(name) => (*name == method).then_some(()),
            Event::Called(..) => None,
        };
        self.record
            .wait_for("a call at the gRPC server to be given up", limit, given_up)
            .await;
    }
}

/// A client of the service at `entry`; it connects with its first call.
///
/// # Panics
/// When the entry's authority makes no URL, which is a fault of the test.
pub fn client(entry: &Entry) -> GrpcClient {
    let address = entry.address();
    let connect = move |_| async move {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok::<_, io::Error>(TokioIo::new(socket))
    };
    let channel = Endpoint::from_shared(entry.url("")).unwrap();
    EchoClient::new(channel.connect_with_connector_lazy(ServiceFn(connect)))
}

/// A connector made of a function.
#[derive(Clone)]
struct ServiceFn<F>(F);

impl<F, R, T, E> tonic::codegen::Service<http::Uri> for ServiceFn<F>
where
    F: FnMut(http::Uri) -> R,
    R: Future<Output = std::result::Result<T, E>>,
{
    type Response = T;
    type Error = E;
    type Future = R;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::result::Result<(), E>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> R {
        (self.0)(uri)
    }
}

/// The server's side of the service.
struct Service {
    record: Arc<Record<Event>>,
    streams: Mutex<JoinSet<()>>,
}

type Answers = Pin<Box<dyn Stream<Item = Result<Said>> + Send>>;

impl Service {
    fn called<T>(&self, method: &'static str, request: &Request<T>) {
        let headers = request.metadata().clone().into_headers();
        self.record
            .push(Event::Called(method, crate::http1::fields(&headers)));
    }

    /// Answers that `produce` writes; it is stopped, and that recorded, when nobody reads on.
    fn stream<F>(
        &self,
        method: &'static str,
        produce: impl FnOnce(Sender<Result<Said>>) -> F,
    ) -> Answers
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (answers, stream) = channel(1);
        let (watched, record) = (answers.clone(), self.record.clone());
        let producing = produce(answers);
        self.streams.lock().spawn(async move {
            tokio::select! {
                () = producing => {}
                () = watched.closed() => record.push(Event::GivenUp(method)),
            }
        });
        Box::pin(ReceiverStream::new(stream))
    }
}

#[tonic::async_trait]
impl Echo for Service {
    type ManyStream = Answers;
    type ChatStream = Answers;

    async fn once(&self, request: Request<Say>) -> Result<Response<Said>> {
        self.called("Once", &request);
        let mut given_up = GivenUp {
            method: "Once",
            record: Some(self.record.clone()),
        };
        let answer = answer(request.into_inner(), 0).await;
        given_up.record = None;
        answer.map(Response::new)
    }

    async fn many(&self, request: Request<Say>) -> Result<Response<Answers>> {
        self.called("Many", &request);
        let say = request.into_inner();
        let last = say.count.checked_sub(1).unwrap_or(u32::MAX);
        Ok(Response::new(self.stream("Many", async move |answers| {
            for number in 0..=last {
                if number > 0 {
                    sleep(Duration::from_millis(say.every_ms.into())).await;
                }
                let said = Said {
                    text: say.text.clone(),
                    number,
                };
                if answers.send(Ok(said)).await.is_err() {
                    pending().await
                }
            }
            if say.fail_with != 0 {
                drop(answers.send(Err(failure(&say))).await);
            }
        })))
    }

    async fn gather(&self, request: Request<Streaming<Say>>) -> Result<Response<Said>> {
        self.called("Gather", &request);
        let mut given_up = GivenUp {
            method: "Gather",
            record: Some(self.record.clone()),
        };
        let mut messages = request.into_inner();
        let (mut texts, mut number) = (Vec::new(), 0);
        while let Some(say) = messages.next().await {
            texts.push(answer(say?, number).await?.text);
            number += 1;
        }
        given_up.record = None;
        Ok(Response::new(Said {
            text: texts.join(" "),
            number,
        }))
    }

    async fn chat(&self, request: Request<Streaming<Say>>) -> Result<Response<Answers>> {
        self.called("Chat", &request);
        let mut messages = request.into_inner();
        Ok(Response::new(self.stream("Chat", async move |answers| {
            let mut number = 0;
            while let Some(say) = messages.next().await {
                let said = match say {
                    Ok(say) => answer(say, number).await,
                    Err(_) => pending().await,
                };
                if answers.send(said).await.is_err() {
                    pending().await
                }
                number += 1;
            }
        })))
    }
}

async fn answer(say: Say, number: u32) -> Result<Said> {
    if say.hold {
        pending().await
    }
    if say.fail_with != 0 {
        return Err(failure(&say));
    }
    Ok(Said {
        text: say.text,
        number,
    })
}

fn failure(say: &Say) -> Status {
    let mut metadata = tonic::metadata::MetadataMap::new();
    metadata.insert("x-reason", "as you asked".parse().unwrap());
    metadata.insert_bin(
        "x-raw-bin",
        tonic::metadata::MetadataValue::from_bytes(DETAILS),
    );
    let code = Code::from_i32(say.fail_with);
    Status::with_details_and_metadata(code, &say.text, DETAILS.into(), metadata)
}

struct GivenUp {
    method: &'static str,
    record: Option<Arc<Record<Event>>>,
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(record) = &self.record {
            record.push(Event::GivenUp(self.method));
        }
    }
}
