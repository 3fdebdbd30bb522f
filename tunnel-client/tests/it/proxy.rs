//! The way to the server through proxies of the test's own: HTTP, HTTPS and SOCKS5, with and without
//! a login.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConfig;
use testkit::tunnel::server::FakeServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tunnel_client::config::{Config, LoginSource, ProxyChoice, ProxySettings, Trust};
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::{Roots, server_config};

use crate::setup::Running;

/// An upstream nobody asks anything.
const NOBODY: &str = "http://127.0.0.1:1";

/// A proxy that does only what a test tells it to.
struct TestProxy {
    address: SocketAddr,
    /// What it was asked: heads of HTTP, or targets of SOCKS.
    asked: Arc<Mutex<Vec<String>>>,
    _serving: Owned<()>,
}

/// What it wants before it lets anybody through.
#[derive(Clone)]
enum Wants {
    Nothing,
    /// These words in `Proxy-Authorization`; else this challenge, perhaps on a connection that it
    /// closes.
    Login {
        accepts: &'static str,
        challenge: &'static str,
        closes: bool,
    },
    /// To be asked by somebody else.
    Refuses(&'static str),
    /// This user and password, by SOCKS5.
    Password(&'static str, &'static str),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl TestProxy {
    async fn http(wants: Wants) -> Self {
        Self::start(wants, None, false).await
    }

    async fn socks(wants: Wants) -> Self {
        Self::start(wants, None, true).await
    }

    async fn start(wants: Wants, tls: Option<Arc<ServerConfig>>, is_socks: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        let serving = async move {
            let mut tasks = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (wants, tls, seen) = (wants.clone(), tls.clone(), Arc::clone(&seen));
                tasks.spawn(async move {
                    let mut stream: Box<dyn Stream> = match tls {
                        None => Box::new(tcp),
                        Some(tls) => match TlsAcceptor::from(tls).accept(tcp).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => return,
                        },
                    };
                    let target = match is_socks {
                        true => socks(&mut stream, &wants, &seen).await,
                        false => http(&mut stream, &wants, &seen).await,
                    };
                    if let Some(target) = target {
                        let mut server = TcpStream::connect(&target).await.unwrap();
                        let _ = copy_bidirectional(&mut stream, &mut server).await;
                    }
                });
            }
        };
        Self {
            address,
            asked,
            _serving: Owned::spawn("proxy", serving),
        }
    }

