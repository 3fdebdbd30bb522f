//! A server under test: bound in this process on ports of its own, with runtimes to dial in as.

use std::{collections::HashMap, net::SocketAddr, sync::LazyLock, time::Duration};

use rustls_pki_types::ServerName;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{self, Duplex, RawConnection},
    tunnel::client::ServerUnderTest,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnel_ops::{
    config_file::TomlFile,
    signals::{Shutdown, Trigger},
    task::Owned,
    tls_files::{self, Identity, Roots},
};
use tunnel_server::{
    certs::{self, Certificates},
    config::Config,
    runtimes::{
        HostName, Runtimes,
        edit::{TokenAddition, add_token},
    },
    server::{Addresses, BindError, RunError, Server},
    token::Token,
};

use crate::access_lines::access_log;

/// A runtime, and the host under which it is reached.
pub(crate) const PROD: &str = "acme-prod";
pub(crate) const PROD_HOST: &str = "acme-prod.tunnels.test";

/// Another account's runtime, which has a host of its own too.
pub(crate) const DEV: &str = "globex-dev";
pub(crate) const DEV_HOST: &str = "globex-dev.tunnels.test";
pub(crate) const DEV_OWN_HOST: &str = "api.globex.test";

/// Made once: keys take their time in a debug build.
static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(|| {
    let names = ["localhost", "*.tunnels.test", DEV_OWN_HOST].map(str::to_owned);
    certs::generate(&names, 1).unwrap()
});

/// A running server.
pub(crate) struct Rig {
    pub(crate) addresses: Addresses,
    pub(crate) trigger: Trigger,
    tokens: HashMap<&'static str, Token>,
    running: Owned<Result<(), RunError>>,
}

impl ServerUnderTest for Rig {
    fn token(&self, runtime: &str) -> &str {
        self.token(runtime)
    }

    async fn connect(&self) -> Box<dyn Duplex> {
        Box::new(self.tunnel().await)
    }
}

impl Rig {
    /// A server with two shards, short waits, and nothing else that is unusual.
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// The same with another configuration.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::listing(|listed| listed, change).await
    }

    /// The same with another runtimes file.
    pub(crate) async fn listing(
        edit: impl FnOnce(String) -> String,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let (config, tokens) = configuration(edit, change);
        let server = Server::bind(config, access_log()).await.unwrap();
        let addresses = server.addresses();
        let (trigger, shutdown) = Shutdown::manual();
        Self {
            addresses,
            trigger,
            tokens,
            running: Owned::spawn("server", server.run(shutdown)),
        }
    }

    /// Why a second server cannot be started with this configuration.
    pub(crate) async fn second(&self, change: impl FnOnce(&mut Config)) -> BindError {
        Server::bind(configuration(|listed| listed, change).0, access_log())
            .await
            .err()
            .expect("it could")
    }

    /// A connection to the public listener, as it is.
    pub(crate) async fn raw(&self) -> RawConnection {
        RawConnection::over(connect(self.addresses.public).await)
    }

    /// A connection to the public listener with TLS.
    pub(crate) async fn raw_tls(&self, alpn: &[&[u8]]) -> RawConnection {
        RawConnection::over(tls(connect(self.addresses.public).await, alpn).await)
    }

    /// The token of a runtime.
    pub(crate) fn token(&self, runtime: &str) -> &str {
        self.tokens[runtime].expose()
    }

    /// A TLS connection to the tunnel listener.
    pub(crate) async fn tunnel(&self) -> TlsStream<TcpStream> {
        tls(connect(self.addresses.tunnel).await, &[b"http/1.1"]).await
    }

    /// What the admin listener says at a path: status and body.
    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        ask_admin(self.addresses.admin, path).await
    }

    /// The value of one series, 0 while there is none. `series` is name and labels as shown.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        metric_at(self.addresses.admin, series).await
    }

    /// Waits until a series has a value.
    pub(crate) async fn metric_becomes(&self, series: &str, wanted: f64) {
        metric_becomes_at(self.addresses.admin, series, wanted).await;
    }

    /// Asks the server to stop, and waits until it has.
    pub(crate) async fn stop(self) {
        self.trigger.request();
        self.stopped().await;
    }

    /// Waits until the server has failed.
    pub(crate) async fn failed(self) -> RunError {
        let ended = soon("the server's failure", self.running).await.unwrap();
        ended.expect_err("it has stopped in order")
    }

    /// Ends the server as a crash does.
    pub(crate) fn kill(self) {
        self.running.abort();
    }

    /// Waits until the server has stopped.
    pub(crate) async fn stopped(self) {
        soon("the server's end", self.running)
            .await
            .unwrap()
            .unwrap();
    }
}

