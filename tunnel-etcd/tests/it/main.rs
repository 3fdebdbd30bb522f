//! The client against a real etcd, with `etcdctl` as the oracle.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on is to say so"
)]

mod calls;
mod follow;
mod secure;
mod watch;

use std::time::Duration;

use bytes::Bytes;
use testkit::etcd::Etcd;
use tunnel_etcd::{Client, RequestOp, Settings, TxnRequest, TxnResponse};
use tunnel_ops::tls_files::{Roots, client_config};

/// Long enough for a busy machine; the tests that are about failures have their own.
const PATIENT: Duration = Duration::from_secs(5);

/// A client of all members.
fn client(etcd: &Etcd, timeout: Duration) -> Client {
    let members = etcd.urls().iter().map(|url| url.parse().unwrap()).collect();
    Client::new(Settings {
        members,
        tls: client_config(&Roots::none(), None, &[b"h2"]).unwrap(),
        user: None,
        timeout,
    })
}

fn put(key: &'static str, value: &'static str) -> TxnRequest {
    TxnRequest {
        compare: Vec::new(),
        success: vec![RequestOp::put(key, value, 0)],
        failure: Vec::new(),
    }
}

async fn write(client: &Client, key: &'static str, value: &'static str) -> TxnResponse {
    client.txn(put(key, value)).await.unwrap()
}

/// All keys that begin with this.
fn under(prefix: &'static str) -> (Bytes, Bytes) {
    (prefix.into(), tunnel_etcd::prefix_end(prefix.as_bytes()))
}
