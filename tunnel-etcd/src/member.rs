//! The connection to one member: TCP, TLS if its URL says so, HTTP/2.
//!
//! Made here rather than by tonic's transport, which balances calls over members that it cannot reach, has TLS of its
//! own, and needs twice as many crates.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    str::FromStr,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
};
use tonic::{body::Body, client::Grpc};
use tower_service::Service;
use tunnel_ops::connect::tls;

use crate::error::EtcdError;

/// Time between pings of an open connection. etcd ends a connection that is pinged more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Time for the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Flow-control window of a stream and of a connection: a page of a listing in one go.
const WINDOW: u32 = 2 << 20;

/// The URL of a member: `http://10.0.0.1:2379` or `https://etcd-0.example.com:2379`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberUrl {
    text: String,
    host: String,
    port: u16,
    is_tls: bool,
}

/// The text is no URL of a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no URL of an etcd member: use http://HOST:PORT or https://HOST:PORT")]
pub struct BadMemberUrl(String);

/// etcd's port where the URL has none.
const DEFAULT_PORT: u16 = 2379;

impl FromStr for MemberUrl {
    type Err = BadMemberUrl;

    fn from_str(text: &str) -> Result<Self, BadMemberUrl> {
        let bad = || BadMemberUrl(text.to_owned());
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| bad())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?;
        if !matches!(uri.path(), "" | "/") || authority.as_str().contains('@') {
            return Err(bad());
        }
        let host = authority.host().trim_matches(['[', ']']);
        Ok(Self {
            text: text.trim_end_matches('/').to_owned(),
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(DEFAULT_PORT),
            is_tls,
        })
    }
}

impl MemberUrl {
    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }
}

impl fmt::Display for MemberUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One member, with its connection while there is one.
pub(crate) struct Member {
    url: MemberUrl,
    /// Shared by all members.
    tls: Arc<Mutex<Arc<ClientConfig>>>,
    connection: Mutex<Option<Connection>>,
    /// Held while dialling, so that one call dials for all that wait.
    dialling: tokio::sync::Mutex<()>,
}

/// An open connection. It ends when its last clone is dropped.
#[derive(Clone)]
pub(crate) struct Connection {
    sender: SendRequest<Body>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Member {
    pub(crate) fn new(url: MemberUrl, tls: Arc<Mutex<Arc<ClientConfig>>>) -> Self {
        Self {
            url,
            tls,
            connection: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    /// Its URL, for people.
    pub(crate) fn name(&self) -> &str {
        &self.url.text
    }

    /// A client of its connection, which is made if there is none.
    pub(crate) async fn grpc(&self) -> Result<(Grpc<Connection>, Connection), EtcdError> {
        let connection = match self.open_connection() {
            Some(connection) => connection,
            // Boxed, since most calls find a connection.
            None => Box::pin(self.new_connection()).await?,
        };
        let scheme = if self.url.is_tls { "https" } else { "http" };
        let origin = Uri::builder()
            .scheme(scheme)
            .authority(self.authority())
            .path_and_query("/")
            .build()
            .map_err(|error| self.unreachable(error))?;
        let grpc = Grpc::with_origin(connection.clone(), origin);
        Ok((grpc, connection))
    }

    /// Makes the next call dial anew, unless a newer connection has already replaced `lost`. Calls and watches that run
    /// on the lost one keep it.
    pub(crate) fn drop_connection(&self, lost: &Connection) {
        self.connection
            .lock()
            .take_if(|current| current.is_same(lost));
    }

    fn open_connection(&self) -> Option<Connection> {
        let current = self.connection.lock().clone();
        current.filter(|current| !current.sender.is_closed())
    }

    async fn new_connection(&self) -> Result<Connection, EtcdError> {
        let _dialling = self.dialling.lock().await;
        // The call before may have made one.
        if let Some(connection) = self.open_connection() {
            return Ok(connection);
        }
        let connection = self.dial().await?;
        *self.connection.lock() = Some(connection.clone());
        Ok(connection)
    }

    fn authority(&self) -> String {
        let MemberUrl { host, port, .. } = &self.url;
        match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    }

    async fn dial(&self) -> Result<Connection, EtcdError> {
        let MemberUrl { host, port, .. } = &self.url;
        let socket = TcpStream::connect((host.as_str(), *port)).await;
        let socket = socket.map_err(|error| self.unreachable(error))?;
        socket
            .set_nodelay(true)
            .map_err(|error| self.unreachable(error))?;
        if !self.url.is_tls {
            return self.begin(socket).await;
        }
        let name = tls::server_name(host).map_err(|error| self.unreachable(error))?;
        let config = self.tls.lock().clone();
        let socket = tls::handshake(socket, &config, name).await;
        self.begin(socket.map_err(|error| self.unreachable(error))?)
            .await
    }

    async fn begin<IO>(&self, io: IO) -> Result<Connection, EtcdError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tasks = Arc::new(Mutex::new(JoinSet::new()));
        let executor = ConnectionTasks(Arc::downgrade(&tasks));
        let (sender, driver) = http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| self.unreachable(error))?;
        // Each call gets the error of the connection.
        tasks.lock().spawn(async move { drop(driver.await) });
        Ok(Connection { sender, tasks })
    }

    fn unreachable(&self, error: impl fmt::Display) -> EtcdError {
        EtcdError::Unreachable {
            member: self.name().to_owned(),
            reason: error.to_string(),
        }
    }
}

impl Connection {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tasks, &other.tasks)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("url", &self.url.text)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.lock().len();
        f.debug_struct("Connection").field("tasks", &tasks).finish()
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}

/// Starts the tasks of a connection, which end with it.
#[derive(Clone)]
struct ConnectionTasks(Weak<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for ConnectionTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            let mut tasks = tasks.lock();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { drop(task.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tunnel_ops::tls_files::{Roots, client_config};

    use super::*;

    #[tokio::test]
    async fn only_the_lost_connection_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tls = client_config(&Roots::none(), None, &[b"h2"]).unwrap();
        let member = Member::new(url.parse().unwrap(), Arc::new(Mutex::new(tls)));
        let (_, first) = member.grpc().await.unwrap();
        let (_, shared) = member.grpc().await.unwrap();
        assert!(shared.is_same(&first));

        member.drop_connection(&first);
        let (_, second) = member.grpc().await.unwrap();
        assert!(!second.is_same(&first));

        // Another call that was on the first one times out later.
        member.drop_connection(&first);
        let (_, third) = member.grpc().await.unwrap();
        assert!(third.is_same(&second));
    }

    #[test]
    fn urls_of_members() {
        let parse = |text: &str| text.parse::<MemberUrl>();
        let url = parse("https://etcd-0.example.com:2379/").unwrap();
        assert!(url.is_tls() && url.to_string() == "https://etcd-0.example.com:2379");
        let url = parse("http://[::1]").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", DEFAULT_PORT));
        for bad in [
            "10.0.0.1:2379",
            "ftp://a:1",
            "http://a:1/path",
            "http://u@a:1",
            "",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
