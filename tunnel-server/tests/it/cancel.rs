//! Platform clients that go away: whoever works for them is told within a second.

use std::time::Duration;

use testkit::{
    deadline::soon,
    http1::RawConnection,
    tunnel::{
        body::{BodyEnd, data, endings, fed, full, status},
        client::FakeClient,
    },
};
use tokio::{sync::mpsc, time::Instant};

use crate::rig::{PROD, PROD_HOST, Rig};

/// Within which time the other end is to see a hang-up.
const QUICK: Duration = Duration::from_secs(1);

/// A client whose upstreams answer `/silent` never, `/begun` without end, and read `/upload` for
/// ever; it tells how each exchange ended.
async fn endless(rig: &Rig) -> (FakeClient, mpsc::Receiver<BodyEnd>) {
    let (endings, ends) = endings();
    let client = FakeClient::new(rig, PROD, move |request| {
        let ending = endings.next();
        async move {
            let _ending = ending;
            if request.uri().path() != "/begun" {
                std::future::pending::<()>().await;
            }
            let (feed, body) = fed();
            // The exchange ends when its future is dropped, or else when nobody takes its body.
            let held = tunnel_ops::task::Owned::spawn("upstream", async move {
                loop {
                    if feed.send(data("tick")).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                drop(_ending);
            });
            std::mem::forget(held);
            Ok(status(200, body))
        }
    })
    .await;
    (client, ends)
}

async fn is_cut_soon(ends: &mut mpsc::Receiver<BodyEnd>, what: &str) {
    let hung_up = Instant::now();
    assert_eq!(soon(what, ends.recv()).await, Some(BodyEnd::Cut));
    assert!(hung_up.elapsed() < QUICK, "{what}: {:?}", hung_up.elapsed());
}

#[tokio::test]
async fn a_hang_up_over_http1_cancels_the_exchange() {
    let rig = Rig::start().await;
    let (client, mut ends) = endless(&rig).await;
    for (count, (method, path, lines)) in [
        ("GET", "/silent", ""),
        ("GET", "/begun", ""),
        ("POST", "/upload", "content-length: 1000000\r\n"),
        ("POST", "/upload", "transfer-encoding: chunked\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut raw = rig.raw().await;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n{lines}\r\n");
        raw.send(request).await;
        client.request(count + 1).await;
        if path == "/begun" {
            assert_eq!(raw.head().await.unwrap().status(), 200);
        }
        drop(raw);
        is_cut_soon(&mut ends, path).await;
    }
    client.rests().await;
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 0.0)
        .await;
}

#[tokio::test]
async fn an_end_of_input_counts_as_a_hang_up_after_a_moment() {
    let rig = Rig::start().await;
    let (client, mut ends) = endless(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(format!("GET /silent HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    client.request(1).await;
    raw.finish().await;
    is_cut_soon(&mut ends, "half-closed").await;
    raw.closes().await;
}

#[tokio::test]
async fn an_abandoned_exchange_is_no_answered_one() {
    let rig = Rig::start().await;
    let (client, mut ends) = endless(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(format!("GET /silent HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    client.request(1).await;
    drop(raw);
    is_cut_soon(&mut ends, "dropped").await;
    let open = "tunnel_server_open_exchanges{runtime=\"acme-prod\"}";
    rig.metric_becomes(open, 0.0).await;
    let answered = "tunnel_server_exchanges_total{runtime=\"acme-prod\",status=\"2xx\"}";
    assert!(
        rig.metric(answered).await.abs() < 0.5,
        "nothing was answered"
    );
}

/// What a slow reader does not take stops its own exchange and no other.
#[tokio::test]
async fn a_stalled_reader_delays_no_other() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        Ok(status(
            200,
            match request.uri().path() {
                "/flood" => {
                    let (feed, body) = fed();
                    let held = tunnel_ops::task::Owned::spawn("upstream", async move {
                        while feed.send(data(vec![b'x'; 16 * 1024])).await.is_ok() {}
                    });
                    std::mem::forget(held);
                    body
                }
                _ => full("quick"),
            },
        ))
    })
    .await;
    let mut slow: Vec<RawConnection> = Vec::new();
    for _ in 0..4 {
        let mut raw = rig.raw().await;
        raw.send(format!("GET /flood HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
            .await;
        assert_eq!(raw.head().await.unwrap().status(), 200);
        slow.push(raw);
    }
    let mut raw = rig.raw().await;
    for _ in 0..50 {
        let answer = raw
            .ask(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
            .await;
        assert_eq!(answer.text(), "quick");
    }
    assert_eq!(client.seen().len(), 54);
}
