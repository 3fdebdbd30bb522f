//! What goes ahead of an answer, or follows it as something else: informational heads and upgrades.

use super::*;

fn hint(handle: &GuardHandle) -> bool {
    handle.informational(Bytes::from_static(HINT.as_bytes()))
}

#[tokio::test(start_paused = true)]
async fn an_informational_head_reaches_the_client_before_the_answer_exists() {
    let (sender, mut handles) = mpsc::channel(1);
    let release = Arc::new(Notify::new());
    let released = Arc::clone(&release);
    let mut client = Client::connect(move |_, handle: GuardHandle| {
        assert!(hint(&handle));
        sender.try_send(handle).unwrap();
        let released = Arc::clone(&released);
        async move {
            released.notified().await;
            ok("[done]")
        }
    });
    for _ in 0..2 {
        client.send(GET).await;
        assert_eq!(client.until("\r\n\r\n").await, HINT);
        // From another task than the connection's, which has to be woken for it.
        let handle = handles.recv().await.unwrap();
        assert!(hint(&handle));
        assert_eq!(client.until("\r\n\r\n").await, HINT);
        assert!(!handle.informational(vec![b'x'; 16 * 1024 + 1].into()));
        assert!(hint(&handle));
        release.notify_one();
        assert_eq!(client.until("\r\n\r\n").await, HINT);
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        assert_eq!(client.until("]").await, "[done]");
    }
    assert_eq!(client.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn no_informational_head_gets_into_an_answer_or_before_a_request() {
    let (_io, server_io) = tokio::io::duplex(1024);
    let (_guard, handle) = Guard::new(server_io, Bytes::new(), CONFIG);
    assert!(!hint(&handle), "nobody asked");

    let (sender, mut handles) = mpsc::channel(1);
    let mut client = Client::connect(move |_, handle: GuardHandle| {
        sender.try_send(handle).unwrap();
        let body = Endless(Some(Bytes::from_static(b"[part]")));
        async { Response::new(body.boxed_unsync()) }
    });
    client.send(GET).await;
    client.until("[part]\r\n").await;
    assert!(
        !hint(&handles.recv().await.unwrap()),
        "between two parts of an answer"
    );
}

#[tokio::test(start_paused = true)]
async fn no_informational_head_gets_into_the_answer_before() {
    // Answers before it has read the body, so that the next exchange may begin while this answer is
    // still being written.
    let (sender, mut hinted) = mpsc::channel(1);
    let mut client = Client::connect(move |request: Request<Incoming>, handle: GuardHandle| {
        if request.uri().path() == "/get" {
            sender.try_send(hint(&handle)).unwrap();
        }
        async {
            let mut other = JoinSet::new();
            other.spawn(request.into_body().collect());
            other.detach_all();
            ok("x".repeat(200_000))
        }
    });
    client.send(CHUNKED).await;
    client.until("\r\n\r\n").await;
    client.send(["0\r\n\r\n", GET].concat()).await;
    assert!(!hinted.recv().await.unwrap());
    let mut body = vec![0; 200_000];
    client.io.read_exact(&mut body).await.unwrap();
    assert!(body.iter().all(|&byte| byte == b'x'));
}

#[tokio::test(start_paused = true)]
async fn informational_heads_may_follow_hypers_own() {
    for vectored in [false, true] {
        let mut client =
            Client::connect_with(vectored, |request, handle: GuardHandle| async move {
                let answer = echo(request, handle.clone()).await;
                assert!(hint(&handle));
                answer
            });
        let fields = "Host: a\r\nExpect: 100-continue\r\nContent-Length: 3";
        client
            .send(format!("POST /post HTTP/1.1\r\n{fields}\r\n\r\n"))
            .await;
        assert_eq!(client.until("\r\n\r\n").await.as_bytes(), CONTINUE);
        client.send("abc").await;
        assert_eq!(client.until("\r\n\r\n").await, HINT);
        assert_eq!(bodies(&client.until("]").await), ["/post abc"]);
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_an_upgrade_wait_for_it_and_then_pass_as_they_are() {
    let raw = "\n\0 not HTTP at all\r\n\r\n";
    let release = Arc::new(Notify::new());
    let released = Arc::clone(&release);
    let mut client = Client::connect(move |request: Request<Incoming>, handle: GuardHandle| {
        let released = Arc::clone(&released);
        async move {
            if request.uri().path() != "/up" {
                // Has nothing to say about the upgrade that was asked for behind it.
                handle.not_upgraded();
                return echo(request, handle).await;
            }
            released.notified().await;
            handle.upgraded();
            let mut answer = ok("");
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            answer
        }
    });
    client.send([GET, WEBSOCKET, raw].concat()).await;
    assert_eq!(bodies(&client.until("]").await), ["/get "]);
    assert!(
        timeout(Duration::from_secs(3600), client.io.read_u8())
            .await
            .is_err()
    );
    release.notify_one();
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 101"));
    client.send(raw).await;
    // The upgraded connection has no limits of HTTP any more.
    sleep(CONFIG.keep_alive_timeout * 10).await;
    client.send(raw).await;
    client.io.shutdown().await.unwrap();
    assert_eq!(
        client.rest().await,
        format!("{raw}{raw}{raw}after half-close")
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_behind_a_refused_upgrade_are_requests() {
    for tell in [false, true] {
        let mut client = Client::connect(move |request: Request<Incoming>, handle: GuardHandle| {
            if tell && request.uri().path() == "/up" {
                handle.not_upgraded();
            }
            echo(request, handle)
        });
        client.send([GET, WEBSOCKET, GET, BAD, GET].concat()).await;
        let answers = client.rest().await;
        assert_eq!(bodies(&answers), ["/get ", "/up ", "/get "]);
        assert!(answers.ends_with("REFUSED 400 more than one host field\n"));
        client.end().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_wants_an_upgrade_can_neither_flood_nor_hang_up_unseen() {
    let (service, mut cancelled) = never();
    let mut client = Client::connect(service);
    client.send(WEBSOCKET).await;
    let flood = [b'x'; 16 * 1024];
    // As much as the guard takes, and as much as fits between the two ends; then no more.
    let mut sent = 0;
    while let Ok(written) = timeout(Duration::from_secs(1), client.io.write(&flood)).await {
        sent += written.unwrap();
    }
    assert_eq!(sent, EARLY_BYTES + 16 * 1024);
    drop(client);

    let (service, mut cancelled_too) = never();
    let mut client = Client::connect(service);
    client.send([WEBSOCKET, "early"].concat()).await;
    client.io.shutdown().await.unwrap();
    client.end().await.unwrap_err();
    cancelled_too.recv().await.unwrap();
    cancelled.recv().await.unwrap();
    assert_eq!(client.elapsed(), CONFIG.hang_up_grace);
}
