//! Who may reach a runtime: by the list of the runtimes file, and by that of its own tunnel client.

use std::time::Duration;

use http::HeaderValue;
use testkit::{
    http1::{RawConnection, RawResponse},
    tunnel::{
        body::{full, status},
        client::{FakeClient, dial, random_instance, session_request},
    },
};

use crate::rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig, connect};

/// A server that believes PROXY headers, whose first runtime has a list.
async fn listing(allow_from: &str, offline_wait: Duration) -> Rig {
    let prod = "name = \"prod\"\n";
    let listed = format!("{prod}allow_from = {allow_from}\n");
    Rig::listing(
        |text| {
            assert!(text.contains(prod));
            text.replacen(prod, &listed, 1)
        },
        |config| {
            config.settings.proxy_protocol = true;
            config.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
            config.settings.offline_wait = offline_wait;
        },
    )
    .await
}

/// Asks as a platform client with this address, of the family that it names.
async fn asking(rig: &Rig, address: &str, lines: &str, host: &str) -> RawResponse {
    let mut raw = RawConnection::over(connect(rig.addresses.public).await);
    let (family, to) = match address.contains(':') {
        true => ("TCP6", "::2"),
        false => ("TCP4", "192.0.2.200"),
    };
    raw.ask(format!(
        "PROXY {family} {address} {to} 1111 80\r\n\
         GET / HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n"
    ))
    .await
}

fn is_denied(answer: &RawResponse, address: &str) {
    answer.assert_refused(403, "may not be reached from your address");
    assert_eq!(answer.reason(), "address_denied");
    // It may be that of a load balancer inside.
    assert!(!answer.text().contains(address), "{answer:?}");
}

#[tokio::test]
async fn a_runtime_is_reached_only_from_listed_networks() {
    let rig = listing("[\"10.0.0.0/8\", \"2001:db8::/32\"]", Duration::ZERO).await;
    let client = FakeClient::describing(&rig, PROD).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    for good in ["10.9.8.7", "2001:db8::7", "::ffff:10.9.8.7"] {
        let answer = asking(&rig, good, "", PROD_HOST).await;
        assert_eq!(answer.head.status(), 200, "{good}");
    }
    for bad in ["11.0.0.1", "2001:db9::7"] {
        is_denied(&asking(&rig, bad, "", PROD_HOST).await, bad);
        // What somebody says of himself, who is not trusted, opens nothing.
        let claims = "x-forwarded-for: 10.9.8.7\r\nforwarded: for=10.9.8.7\r\n\
                      x-real-ip: 10.9.8.7\r\n";
        is_denied(&asking(&rig, bad, claims, PROD_HOST).await, bad);
        let answer = asking(&rig, bad, "", DEV_HOST).await;
        assert_eq!(answer.head.status(), 200, "another runtime has no list");
    }
    assert_eq!(client.seen().len(), 3);
    let denied = "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"address_denied\"}";
    rig.metric_becomes(denied, 4.0).await;
}

/// Nobody who may not come in learns whether anybody is there.
#[tokio::test]
async fn a_denied_address_does_not_wait_for_an_offline_runtime() {
    let rig = listing("[\"10.0.0.0/8\"]", Duration::from_secs(600)).await;
    is_denied(&asking(&rig, "11.0.0.1", "", PROD_HOST).await, "11.0.0.1");
}

#[tokio::test]
async fn an_empty_list_allows_no_address() {
    let rig = listing("[]", Duration::ZERO).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    is_denied(&asking(&rig, "10.9.8.7", "", PROD_HOST).await, "10.9.8.7");
}

#[tokio::test]
async fn the_tunnel_client_narrows_what_the_list_allows_and_widens_nothing() {
    let rig = listing("[\"10.0.0.0/8\"]", Duration::ZERO).await;
    let mut request = session_request(rig.token(PROD), random_instance());
    let narrowed = HeaderValue::from_static("10.1.0.0/16, 11.0.0.0/8, 10.2.2.2");
    request.headers_mut().insert("tunnel-allow-from", narrowed);
    let handler = |_| async { Ok(status(200, full("in"))) };
    let client = FakeClient::on(dial(&rig, &request).await, handler).await;
    for good in ["10.1.2.3", "10.2.2.2"] {
        let answer = asking(&rig, good, "", PROD_HOST).await;
        assert_eq!(answer.head.status(), 200, "{good}");
    }
    for bad in ["10.2.2.3", "11.0.0.1"] {
        is_denied(&asking(&rig, bad, "", PROD_HOST).await, bad);
    }
    assert_eq!(client.seen().len(), 2);
}

#[tokio::test]
async fn a_tunnel_client_with_a_malformed_list_is_refused() {
    let rig = Rig::start().await;
    for bad in ["", "anybody", "10.0.0.0/8,", "10.0.0.0/33"] {
        let mut request = session_request(rig.token(PROD), random_instance());
        request
            .headers_mut()
            .insert("tunnel-allow-from", HeaderValue::from_static(bad));
        assert_eq!(dial(&rig, &request).await.status, 400, "{bad}");
    }
}
