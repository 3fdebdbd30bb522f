//! Networks that are broken in one way each: what listens where the tunnel server should, and what stands
//! between.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use testkit::ca::Authority;
use testkit::http1::{Duplex, MessageReader};
use testkit::listener::Listener;
use testkit::tunnel::server::SessionRequest;
use testkit::tunnel::{FakeEnd, without_pings};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tunnel_ops::tls_files::{ClientAuth, Identity};
use tunnel_proto::control::Control;
use tunnel_proto::session::Side;

/// TLS that takes no client but those with a certificate by this authority.
pub(crate) async fn wanting_certificates(authority: &Authority) -> Listener {
    let auth = ClientAuth {
        roots: authority.roots(),
        revocation_lists: None,
        is_required: true,
    };
    let identity = authority.issue(&["127.0.0.1"]).identity();
    Listener::tls(&identity, Some(&auth), |_stream| async {}).await
}

/// TLS, and to each request what this makes of its head.
pub(crate) async fn answering(
    identity: &Identity,
    answer: impl Fn(&str) -> String + Send + Sync + 'static,
) -> Listener {
    let answer = Arc::new(answer);
    Listener::tls(identity, None, move |mut stream| {
        let answer = Arc::clone(&answer);
        async move {
            if let Some(head) = head(&mut stream).await {
                let _ = stream.write_all(answer(&head).as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        }
    })
    .await
}

/// A tunnel server that lets checks in and says this.
pub(crate) async fn server(identity: &Identity, says: Option<Control>) -> Listener {
    Listener::tls(identity, None, move |stream| session(stream, says.clone())).await
}

/// Leads to another listener, for as long as something moves at least so often.
pub(crate) async fn cutting_after(to: SocketAddr, silence: Duration) -> Listener {
    Listener::plain(move |mut near| async move {
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
pub(crate) async fn session(mut stream: impl Duplex + 'static, says: Option<Control>) {
    let Some(request) = SessionRequest::read(&mut stream).await else {
        return;
    };
    assert!(request.greeting.is_check);
    assert_eq!(
        request.authorization.as_deref(),
        Some("Bearer tnlrt_1_secret")
    );
    request.grant(&mut stream).await;
    let Some(says) = says else {
        return std::future::pending().await;
    };
    let end = FakeEnd::new(stream, Bytes::new(), Side::Server, without_pings());
    if end.session.probe().await.is_ok() {
        let _ = end.session.send(says);
    }
    let _ = end.driver.await;
}
