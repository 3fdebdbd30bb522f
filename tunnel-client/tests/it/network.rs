//! Networks that are broken in one way each: what listens where the tunnel server should, and what stands
//! between.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use testkit::ca::Authority;
use testkit::http1::{Duplex, MessageReader};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::{ClientAuth, Identity, server_config};
use tunnel_proto::control::Control;
use tunnel_proto::handshake::{CHECK_SUBPROTOCOL, accept_key};
use tunnel_proto::session::{Session, SessionSettings, Side};

/// Something that listens, and what it does with each connection.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    _serving: Owned<()>,
}

/// What a listener does with a connection.
type Doing = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Listening {
    /// Plain TCP.
    pub(crate) async fn plain<F>(does: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Owned::spawn("listening", async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(does(stream));
            }
        });
        Self {
            address,
            _serving: serving,
        }
    }

    /// TLS with this certificate.
    pub(crate) async fn tls(
        identity: &Identity,
        does: impl Fn(Box<dyn Duplex>) -> Doing + Send + Sync + 'static,
    ) -> Self {
        Self::tls_with(identity, None, does).await
    }

    /// TLS that takes no client but those with a certificate by this authority.
    pub(crate) async fn wanting_certificates(authority: &Authority) -> Self {
        let auth = ClientAuth {
            roots: authority.roots(),
            revocation_lists: None,
            is_required: true,
        };
        Self::tls_with(
            &authority.issue(&["127.0.0.1"]).identity(),
            Some(&auth),
            |_stream| Box::pin(async {}),
        )
        .await
    }

    async fn tls_with(
        identity: &Identity,
        auth: Option<&ClientAuth>,
        does: impl Fn(Box<dyn Duplex>) -> Doing + Send + Sync + 'static,
    ) -> Self {
        let config = server_config(identity, &[b"http/1.1"], auth).unwrap();
        let (acceptor, does) = (TlsAcceptor::from(config), Arc::new(does));
        Self::plain(move |stream| {
            let (acceptor, does) = (acceptor.clone(), Arc::clone(&does));
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    does(Box::new(stream)).await;
                }
            }
        })
        .await
    }

    /// TLS, and to each request what this makes of its head.
    pub(crate) async fn answering(
        identity: &Identity,
        answer: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        Self::tls(identity, move |mut stream| {
            let answer = Arc::clone(&answer);
            Box::pin(async move {
                if let Some(head) = head(&mut stream).await {
                    let _ = stream.write_all(answer(&head).as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            })
        })
        .await
    }

    /// A tunnel server that lets checks in and says this.
    pub(crate) async fn server(identity: &Identity, says: Option<Control>) -> Self {
        Self::tls(identity, move |stream| {
            Box::pin(session(stream, says.clone()))
        })
        .await
    }

    /// Leads to another listener, for as long as something moves at least so often.
    pub(crate) async fn cutting_after(to: SocketAddr, silence: Duration) -> Self {
        Self::plain(move |mut near| async move {
            let mut far = TcpStream::connect(to).await.unwrap();
            let (mut there, mut back) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
            loop {
                tokio::select! {
                    // What has come counts before the clock, which a busy machine looks at late.
                    biased;
                    read = near.read(&mut there) => match read {
                        Ok(length @ 1..) => far.write_all(&there[..length]).await.unwrap(),
                        _ => return,
                    },
                    read = far.read(&mut back) => match read {
                        Ok(length @ 1..) => near.write_all(&back[..length]).await.unwrap(),
                        _ => return,
                    },
                    () = sleep(silence) => return,
                }
            }
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("wss://{}", self.address)
    }
}

/// What a server says of a good credential.
pub(crate) fn checked() -> Control {
    Control::Checked {
        account: "acme".to_owned(),
        runtime: "acme-prod".to_owned(),
        session: "1/1".to_owned(),
        version: "9.9.9".to_owned(),
        node: None,
        holder: None,
        conflict: None,
        expires_in_ms: None,
    }
}

/// An answer with these fields and this content.
pub(crate) fn http(status: &str, fields: &str, content: &str) -> String {
    let length = content.len();
    format!("HTTP/1.1 {status}\r\n{fields}content-length: {length}\r\n\r\n{content}")
}

/// A refusal as a tunnel server gives it.
pub(crate) fn refusal(status: &str, fields: &str, reason: &str) -> String {
    let content = format!(r#"{{"reason":"{reason}","detail":"about {reason}","fatal":true}}"#);
    http(status, fields, &content)
}

/// A request's head; `None` if the connection ends first.
pub(crate) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let head = MessageReader::new(stream).read_head().await.ok()?;
    Some(head.to_string())
}

/// A check at the server: an echo if anything is to be said, and then nothing.
pub(crate) async fn session(mut stream: Box<dyn Duplex>, says: Option<Control>) {
    let Some(head) = head(&mut stream).await else {
        return;
    };
    assert_eq!(field(&head, "sec-websocket-protocol"), CHECK_SUBPROTOCOL);
    assert_eq!(field(&head, "authorization"), "Bearer tnlrt_1_secret");
    let accept = accept_key(field(&head, "sec-websocket-key").as_bytes());
    let date = httpdate::fmt_http_date(std::time::SystemTime::now());
    let switching = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         date: {date}\r\nsec-websocket-accept: {accept}\r\n\
         sec-websocket-protocol: {CHECK_SUBPROTOCOL}\r\n\r\n"
    );
    stream.write_all(switching.as_bytes()).await.unwrap();
    let Some(says) = says else {
        return std::future::pending().await;
    };
    let settings = SessionSettings {
        ping_interval: Duration::from_secs(3600),
        ..SessionSettings::default()
    };
    let (session, _events, driver) = Session::new(stream, Bytes::new(), Side::Server, settings);
    let speaking = async {
        if session.probe().await.is_ok() {
            let _ = session.send(says);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = driver => {}
        () = speaking => {}
    }
}

fn field<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.unwrap_or_else(|| panic!("no {name} in {head}")).1
}
