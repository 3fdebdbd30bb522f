//! The system comes up, carries a request, and ends: the seed of everything said of the tunnel.

use e2e::{
    platform::PlatformClient,
    system::{Options, System},
    upstream::{Echo, Upstream},
};

#[tokio::test]
async fn a_request_to_a_runtime_s_host_is_answered_by_its_upstream() {
    let upstream = Upstream::start().await;
    let system = System::start(&upstream.url()).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    let echo: Echo = client.get("/hello?a=b").await.json();
    assert_eq!(echo.head.target, "/hello?a=b");
    assert_eq!(echo.head.authority, system.entry().authority());
}

#[tokio::test]
async fn without_a_client_a_runtime_is_offline_and_others_are_unknown() {
    let options = Options::to("http://127.0.0.1:1").not_connected();
    let system = System::with(options.server_flags(&["--offline-wait", "100ms"])).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    let answer = client.get("/").await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("runtime_offline"), "{answer:?}");
    let unknown = system.entry().with_host("demo-other.tunnels.localhost");
    let answer = PlatformClient::http1(&unknown).await.get("/").await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("runtime_unknown"), "{answer:?}");
    assert_eq!(system.server().admin().status("/healthz").await, 200);
}
