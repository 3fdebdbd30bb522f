//! A directory of as many runtimes as an etcd should hold.

use std::time::Duration;

use e2e::{etcd::Etcd, nodes::Nodes};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;
use tunnel_etcd::{Client, RequestOp, Settings, TxnRequest};
use tunnel_ops::tls_files::{Roots, client_config};

/// Runtimes.
const COUNT: usize = 1_000_000;

/// Runtimes in a transaction, each with two records: etcd's limit is 128 operations.
const BATCH: usize = 60;

/// Transactions under way at once.
const AT_ONCE: usize = 16;

fn records(number: usize) -> [RequestOp; 2] {
    let label = format!("account{}-runtime{number}", number % 10_000);
    let claim = format!(
        "{{\"instance\":\"{number:032x}\",\"nonce\":\"{number:016x}\",\"account\":\"account{}\",\
         \"runtime\":\"runtime{number}\",\"node\":\"n9\",\"at_ms\":1790000000000,\"row\":0,\"row_age_ms\":0,\
         \"superseded\":[]}}",
        number % 10_000
    );
    let held = format!("/tunnel/v1/held/n9/00000000000000ff/{label}");
    [
        RequestOp::put(format!("/tunnel/v1/claim/{label}"), claim, 0),
        RequestOp::put(held, "{\"epoch\":0,\"state\":\"open\"}".to_owned(), 0),
    ]
}

async fn preload(etcd: &Etcd) {
    let client = Client::new(Settings {
        members: etcd.urls().iter().map(|url| url.parse().unwrap()).collect(),
        tls: client_config(&Roots::none(), None, &[b"h2"]).unwrap(),
        user: None,
        timeout: Duration::from_secs(20),
    });
    let batches = (0..COUNT).step_by(BATCH).map(|first| {
        let client = client.clone();
        async move {
            let numbers = first..(first + BATCH).min(COUNT);
            let success = numbers.flat_map(records).collect();
            let txn = TxnRequest {
                success,
                ..TxnRequest::default()
            };
            client.txn(txn).await
        }
    });
    let batches = stream::iter(batches).buffer_unordered(AT_ONCE);
    batches.try_for_each(|_| async { Ok(()) }).await.unwrap();
}

/// Measures the time until a node is ready, and its memory for each runtime. The bounds are those of a release build
/// (`E2E_PROGRAMS`); one for debugging is slower.
#[tokio::test]
#[ignore = "takes minutes, and 3 GB of memory: e2e/run-cluster runs it"]
async fn a_million_runtimes() {
    let quota = "--quota-backend-bytes=8589934592";
    let mut nodes = Nodes::on(Etcd::start_with_flags(1, &[quota]).await);
    nodes.add(&[]).await;
    let empty = nodes.server(0).program().memory().bytes;
    let start = Instant::now();
    preload(nodes.etcd()).await;
    eprintln!("{COUNT} runtimes written in {:?}", start.elapsed());
    let start = Instant::now();
    nodes.add(&[]).await;
    let ready = start.elapsed();
    for number in 0..2 {
        let memory = nodes.server(number).program().memory();
        let each = (memory.bytes - empty) / COUNT as u64;
        let peak = memory.peak_bytes >> 20;
        eprintln!("node {number}: {each} bytes for each runtime, at most {peak} MiB");
    }
    eprintln!("ready after {ready:?}");
    assert!(ready < Duration::from_secs(60), "{ready:?}");
}
