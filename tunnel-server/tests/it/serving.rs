//! The program as a process that serves: its files, which a test edits; its log; and the ways to it.

use std::{net::SocketAddr, process::Stdio};

use http::Request;
use rustls_pki_types::ServerName;
use serde_json::Value;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::RawConnection,
    tunnel::{
        body::{Feed, data},
        client::{Connected, FakeClient, dial_over, random_instance, session_request},
    },
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    process::{Child, ChildStderr, Command},
    sync::{mpsc, watch},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel_ops::{
    task::Owned,
    tls_files::{self, Identity, Roots},
};
use tunnel_proto::handshake::Refusal;
use tunnel_server::{
    certs::{self, Certificates},
    runtimes::edit::{TokenAddition, add_token},
    token::Token,
};

use crate::{
    program::Folder,
    rig::{connect, metric_at, metric_becomes_at},
    sessions::answering_on,
};

pub(crate) const VERSION: &str = "tunnel_server_config_version";
pub(crate) const SUCCEEDED: &str = "tunnel_server_config_last_reload_succeeded";

/// The settings that every test needs; `runtimes.toml` is beside the file.
const SETTINGS: &str = r#"
tls_cert = "server.pem"
tls_key = "server.key"
runtimes = "runtimes.toml"
domain = "tunnels.test"
tunnel_listen = "127.0.0.1:0"
public_listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
shards = 1
offline_wait = "0s"
drain_spread = "0s"
grace_period = "1s"
log_format = "json"
"#;

/// The files of a server that is to be started.
pub(crate) struct Files {
    pub(crate) folder: Folder,
    /// Of what `server.pem` is part of.
    pub(crate) made: Certificates,
}

/// The program, serving.
pub(crate) struct Serving {
    pub(crate) folder: Folder,
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    tunnel: SocketAddr,
    roots: Roots,
    log: watch::Receiver<Vec<Value>>,
    _reading: Owned<()>,
    program: Child,
}

/// A response that goes on for as long as a test likes.
pub(crate) struct OpenStream {
    raw: RawConnection,
    feed: Feed,
}

impl Files {
    /// With an empty runtimes file.
    pub(crate) fn new() -> Self {
        let folder = Folder::new();
        let made = certs::generate(&["localhost".to_owned()], 1).unwrap();
        folder.write("server.pem", &made.server_pem);
        folder.write("server.key", &made.server_key);
        folder.write("runtimes.toml", "");
        Self { folder, made }
    }

    /// Adds a runtime with a token to the runtimes file.
    pub(crate) fn add(&self, account: &str, runtime: &str) -> Token {
        add(&self.folder, account, runtime)
    }

    /// Starts the program with these settings more.
    pub(crate) async fn serve(self, settings: &str) -> Serving {
        let roots = Roots::from_pem(&self.made.ca_pem).unwrap();
        Serving::start(self.folder, roots, settings).await
    }
}

/// The settings of all tests, but those that are set here.
fn with(settings: &str) -> String {
    let key = |line: &str| line.split(" = ").next().map(str::to_owned);
    let set: Vec<_> = settings.lines().map(key).collect();
    let kept = SETTINGS.lines().filter(|line| !set.contains(&key(line)));
    let lines: Vec<&str> = kept.chain(settings.lines()).collect();
    lines.join("\n")
}

fn add(folder: &Folder, account: &str, runtime: &str) -> Token {
    let token = Token::generate().unwrap();
    let addition = TokenAddition {
        account: &account.parse().unwrap(),
        runtime: &runtime.parse().unwrap(),
        hosts: &[],
        token: &token,
        created: None,
        expires: None,
        note: None,
    };
    let text = add_token(&folder.read("runtimes.toml"), &addition).unwrap();
    folder.write("runtimes.toml", &text);
    token
}

impl Serving {
    /// In this folder; whoever dials trusts these roots.
    pub(crate) async fn start(folder: Folder, roots: Roots, settings: &str) -> Self {
        folder.write("server.toml", &with(settings));
        let mut command = Command::from(folder.command(["run", "--config=server.toml"]));
        command.stderr(Stdio::piped()).kill_on_drop(true);
        let mut program = command.spawn().unwrap();
        let (lines, mut log) = watch::channel(Vec::new());
        let reading = Owned::spawn("log", read(program.stderr.take().unwrap(), lines));
        let listens = |lines: &Vec<Value>| address(lines, "admin").is_some();
        let lines = soon("a server that listens", log.wait_for(listens)).await;
        let lines = lines.expect("a server that goes on").clone();
        let of = |listener| address(&lines, listener).unwrap();
        Self {
            folder,
            public: of("public"),
            admin: of("admin"),
            tunnel: of("tunnel"),
            roots,
            log,
            _reading: reading,
            program,
        }
    }

    /// Adds a runtime with a token to the runtimes file.
    pub(crate) fn add(&self, account: &str, runtime: &str) -> Token {
        add(&self.folder, account, runtime)
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.program.id().unwrap()
    }

    /// Replaces the settings beside those of all tests.
    pub(crate) fn set(&self, settings: &str) {
        self.folder.write("server.toml", &with(settings));
    }

    pub(crate) async fn metric(&self, series: &str) -> f64 {
        metric_at(self.admin, series).await
    }

