//! An upstream that does what a test's script says, on raw bytes.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tunnel_ops::task::Owned;

/// A listener whose connections follow a script.
pub(crate) struct Scripted {
    address: SocketAddr,
    connections: watch::Receiver<usize>,
    _serving: Owned<()>,
}

/// One connection to it.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// Which one it is, from 0.
    pub(crate) number: usize,
}

/// A frame of HTTP/2 (RFC 9113 section 4.1).
pub(crate) struct Http2Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Http2Frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const GOAWAY: u8 = 7;

    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;

    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.to_vec(),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let (kind, stream) = ([self.kind, self.flags], self.stream.to_be_bytes());
        [&length[1..], &kind, &stream, &self.payload].concat()
    }
}

impl Scripted {
    /// Every connection follows the same script, and may look at its number.
    pub(crate) async fn start<F>(script: impl Fn(Connection) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().unwrap(), script).await
    }

    /// Starts at an address that the test chooses.
    pub(crate) async fn start_at<F>(
        address: SocketAddr,
        script: impl Fn(Connection) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (counted, connections) = watch::channel(0);
        let serving = Owned::spawn("upstream", async move {
            let mut tasks = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let number = *counted.borrow();
                counted.send_replace(number + 1);
                tasks.spawn(script(Connection { stream, number }));
            }
        });
        Self {
            address,
            connections,
            _serving: serving,
        }
    }

    /// Answers each request's head with these bytes, and keeps the connection.
    pub(crate) async fn answering(answer: &'static [u8]) -> Self {
        Self::start(move |mut connection| async move {
            while connection.head().await.is_some() {
                connection.send(answer).await;
            }
        })
        .await
    }

    /// Answers one request's head with these bytes, and closes the connection.
    pub(crate) async fn answering_once(answer: &'static [u8]) -> Self {
        Self::start(move |mut connection| async move {
            connection.head().await.unwrap();
            connection.send(answer).await;
        })
        .await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Waits until there have been more connections than so many.
    pub(crate) async fn more_connections(&self, than: usize) {
        let mut connections = self.connections.clone();
        connections.wait_for(|count| *count > than).await.unwrap();
    }
}

impl Connection {
    /// The next request's head; `None` when there is none.
    pub(crate) async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        Some(String::from_utf8(head).unwrap())
    }

    /// Begins HTTP/2 with the default settings.
    pub(crate) async fn begin_http2(&mut self) {
        const PREFACE: usize = 24;
        self.bytes(PREFACE).await;
        self.send(Http2Frame::new(Http2Frame::SETTINGS, 0, 0, &[]).bytes())
            .await;
    }

    /// The next frame of HTTP/2; `None` at the end of the connection.
    pub(crate) async fn http2_frame(&mut self) -> Option<Http2Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes(stream);
        Some(Http2Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// So many bytes.
    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// All bytes up to the end, or the reset.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest).await;
        rest
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }
}

/// An upstream that gives an answer each time that it is told to, and says when it was asked.
pub(crate) async fn slow() -> (Scripted, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (asked_in, asked) = mpsc::channel(8);
    let (answer, answers) = mpsc::channel::<()>(8);
    let answers = Arc::new(Mutex::new(answers));
    let upstream = Scripted::start(move |mut connection: Connection| {
        let (asked_in, answers) = (asked_in.clone(), answers.clone());
        async move {
            connection.head().await.unwrap();
            asked_in.send(()).await.unwrap();
            answers.lock().await.recv().await;
            connection
                .send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate")
                .await;
        }
    })
    .await;
    (upstream, asked, answer)
}
