//! TLS as a route has it, and sockets that need none.

use std::path::Path;

use http_body::Frame;
use http_body_util::{Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tunnel_ops::tls_files::{ClientAuth, Identity, Roots, server_config};

use testkit::ca::self_signed;

use super::*;

/// A self-signed certificate for a name, and roots that trust it.
struct Certificate {
    identity: Identity,
    roots: Roots,
}

fn certificate(name: &str) -> Certificate {
    let made = self_signed(name);
    Certificate {
        identity: made.identity(),
        roots: made.roots(),
    }
}

/// Reads one head after another and answers each; ends with the connection.
async fn serve(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, content: &str) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let answer = answer(content);
            if stream.write_all(answer.as_bytes()).await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

/// An upstream under TLS that answers with the server name (SNI) of the connection.
async fn secure(identity: &Identity, client_auth: Option<&ClientAuth>) -> (String, Owned<()>) {
    let config = server_config(identity, &[b"http/1.1"], client_auth).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(Arc::clone(&config));
            tasks.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let name = stream.get_ref().1.server_name().unwrap_or("none");
                let name = name.to_owned();
                serve(stream, &name).await;
            });
        }
    });
    (url, serving)
}

async fn ask(url: &str, tls: TlsOptions) -> Result<String, Reason> {
    let options = UpstreamOptions {
        tls: Some(tls),
        ..options()
    };
    let route = Route::to(upstream(url, &options));
    let response = route
        .ask(get("/"))
        .await
        .map_err(|problem| problem.reason())?;
    let content = response.into_body().collect().await.unwrap().to_bytes();
    Ok(String::from_utf8(content.to_vec()).unwrap())
}

#[tokio::test]
async fn a_wrong_certificate_is_refused_unless_any_is_taken() {
    let (right, wrong) = (certificate("127.0.0.1"), certificate("127.0.0.1"));
    let (url, _upstream) = secure(&right.identity, None).await;
    let trusting = |roots: &Roots| TlsOptions {
        roots: Some(roots.clone()),
        ..TlsOptions::default()
    };
    assert_eq!(ask(&url, trusting(&right.roots)).await.unwrap(), "none");
    let refused = ask(&url, trusting(&wrong.roots)).await.unwrap_err();
    assert_eq!(refused, Reason::TlsCertificateError);
    let insecure = TlsOptions {
        insecure: true,
        ..trusting(&wrong.roots)
    };
    assert_eq!(ask(&url, insecure).await.unwrap(), "none");
    let without_roots = TlsOptions {
        insecure: true,
        ..TlsOptions::default()
    };
    assert_eq!(ask(&url, without_roots).await.unwrap(), "none");
}

#[tokio::test]
async fn a_server_name_is_asked_for_and_checked_in_place_of_the_host() {
    let made = certificate("app.internal.test");
    let (url, _upstream) = secure(&made.identity, None).await;
    let named = |name: Option<&str>| TlsOptions {
        roots: Some(made.roots.clone()),
        server_name: name.map(Box::from),
        ..TlsOptions::default()
    };
    let right = ask(&url, named(Some("app.internal.test"))).await;
    assert_eq!(right.unwrap(), "app.internal.test");
    for wrong in [None, Some("other.test")] {
        let refused = ask(&url, named(wrong)).await.unwrap_err();
        assert_eq!(refused, Reason::TlsCertificateError, "{wrong:?}");
    }
    let options = UpstreamOptions {
        tls: Some(named(Some("no name"))),
        ..options()
    };
    let made = Upstream::new(url.parse().unwrap(), &options, &shared());
    assert!(matches!(made.err(), Some(UpstreamError::ServerName(_))));
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_who_asks_for_one() {
    let (server, client) = (certificate("127.0.0.1"), certificate("tunnel-client"));
    let client_auth = ClientAuth {
        roots: client.roots,
        revocation_lists: None,
        is_required: true,
    };
    let (url, _upstream) = secure(&server.identity, Some(&client_auth)).await;
    let with = |identity: Option<&Identity>| TlsOptions {
        roots: Some(server.roots.clone()),
        identity: identity.cloned(),
        ..TlsOptions::default()
    };
    assert_eq!(
        ask(&url, with(Some(&client.identity))).await.unwrap(),
        "none"
    );
    assert!(ask(&url, with(Some(&server.identity))).await.is_err());
}

/// An upstream at a socket of this path.
fn at_socket(path: &Path) -> Owned<()> {
    let listener = UnixListener::bind(path).unwrap();
    Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tasks.spawn(async move { serve(stream, "at the socket").await });
        }
    })
}