fn configuration(
    edit: impl FnOnce(String) -> String,
    change: impl FnOnce(&mut Config),
) -> (Config, HashMap<&'static str, Token>) {
    let domain: HostName = "tunnels.test".parse().unwrap();
    let (runtimes, tokens) = runtimes(&domain, edit);
    let mut config = Config::new(identity(), runtimes, domain);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    config.settings.tunnel_listen = any;
    config.settings.public_listen = any;
    config.settings.admin_listen = any;
    config.settings.shards = 2;
    config.settings.offline_wait = Duration::from_millis(50);
    config.settings.grace_period = Duration::from_secs(5);
    change(&mut config);
    (config, tokens)
}

/// What an admin listener says at a path: status and body.
pub(crate) async fn ask_admin(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = http1::get(address, "localhost", path).await;
    (answer.head.status(), answer.text())
}

/// The value of one series, 0 while there is none.
pub(crate) async fn metric_at(address: SocketAddr, series: &str) -> f64 {
    let (_, text) = ask_admin(address, "/metrics").await;
    text.lines()
        .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .map(|value| value.parse().unwrap())
        .next()
        .unwrap_or(0.0)
}

/// Waits until a series has a value.
pub(crate) async fn metric_becomes_at(address: SocketAddr, series: &str, wanted: f64) {
    eventually(SOON, &format!("{series} to be {wanted}"), async || {
        #[allow(clippy::float_cmp, reason = "counts are whole numbers")]
        (metric_at(address, series).await == wanted).then_some(())
    })
    .await;
}

/// The CA of that certificate.
pub(crate) fn roots() -> Roots {
    Roots::from_pem(&CERTIFICATES.ca_pem).unwrap()
}

/// The CA of that certificate as PEM.
pub(crate) fn ca_pem() -> &'static str {
    &CERTIFICATES.ca_pem
}

/// Certificate and key for every listener.
pub(crate) fn identity() -> Identity {
    Identity::from_pem(&CERTIFICATES.server_pem, &CERTIFICATES.server_key).unwrap()
}

/// A TCP connection.
pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    let socket = soon("a connection", TcpStream::connect(address))
        .await
        .unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// TLS over a connection, with the server's certificate checked.
pub(crate) async fn tls(socket: TcpStream, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
    try_tls(socket, alpn).await.unwrap()
}

/// The same, where it may fail.
pub(crate) async fn try_tls(
    socket: TcpStream,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    try_tls_as(socket, "localhost", alpn).await
}

/// TLS over a connection, by this name of the server.
pub(crate) async fn try_tls_as(
    socket: TcpStream,
    name: &'static str,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = tls_files::client_config(&roots(), None, alpn).unwrap();
    let name = ServerName::try_from(name).unwrap();
    soon(
        "a TLS handshake",
        TlsConnector::from(config).connect(name, socket),
    )
    .await
}

fn runtimes(
    domain: &HostName,
    edit: impl FnOnce(String) -> String,
) -> (Runtimes, HashMap<&'static str, Token>) {
    let mut text = String::new();
    let mut tokens = HashMap::new();
    for (label, account, name, hosts) in [
        (PROD, "acme", "prod", &[][..]),
        (DEV, "globex", "dev", &[DEV_OWN_HOST.parse().unwrap()][..]),
    ] {
        let token = Token::generate().unwrap();
        let addition = TokenAddition {
            account: &account.parse().unwrap(),
            runtime: &name.parse().unwrap(),
            hosts,
            token: &token,
            created: None,
            expires: None,
            note: None,
        };
        text = add_token(&text, &addition).unwrap();
        tokens.insert(label, token);
    }
    let file = TomlFile::from_text("runtimes.toml", edit(text));
    (Runtimes::parse(&file, domain).unwrap(), tokens)
}