    fn settings(&self, scheme: &str, login: LoginSource) -> ProxySettings {
        let ProxyChoice::Proxy(url, None) = format!("{scheme}://{}", self.address).parse().unwrap()
        else {
            panic!("a proxy without a login")
        };
        ProxySettings {
            url,
            variable: None,
            login,
            trust: None,
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

/// Reads heads until one is good; where that one leads.
async fn http(
    stream: &mut Box<dyn Stream>,
    wants: &Wants,
    seen: &Mutex<Vec<String>>,
) -> Option<String> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        seen.lock().push(head.clone());
        let (answer, stays) = match wants {
            Wants::Login {
                accepts,
                challenge,
                closes,
            } if !head.contains(accepts) => {
                let connection = if *closes { "close" } else { "keep-alive" };
                let answer = format!(
                    "HTTP/1.1 407 Login please\r\nproxy-authenticate: {challenge}\r\nconnection: {connection}\r\n\
                     content-length: 4\r\n\r\nwho?"
                );
                (answer, !closes)
            }
            Wants::Refuses(page) => {
                let length = page.len();
                (
                    format!("HTTP/1.1 403 Forbidden\r\ncontent-length: {length}\r\n\r\n{page}"),
                    false,
                )
            }
            _ => {
                let through = b"HTTP/1.1 200 Connection established\r\n\r\n";
                stream.write_all(through).await.ok()?;
                let line = head.strip_prefix("CONNECT ").unwrap();
                return Some(line.split(' ').next().unwrap().to_owned());
            }
        };
        stream.write_all(answer.as_bytes()).await.ok()?;
        if !stays {
            let _ = stream.shutdown().await;
            return None;
        }
    }
}

async fn socks(
    stream: &mut Box<dyn Stream>,
    wants: &Wants,
    seen: &Mutex<Vec<String>>,
) -> Option<String> {
    let mut greeting = [0; 2];
    stream.read_exact(&mut greeting).await.ok()?;
    let mut methods = vec![0; usize::from(greeting[1])];
    stream.read_exact(&mut methods).await.ok()?;
    let text = async |stream: &mut Box<dyn Stream>| {
        let mut text = vec![0; usize::from(stream.read_u8().await.unwrap())];
        stream.read_exact(&mut text).await.unwrap();
        String::from_utf8(text).unwrap()
    };
    if let Wants::Password(user, password) = wants {
        if !methods.contains(&2) {
            stream.write_all(&[5, 0xff]).await.ok()?;
            return None;
        }
        stream.write_all(&[5, 2]).await.ok()?;
        stream.read_u8().await.ok()?;
        let is_right =
            (text(stream).await, text(stream).await) == ((*user).into(), (*password).into());
        stream.write_all(&[1, u8::from(!is_right)]).await.ok()?;
    } else {
        stream.write_all(&[5, 0]).await.ok()?;
    }
    let mut request = [0; 4];
    stream.read_exact(&mut request).await.ok()?;
    let host = match request[3] {
        1 => {
            let mut octets = [0; 4];
            stream.read_exact(&mut octets).await.ok()?;
            std::net::Ipv4Addr::from(octets).to_string()
        }
        3 => text(stream).await,
        other => panic!("address of kind {other}"),
    };
    let target = format!("{host}:{}", stream.read_u16().await.ok()?);
    seen.lock().push(target.clone());
    stream
        .write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
        .ok()?;
    Some(target)
}

fn given(user: &str, password: &str) -> LoginSource {
    let text = format!("http://{user}:{password}@proxy");
    match text.parse().unwrap() {
        ProxyChoice::Proxy(_, Some(login)) => LoginSource::Given(login),
        ProxyChoice::Proxy(..) | ProxyChoice::None => panic!("a login"),
    }
}

/// Has a client come through the proxy, and serve.
async fn comes_through(settings: ProxySettings, change: impl FnOnce(&mut Config, SocketAddr)) {
    let mut server = FakeServer::start().await;
    let address = server.address();
    let client = Running::start(&server, NOBODY, |config| {
        config.servers[0].proxy = Some(settings);
        change(config, address);
    });
    let _session = server.welcome().await;
    client.wait_ready(true).await;
}

/// The result that a client counts, which never gets through.
async fn fails(settings: ProxySettings, result: &str) {
    let server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.servers[0].proxy = Some(settings);
        config.settings.redial_cap = Duration::from_secs(60);
        config.settings.redial_base = Duration::from_secs(60);
    });
    let series = format!("dials_total{{result=\"{result}\"}}");
    client.wait_metric(&series, 1.0).await;
}

const BASIC: Wants = Wants::Login {
    accepts: "Basic bWU6c2VjcmV0",
    challenge: "Basic realm=\"a\"",
    closes: false,
};

#[tokio::test]
async fn a_proxy_is_asked_for_the_server_and_is_shown_no_login_unasked() {
    let proxy = TestProxy::http(Wants::Nothing).await;
    comes_through(proxy.settings("http", given("me", "secret")), |_, _| {}).await;
    let asked = proxy.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].starts_with("CONNECT 127.0.0.1:"), "{asked:?}");
    assert!(!asked[0].contains("proxy-authorization"), "{asked:?}");
}

