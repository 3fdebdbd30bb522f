//! `tunnel-client serve` as it leaves: what was begun comes to its end, and nobody is turned away.

use std::time::Duration;

use e2e::{
    deadline::SOON,
    http1::End,
    load::{ExchangeKind, Load, Plan},
    program::{OutputLine, Signal},
    raw::RawClient,
    served::Served,
    upstream::Upstream,
};
use tokio::net::TcpStream;

/// Everything that comes to this upstream.
fn table(upstream: &Upstream) -> String {
    let url = upstream.url();
    format!("[[route]]\nname = \"all\"\npath = \"/*\"\nupstream = \"{url}\"\n")
}

async fn assert_ended_within_its_grace(served: &mut Served, limit: Duration) {
    let ended = served.program_mut().wait_exit(limit).await;
    assert!(ended.success(), "{ended}");
    let log = served.program().log().all();
    let is_cut = |line: &OutputLine| line.text().contains("and are cut");
    assert!(!log.iter().any(is_cut), "{log:?}");
}

/// Two stand behind a balancer that asks whether they are ready.
#[tokio::test]
async fn one_of_two_leaves_under_load_and_nothing_fails() {
    let upstream = Upstream::start().await;
    let table = table(&upstream);
    let flags = ["--drain-delay", "5s", "--grace-period", "15s"];
    let mut leaving = Served::start(&table, &flags).await;
    let staying = Served::start(&table, &flags).await;
    for one in [&leaving, &staying] {
        one.admin().wait_ready(true).await;
    }
    let kinds = [
        ExchangeKind::Get,
        ExchangeKind::Post,
        ExchangeKind::Events,
        ExchangeKind::WebSocket,
    ];
    let load = Load::start(leaving.entry(), &Plan::only(&kinds, 2));
    load.wait_progress(10).await;
    let long = load.open_streams(&[ExchangeKind::Events, ExchangeKind::WebSocket]);
    leaving.program().signal(Signal::TERM);
    load.mark("one is asked to stop");
    leaving.admin().wait_ready(false).await;
    load.lead_to(staying.entry());
    load.mark("the balancer leads to the other");
    // What would go on for ever is ended by its protocol, and begun again at the other.
    load.wait_ended_by_protocol(&long).await;
    assert_ended_within_its_grace(&mut leaving, 2 * SOON).await;
    load.mark("it has ended");
    load.wait_progress(10).await;
    let report = load.finish().await;
    eprintln!("{report}");
    report.assert_none_failed();
}

#[tokio::test]
async fn what_is_in_flight_is_finished_and_connections_are_told_to_close() {
    let upstream = Upstream::start().await;
    let mut served = Served::start(&table(&upstream), &[]).await;
    served.admin().wait_ready(true).await;
    let mut resting = RawClient::connect(&served.entry()).await;
    let answer = resting.exchange("GET", "/status/200", "").await;
    assert_eq!(answer.head.value("connection"), Some("keep-alive"));
    let mut upload = RawClient::connect(&served.entry()).await;
    let length = "Content-Length: 10\r\n";
    upload.request("POST", "/upload", length, b"first").await;
    upstream.wait_request("/upload").await;
    served.program().signal(Signal::TERM);
    let stops = "connections close after their open requests";
    served.program().wait_for_line(stops, SOON).await;
    let resting = resting.into_connection().wait_end(SOON).await;
    assert_eq!(resting, End::Clean);
    let refused = TcpStream::connect(served.entry().address()).await;
    assert!(refused.is_err(), "who comes now is to ask elsewhere");
    upload.send("later").await;
    let answer = upload.response_to("POST").await;
    assert_eq!(answer.head.status(), 200);
    assert_eq!(answer.head.value("connection"), Some("close"));
    assert_eq!(upstream.wait_content("/upload").await.bytes, 10);
    let ended = upload.into_connection().wait_end(SOON).await;
    assert_eq!(ended, End::Clean);
    assert_ended_within_its_grace(&mut served, SOON).await;
}
