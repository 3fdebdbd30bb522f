//! The peers that proxies, name servers and today's router are, without a tunnel: what other tests
//! say by them is worth no more than that.

use std::net::IpAddr;

use e2e::{
    addresses::Addresses,
    ca::Ca,
    cluster_services::{ClusterService, ClusterServices},
    names::{NameServer, Reply},
    peers::{
        curl::{Output, curl},
        dante::Dante,
        mitmproxy::Mitmproxy,
        nginx::{Nginx, RouterUpstreams},
        squid::{Login, Squid, SquidOptions},
    },
    platform::PlatformClient,
    raw::RawClient,
    upstream::Upstream,
};

/// A name that only proxies know.
const HIDDEN: &str = "hidden.test";

/// curl by way of a proxy.
async fn curl_by(proxy: &str, more: &[&str], url: &str) -> Output {
    let usual = ["--noproxy", "", "--proxytunnel", "--proxy", proxy];
    curl([&usual[..], more, &[url]].concat()).await
}

#[tokio::test]
async fn squid_carries_and_asks_who_it_is() {
    let upstream = Upstream::start().await;
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let hosts = vec![(HIDDEN.to_owned(), IpAddr::from([127, 0, 0, 1]))];
    let url = format!("http://{HIDDEN}:{}/status/200", upstream.address().port());
    let authority = ca.file().to_str().unwrap().to_owned();
    for login in [Login::None, Login::Basic, Login::Digest] {
        for certificate in [None, Some(ca.issue("proxy", &["localhost"]))] {
            let squid = Squid::start(&SquidOptions {
                login,
                certificate,
                hosts: hosts.clone(),
                ..SquidOptions::default()
            })
            .await;
            let more = ["--proxy-cacert", &authority, "--proxy-anyauth"];
            let answer = curl_by(&squid.login_url(), &more, &url).await;
            assert_eq!(answer.status(), 200, "{login:?}");
            squid.wait_access(&format!("CONNECT {HIDDEN}")).await;
            let answer = curl_by(&squid.url(), &more, &url).await;
            let is_open = answer.code == 0;
            assert_eq!(is_open, login == Login::None, "{login:?}: {answer:?}");
            let wrong = squid.login_url().replace("op%3A", "nope%3A");
            let answer = curl_by(&wrong, &more, &url).await;
            assert_eq!(
                answer.code == 0,
                login == Login::None,
                "{login:?}: {answer:?}"
            );
        }
    }
    let denying = Squid::start(&SquidOptions {
        denies: true,
        ..SquidOptions::default()
    })
    .await;
    let answer = curl_by(&denying.url(), &[], &url).await;
    assert!(answer.complaint.contains("403"), "{answer:?}");
}

#[tokio::test]
async fn dante_carries_who_knows_the_password() {
    let upstream = Upstream::start().await;
    let hosts = vec![(HIDDEN.to_owned(), IpAddr::from([127, 0, 0, 1]))];
    let dante = match Dante::start(&hosts).await {
        Ok(dante) => dante,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let url = format!("http://{HIDDEN}:{}/status/200", upstream.address().port());
    let answer = curl([
        "--noproxy",
        "",
        "--proxy",
        &dante.login_url("socks5h"),
        &url,
    ])
    .await;
    assert_eq!(answer.status(), 200);
    for proxy in [
        dante.login_url("socks5"),
        dante.url("socks5h", "not the password"),
        format!("socks5h://{}", dante.address()),
    ] {
        let answer = curl(["--noproxy", "", "--proxy", &proxy, &url]).await;
        assert_ne!(answer.code, 0, "{proxy}");
    }
}

#[tokio::test]
async fn mitmproxy_opens_tls() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let upstream = Upstream::start_tls(&ca.issue("upstream", &["localhost"])).await;
    let inspection = Mitmproxy::start(&ca).await;
    let url = format!("{}/status/200", upstream.url());
    let trusting = |file: std::path::PathBuf| file.to_str().unwrap().to_owned();
    let (theirs, ours) = (trusting(inspection.ca_file()), trusting(ca.file()));
    let answer = curl_by(&inspection.url(), &["--cacert", &theirs], &url).await;
    assert_eq!(answer.status(), 200);
    let answer = curl_by(&inspection.url(), &["--cacert", &ours], &url).await;
    assert_eq!(answer.code, 60, "{answer:?}");
}