#[tokio::test]
async fn a_login_is_shown_by_basic_or_digest_on_the_same_connection_or_another() {
    let digest = Wants::Login {
        accepts: "Digest username=\"me\", realm=\"a\", nonce=\"n\"",
        challenge: "Digest realm=\"a\", nonce=\"n\", qop=\"auth\", algorithm=SHA-256, Basic realm=\"a\"",
        closes: true,
    };
    for wants in [BASIC, digest] {
        let proxy = TestProxy::http(wants).await;
        comes_through(proxy.settings("http", given("me", "secret")), |_, _| {}).await;
        let asked = proxy.asked();
        assert_eq!(asked.len(), 2, "{asked:?}");
    }
}

#[tokio::test]
async fn the_login_s_file_is_read_at_each_dial() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("login");
    std::fs::write(&path, "me:wrong").unwrap();
    let proxy = TestProxy::http(BASIC).await;
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.servers[0].proxy = Some(proxy.settings("http", LoginSource::File(path.clone())));
        // By the same proxy.
        config.servers.push(config.servers[0].clone());
    });
    // Dials go on, also of the other server, but the wrong login is shown only once.
    let series = "tunnel_client_dials_total{result=\"proxy\"} ";
    let failed = |page: &str| {
        let value = page.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(0.0, |value| value.parse::<f64>().unwrap())
    };
    while failed(&client.metrics().await) < 4.0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(proxy.asked().len(), 2, "{:?}", proxy.asked());
    std::fs::write(&path, "me:secret\n").unwrap();
    let _session = server.welcome().await;
    client.wait_ready(true).await;
}

#[tokio::test]
async fn what_a_proxy_refuses_is_a_step_of_its_own() {
    let refusing = TestProxy::http(Wants::Refuses("<h1>Not for you</h1>")).await;
    fails(refusing.settings("http", LoginSource::None), "proxy").await;
    let wanting = TestProxy::http(BASIC).await;
    fails(wanting.settings("http", LoginSource::None), "proxy").await;
    fails(wanting.settings("http", given("me", "wrong")), "proxy").await;
    let gone = TestProxy::http(Wants::Nothing).await;
    let settings = gone.settings("http", LoginSource::None);
    drop(gone);
    fails(settings, "proxy_tcp").await;
}

#[tokio::test]
async fn an_https_proxy_has_its_own_ca() {
    let made = testkit::ca::self_signed("127.0.0.1");
    let identity = made.identity();
    let tls = server_config(&identity, &[b"http/1.1"], None).unwrap();
    let proxy = TestProxy::start(BASIC, Some(tls), false).await;
    let trusting = |roots: Roots| ProxySettings {
        trust: Some(Trust::from(roots)),
        ..proxy.settings("https", given("me", "secret"))
    };
    comes_through(trusting(made.roots()), |_, _| {}).await;
    let other = testkit::ca::self_signed("127.0.0.1");
    let other = other.roots();
    fails(trusting(other), "proxy_tls").await;
}

#[tokio::test]
async fn a_socks_proxy_is_told_a_name_or_an_address() {
    for (scheme, told) in [("socks5h", "localhost:"), ("socks5", "127.0.0.1:")] {
        let proxy = TestProxy::socks(Wants::Nothing).await;
        let settings = proxy.settings(scheme, LoginSource::None);
        comes_through(settings, |config, server| {
            config.servers[0].url = format!("wss://localhost:{}", server.port())
                .parse()
                .unwrap();
            config.settings.server_name = Some("127.0.0.1".parse().unwrap());
            if scheme == "socks5" {
                // A name may have an IPv6 address too, where nobody listens.
                config.settings.connect_to = Some("127.0.0.1".parse().unwrap());
            }
        })
        .await;
        assert!(proxy.asked()[0].starts_with(told), "{:?}", proxy.asked());
    }
}

#[tokio::test]
async fn a_socks_proxy_is_shown_a_password() {
    let proxy = TestProxy::socks(Wants::Password("me", "secret")).await;
    comes_through(proxy.settings("socks5h", given("me", "secret")), |_, _| {}).await;
    fails(proxy.settings("socks5h", given("me", "wrong")), "proxy").await;
    fails(proxy.settings("socks5h", LoginSource::None), "proxy").await;
}