#[tokio::test]
async fn a_unix_socket_is_an_upstream_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let url = format!("unix:{}", path.display());
    let route = Route::to(upstream(&url, &options()));
    assert_eq!(route.failure(get("/")).await, Reason::ConnectionRefused);
    let serving = at_socket(&path);
    for _ in 0..3 {
        assert_eq!(route.fetch(get("/")).await, "at the socket");
    }
    drop(serving);
    std::fs::remove_file(&path).unwrap();
    let gone = async {
        while route.ask(get("/")).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, gone).await.unwrap();
    let _again = at_socket(&path);
    assert_eq!(route.fetch(get("/")).await, "at the socket");
}

#[tokio::test]
async fn http2_goes_over_a_unix_socket_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _upstream = Owned::spawn("upstream", async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(async |request: Request<Incoming>| {
            // Reads the content to its end, unless it is cut.
            let _ = request.into_body().collect().await;
            let content = Full::new(Bytes::from_static(b"by streams"));
            Ok::<_, std::convert::Infallible>(Response::new(content))
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    let options = UpstreamOptions {
        max_body: Some(10),
        ..options()
    };
    let route = Route::to(upstream(&format!("h2c+unix:{}", path.display()), &options));
    assert_eq!(route.fetch(get("/")).await, "by streams");
    let post = |content: &'static [u8]| {
        let pieces = content
            .chunks(4)
            .map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece.into())));
        let body = StreamBody::new(tokio_stream::iter(pieces));
        Request::post("https://a-b.tunnels.test/")
            .body(body)
            .unwrap()
    };
    assert_eq!(route.fetch(post(b"0123456789")).await, "by streams");
    assert_eq!(
        route.failure(post(b"0123456789x")).await,
        Reason::BodyTooLarge
    );
    assert_eq!(
        route.fetch(get("/")).await,
        "by streams",
        "on the same connection"
    );
}

/// An upstream that spoke HTTP/2 alone is replaced by one that speaks HTTP/1.1, and does not even answer which versions were
/// offered to it.
#[tokio::test]
async fn http1_is_spoken_with_an_upstream_that_has_spoken_http2_alone_before() {
    let Certificate { identity, roots } = certificate("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let config = |alpn: &[&[u8]]| server_config(&identity, alpn, None).unwrap();
    let (http2_alone, without) = (config(&[b"h2"]), config(&[]));
    let (replace, mut replaced) = oneshot::channel::<oneshot::Sender<()>>();
    let _upstream = Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        let mut is_replaced = false;
        loop {
            let (stream, _) = tokio::select! {
                accepted = listener.accept() => accepted.unwrap(),
                done = &mut replaced, if !is_replaced => {
                    is_replaced = true;
                    tasks.shutdown().await;
                    done.unwrap().send(()).unwrap();
                    continue;
                }
            };
            let config = if is_replaced { &without } else { &http2_alone };
            let acceptor = TlsAcceptor::from(Arc::clone(config));
            tasks.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                if is_replaced {
                    return serve(stream, "by lines").await;
                }
                let service = service_fn(async |_: Request<Incoming>| {
                    let content = Full::new(Bytes::from_static(b"by streams"));
                    Ok::<_, std::convert::Infallible>(Response::new(content))
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    let options = UpstreamOptions {
        tls: Some(TlsOptions {
            roots: Some(roots),
            ..TlsOptions::default()
        }),
        ..options()
    };
    let route = Route::to(upstream(&url, &options));
    for _ in 0..2 {
        assert_eq!(route.fetch(get("/")).await, "by streams");
    }
    let (done, is_done) = oneshot::channel();
    replace.send(done).unwrap();
    is_done.await.unwrap();
    for _ in 0..2 {
        assert_eq!(route.fetch(get("/")).await, "by lines");
    }
}