    pub(crate) async fn metric_becomes(&self, series: &str, wanted: f64) {
        metric_becomes_at(self.admin, series, wanted).await;
    }

    /// Waits for a line of the log.
    pub(crate) async fn logged(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut log = self.log.clone();
        let has = |lines: &Vec<Value>| lines.iter().any(&wanted);
        let lines = soon(what, log.wait_for(has)).await.expect("its server");
        lines.iter().find(|line| wanted(line)).unwrap().clone()
    }

    /// Sends the program a signal.
    pub(crate) async fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().await;
        assert!(sent.unwrap().success());
    }

    /// Stops the program, which takes no notice of anything before; all that it logged.
    pub(crate) async fn stop(mut self) -> Vec<Value> {
        self.signal("-TERM").await;
        let status = soon("the program's end", self.program.wait()).await;
        assert_eq!(status.unwrap().code(), Some(0));
        // The log ends with the program.
        while self.log.changed().await.is_ok() {}
        self.log.borrow().clone()
    }

    /// A TLS connection to the tunnel listener.
    pub(crate) async fn tls(
        &self,
        identity: Option<&Identity>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        self.tls_to(self.tunnel, identity).await
    }

    /// A TLS connection to the public listener.
    pub(crate) async fn public_tls(&self) -> TlsStream<TcpStream> {
        self.tls_to(self.public, None).await.unwrap()
    }

    async fn tls_to(
        &self,
        address: SocketAddr,
        identity: Option<&Identity>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let config = tls_files::client_config(&self.roots, identity, &[b"http/1.1"]).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let handshake = TlsConnector::from(config).connect(name, connect(address).await);
        soon("a TLS handshake", handshake).await
    }

    /// The answer to a request for a session with this token.
    pub(crate) async fn dial(&self, token: &str) -> Connected {
        let request = session_request(token, random_instance());
        dial_over(self.tls(None).await.unwrap(), &request).await
    }

    /// Why a session with this token is refused.
    pub(crate) async fn refusal(&self, token: &str) -> Refusal {
        let connected = self.dial(token).await;
        assert!(connected.status >= 400, "{}", connected.status);
        let Connected { io, behind, .. } = connected;
        let mut raw = RawConnection::over(io);
        let (rest, _) = raw.rest().await;
        serde_json::from_slice(&[&behind[..], &rest].concat()).unwrap()
    }

    /// A client with this token, at `/now` and with streams that the test feeds elsewhere; dialled again
    /// until it is let in.
    pub(crate) async fn client(&self, token: &str) -> (FakeClient, mpsc::Receiver<Feed>) {
        let connected = eventually(SOON, "a session", async || {
            let connected = self.dial(token).await;
            (connected.status == 101).then_some(connected)
        });
        answering_on(connected.await, "here".into()).await
    }

    /// A client with this certificate and no token.
    pub(crate) async fn client_with(
        &self,
        identity: &Identity,
    ) -> (FakeClient, mpsc::Receiver<Feed>) {
        let mut request: Request<()> = session_request("", random_instance());
        request.headers_mut().remove("authorization");
        let io = self.tls(Some(identity)).await.unwrap();
        let connected = dial_over(io, &request).await;
        answering_on(connected, "here".into()).await
    }

    /// The status at which a request for this path of a runtime is answered.
    pub(crate) async fn status(&self, label: &str, path: &str) -> u16 {
        let mut raw = RawConnection::over(connect(self.public).await);
        raw.ask(request(label, path)).await.head.status()
    }

    /// A stream through this client.
    pub(crate) async fn stream(&self, label: &str, feeds: &mut mpsc::Receiver<Feed>) -> OpenStream {
        OpenStream::begin(
            RawConnection::over(connect(self.public).await),
            label,
            feeds,
        )
        .await
    }
}

impl OpenStream {
    /// On a connection to the public listener.
    pub(crate) async fn begin(
        mut raw: RawConnection,
        label: &str,
        feeds: &mut mpsc::Receiver<Feed>,
    ) -> Self {
        raw.send(request(label, "/stream")).await;
        let feed = soon("a request", feeds.recv()).await.unwrap();
        assert_eq!(raw.head().await.unwrap().status(), 200);
        Self { raw, feed }
    }

    /// Checks that it does.
    pub(crate) async fn goes_on(&mut self) {
        self.feed.send(data("more")).await.unwrap();
        assert_eq!(self.raw.line().await.unwrap(), "4");
        assert_eq!(self.raw.bytes(6).await, b"more\r\n");
    }
}

fn request(label: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {label}.tunnels.test\r\n\r\n")
}

async fn read(log: ChildStderr, lines: watch::Sender<Vec<Value>>) {
    let mut log = BufReader::new(log).lines();
    while let Some(line) = log.next_line().await.unwrap() {
        let parsed = serde_json::from_str(&line);
        let line = parsed.unwrap_or(Value::String(line));
        lines.send_modify(|lines| lines.push(line));
    }
}

fn address(lines: &[Value], listener: &str) -> Option<SocketAddr> {
    let mut lines = lines.iter();
    let line = lines.find(|line| line["message"] == "listening" && line["listener"] == listener)?;
    line["address"].as_str()?.parse().ok()
}