#[tokio::test]
async fn the_router_of_today_asks_the_name_server_for_event_sources() {
    let cluster = match ClusterServices::make("app-proxy.test", "workflows.test").await {
        Ok(cluster) => cluster,
        Err(why) => return eprintln!("skipped: this machine gives no addresses: {why}"),
    };
    let router = Nginx::router(&RouterUpstreams {
        app_proxy: cluster.addresses().at(0, 3017),
        workflows: cluster.addresses().at(1, 2746),
        names: cluster.names().address(),
        read_seconds: 60,
    })
    .await;
    let entry = router.entry();
    for (path, service, target) in [
        (
            "/app-proxy/status/200",
            ClusterService::AppProxy,
            "/app-proxy/status/200",
        ),
        (
            "/workflows/status/200",
            ClusterService::Workflows,
            "/status/200",
        ),
        (
            "/webhooks/argo/push/status/200",
            ClusterService::Push,
            "/webhooks/argo/push/status/200",
        ),
        (
            "/webhooks/argo/pull/status/200",
            ClusterService::Trap,
            "/webhooks/argo/pull/status/200",
        ),
    ] {
        let mark = cluster.mark();
        let answer = RawClient::connect(&entry)
            .await
            .exchange("GET", path, "")
            .await;
        assert_eq!(answer.head.status(), 200, "{path}");
        let came = cluster.since(&mark);
        let came: Vec<_> = came
            .iter()
            .map(|(service, seen)| (*service, &*seen.target))
            .collect();
        assert_eq!(came, [(service, target)]);
    }
    let asked = cluster.names().questions().all();
    assert!(
        asked
            .iter()
            .any(|asked| asked.name == "push-eventsource-svc.argo.svc.cluster.local"),
        "{asked:?}"
    );
}

#[tokio::test]
async fn addresses_go_with_their_handle() {
    let addresses = match Addresses::take(2) {
        Ok(addresses) => addresses,
        Err(why) => return eprintln!("skipped: this machine gives no addresses: {why}"),
    };
    let other = Addresses::take(2).unwrap();
    assert_ne!(addresses.get(0), other.get(0));
    let upstream = Upstream::start_on(addresses.at(1, 80)).await;
    let mut client = PlatformClient::http1(&upstream.entry()).await;
    assert_eq!(client.get("/status/200").await.status, 200);
    let gone = addresses.at(0, 0);
    drop(addresses);
    assert!(std::net::TcpListener::bind(gone).is_err());
}

#[tokio::test]
async fn a_name_server_forgets_and_keeps_silent() {
    use tokio::net::UdpSocket;
    let names = NameServer::start().await;
    names.set("a.test", &[IpAddr::from([198, 18, 0, 1])], 7);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let ask = async |name: &str, kind: u8| {
        let mut question = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            question.push(u8::try_from(label.len()).unwrap());
            question.extend(label.as_bytes());
        }
        question.extend([0, 0, kind, 0, 1]);
        socket.send_to(&question, names.address()).await.unwrap();
        let mut answer = [0; 512];
        let (length, _) = socket.recv_from(&mut answer).await.unwrap();
        answer[..length].to_vec()
    };
    let answer = ask("A.test", 1).await;
    assert_eq!(answer[3] & 15, 0);
    assert!(
        answer.ends_with(&[0, 0, 0, 7, 0, 4, 198, 18, 0, 1]),
        "{answer:?}"
    );
    assert_eq!(ask("a.test", 28).await[6..8], [0, 0]);
    assert_eq!(ask("b.test", 1).await[3] & 15, 3);
    names.set_reply("a.test", Reply::Silence);
    names.forget("b.test");
    socket.send_to(&[7; 40], names.address()).await.unwrap();
    assert_eq!(ask("b.test", 1).await[3] & 15, 3);
    assert_eq!(names.questions().all()[0].name, "a.test");
}
