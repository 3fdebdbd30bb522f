//! Several upstreams of one route: shares, failures, checks, and none at all.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::*;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};

/// An address without a listener.
async fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// An upstream that answers with its own name.
async fn good(name: &'static str) -> ScriptedUpstream {
    ScriptedUpstream::start(move |mut connection: ScriptedConnection| async move {
        while let Ok(head) = connection.head().await {
            let bytes = usize::from(head.starts_with("POST"));
            connection.bytes(bytes).await;
            connection.send(answer(name)).await;
        }
    })
    .await
}

fn post() -> Request<Full<Bytes>> {
    Request::post("https://a-b.tunnels.test/")
        .header("content-length", 1)
        .body(Full::new("x".into()))
        .unwrap()
}

fn ejection() -> EjectionOptions {
    EjectionOptions {
        after: 2,
        duration: Duration::from_secs(600),
    }
}

fn checks() -> HealthOptions {
    HealthOptions {
        path: "/healthz?full".parse().unwrap(),
        host: None,
        interval: Duration::from_millis(50),
        timeout: SOON,
        unhealthy_after: 2,
        healthy_after: 2,
    }
}

fn set(
    addresses: &[(SocketAddr, u32)],
    options: &UpstreamOptions,
    health: Option<HealthOptions>,
    ejection: Option<EjectionOptions>,
) -> (Route, Arc<UpstreamSet>) {
    set_after(&[], addresses, options, health, ejection)
}

/// A set that takes over the states of these sets, as after a reload.
fn set_after(
    earlier: &[&UpstreamSet],
    addresses: &[(SocketAddr, u32)],
    options: &UpstreamOptions,
    health: Option<HealthOptions>,
    ejection: Option<EjectionOptions>,
) -> (Route, Arc<UpstreamSet>) {
    let members = addresses.iter().map(|(address, weight)| UpstreamMember {
        url: format!("http://{address}").parse().unwrap(),
        weight: *weight,
    });
    let config = UpstreamsConfig {
        members: members.collect(),
        options: options.clone(),
        health,
        ejection,
    };
    let state = |url: &UpstreamUrl| earlier.iter().find_map(|set| set.state(url));
    let set = UpstreamSet::new(&config, &shared(), state);
    Route::to_set(set.unwrap())
}

/// An upstream that reads a head and resets the connection.
async fn resetting() -> ScriptedUpstream {
    ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        drop(connection.head().await);
        // What is left unread makes the end a reset.
    })
    .await
}

/// An upstream whose checks hold while a test says so.
struct Checked {
    scripted: ScriptedUpstream,
    is_well: Arc<AtomicBool>,
    /// Requests that were no checks.
    asked: Arc<AtomicUsize>,
}

impl Checked {
    async fn start() -> Self {
        let (is_well, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (well, count) = (Arc::clone(&is_well), Arc::clone(&asked));
        let scripted = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
            let (well, count) = (Arc::clone(&well), Arc::clone(&count));
            async move {
                while let Ok(head) = connection.head().await {
                    if !head.starts_with("GET /healthz?") {
                        count.fetch_add(1, Ordering::SeqCst);
                        connection.send(answer("checked")).await;
                    } else if well.load(Ordering::SeqCst) {
                        connection.send(answer("fine")).await;
                    } else {
                        let no = "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n";
                        connection.send(no).await;
                    }
                }
            }
        });
        Self {
            scripted: scripted.await,
            is_well,
            asked,
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn conditions(set: &UpstreamSet) -> Vec<&'static str> {
    set.conditions().map(UpstreamCondition::name).collect()
}

/// Waits until the upstreams are like this.
async fn become_so(set: &UpstreamSet, expected: &[&str]) {
    let seen = async {
        while conditions(set) != expected {
            sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(SOON, seen).await.is_err() {
        panic!("{:?} is not {expected:?}", conditions(set));
    }
}

#[tokio::test]
async fn each_is_asked_by_its_weight() {
    let (one, two) = (good("one").await, good("two").await);
    let members = [(one.address(), 3), (two.address(), 1)];
    let (route, set) = set(&members, &options(), None, None);
    assert_eq!(conditions(&set), ["unknown", "unknown"]);
    let mut ones = 0;
    for _ in 0..40 {
        ones += usize::from(route.fetch(get("/")).await == "one");
    }
    assert_eq!(ones, 30);
    assert_eq!(conditions(&set), ["up", "up"]);
}

#[tokio::test]
async fn what_one_refused_another_takes_and_who_refuses_is_left_alone() {
    let good = good("good").await;
    let members = [(closed().await, 1), (good.address(), 1)];
    let (route, set) = set(&members, &options(), None, Some(ejection()));
    for _ in 0..10 {
        assert_eq!(route.fetch(post()).await, "good", "content and all");
    }
    assert_eq!(conditions(&set), ["ejected", "up"]);
}

#[tokio::test]
async fn when_all_are_down_that_is_said_and_each_is_tried_again() {
    let members = [(closed().await, 1), (closed().await, 1)];
    let (route, set) = set(&members, &options(), None, Some(ejection()));
    for _ in 0..4 {
        let problem = route.ask(post()).await.unwrap_err();
        assert_eq!(problem.reason(), Reason::UpstreamsDown, "{problem}");
    }
    assert_eq!(conditions(&set), ["ejected", "ejected"]);
    let back = ScriptedUpstream::start_at(
        members[1].0,
        |mut connection: ScriptedConnection| async move {
            while connection.head().await.is_ok() {
                connection.send(answer("back")).await;
            }
        },
    )
    .await;
    assert_eq!(route.fetch(get("/")).await, "back");
    assert_eq!(route.fetch(get("/")).await, "back");
    assert_eq!(conditions(&set)[1], "up");
    drop(back);
}

#[tokio::test]
async fn when_all_are_out_each_is_asked_until_one_answers() {
    let mut members = Vec::new();
    for _ in 0..8 {
        members.push((closed().await, 1));
    }
    let (route, set) = set(&members, &options(), None, Some(ejection()));
    while conditions(&set).contains(&"unreachable") || conditions(&set).contains(&"unknown") {
        route.ask(post()).await.unwrap_err();
    }
    assert_eq!(conditions(&set), ["ejected"; 8]);
    let _back = ScriptedUpstream::start_at(
        members[5].0,
        |mut connection: ScriptedConnection| async move {
            while connection.head().await.is_ok() {
                connection.send(answer("back")).await;
            }
        },
    )
    .await;
    assert_eq!(route.fetch(get("/")).await, "back");
}

#[tokio::test]
async fn as_many_are_asked_as_it_takes_while_nothing_was_sent() {
    let good = good("good").await;
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push((closed().await, 1));
    }
    members.push((good.address(), 1));
    let (route, _set) = set(&members, &options(), None, None);
    for _ in 0..8 {
        assert_eq!(route.fetch(post()).await, "good");
    }
    drop(good);
    let problem = route.ask(post()).await.unwrap_err();
    assert_eq!(problem.reason(), Reason::UpstreamsDown, "{problem}");
    assert!(problem.detail().contains("4 upstreams"), "{problem}");
}

#[tokio::test]
async fn one_dial_that_fails_for_many_counts_once() {
    let members = [(closed().await, 1), (closed().await, 1)];
    let members = members.map(|(address, weight)| UpstreamMember {
        url: format!("h2c://{address}").parse().unwrap(),
        weight,
    });
    let once = EjectionOptions {
        after: 5,
        ..ejection()
    };
    let config = UpstreamsConfig {
        members: members.into(),
        options: options(),
        health: None,
        ejection: Some(once),
    };
    let set = UpstreamSet::new(&config, &shared(), |_| None);
    let (route, set) = Route::to_set(set.unwrap());
    let route = Arc::new(route);
    let mut all = JoinSet::new();
    for _ in 0..50 {
        let route = Arc::clone(&route);
        all.spawn(async move { route.failure(get("/")).await });
    }
    for reason in all.join_all().await {
        assert_eq!(reason, Reason::UpstreamsDown);
    }
    assert_eq!(conditions(&set), ["unreachable", "unreachable"]);
}

#[tokio::test]
async fn a_platform_client_that_stops_sending_says_nothing_of_its_upstream() {
    let waits = || {
        ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
            drop(connection.head().await);
            connection.rest().await;
        })
    };
    let (one, two) = (waits().await, waits().await);
    let options = UpstreamOptions {
        idle_timeout: Some(Duration::from_millis(50)),
        ..options()
    };
    let members = [(one.address(), 1), (two.address(), 1)];
    let (route, set) = set(&members, &options, None, Some(ejection()));
    for _ in 0..6 {
        let pending = StreamBody::new(tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let request = Request::post("https://a-b.tunnels.test/").body(pending);
        let reason = route.failure(request.unwrap()).await;
        assert_eq!(reason, Reason::RequestIncomplete);
    }
    assert_eq!(conditions(&set), ["up", "up"]);
}

#[tokio::test]
async fn checks_name_the_host_that_they_are_told() {
    let (seen, mut hosts) = tokio::sync::mpsc::channel(1);
    let checked = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let seen = seen.clone();
        async move {
            while let Ok(head) = connection.head().await {
                let _ = seen.try_send(head);
                connection.send(answer("fine")).await;
            }
        }
    })
    .await;
    for (host, expected) in [
        (Some("app.example"), "app.example".to_owned()),
        (None, checked.address().to_string()),
    ] {
        let checks = HealthOptions {
            host: host.map(http::HeaderValue::from_static),
            ..checks()
        };
        let members = [(checked.address(), 1)];
        let (_route, _set) = set(&members, &options(), Some(checks), None);
        let said = format!("\r\nhost: {expected}\r\n");
        let named = async { while !hosts.recv().await.unwrap().contains(&said) {} };
        timeout(SOON, named).await.unwrap();
    }
}

#[tokio::test]
async fn a_harmless_request_is_asked_again_when_a_connection_broke_and_no_other() {
    let (resetting, good) = (resetting().await, good("good").await);
    let members = [(resetting.address(), 1), (good.address(), 1)];
    let (route, _set) = set(&members, &options(), None, None);
    for _ in 0..6 {
        assert_eq!(route.fetch(get("/")).await, "good");
    }
    assert_eq!(resetting.connections(), 3);
    let mut failures = 0;
    for _ in 0..6 {
        match route.ask(post()).await {
            Ok(response) => {
                response.into_body().collect().await.unwrap();
            }
            Err(problem) => {
                assert_eq!(problem.reason(), Reason::ConnectionTerminated);
                failures += 1;
            }
        }
    }
    assert_eq!(failures, 3, "each turn of the one that resets");
}

#[tokio::test]
async fn one_that_hangs_is_left_alone_after_a_few_that_waited() {
    let hanging = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        drop(connection.head().await);
        connection.rest().await;
    })
    .await;
    let good = good("good").await;
    let options = UpstreamOptions {
        head_timeout: Duration::from_secs(1),
        ..options()
    };
    let members = [(hanging.address(), 1), (good.address(), 1)];
    let (route, set) = set(&members, &options, None, Some(ejection()));
    let mut failures = 0;
    for _ in 0..20 {
        // Whoever began to wait may have been acted upon, and the one that hangs might do it yet.
        failures += usize::from(route.ask(get("/")).await.is_err());
    }
    assert_eq!(failures, 2);
    assert_eq!(conditions(&set), ["ejected", "up"]);
}

#[tokio::test]
async fn one_whose_checks_fail_gets_nothing_until_they_hold_again() {
    let (checked, good) = (Checked::start().await, good("good").await);
    let members = [(checked.scripted.address(), 1), (good.address(), 1)];
    let (route, set) = set(&members, &options(), Some(checks()), None);
    become_so(&set, &["unhealthy", "up"]).await;
    let before = checked.asked();
    for _ in 0..10 {
        assert_eq!(route.fetch(get("/")).await, "good");
    }
    assert_eq!(checked.asked(), before);
    checked.is_well.store(true, Ordering::SeqCst);
    become_so(&set, &["up", "up"]).await;
    for _ in 0..2 {
        route.fetch(get("/")).await;
    }
    assert_eq!(checked.asked(), before + 1);
    // A check's answer is read, so that its connection can be used again.
    let connections = checked.scripted.connections();
    assert!(connections <= 3, "{connections}");
}

#[tokio::test]
async fn who_is_left_alone_is_left_alone_after_a_reload() {
    let (resetting, one, new) = (resetting().await, good("one").await, good("new").await);
    let members = [(resetting.address(), 1), (one.address(), 1)];
    let (route, first) = set(&members, &options(), None, Some(ejection()));
    while conditions(&first)[0] != "ejected" {
        let _ = route.ask(post()).await;
    }
    let before = resetting.connections();
    // Other weights, one more, and asked in another way: it is as dead as it was.
    let members = [
        (new.address(), 1),
        (one.address(), 2),
        (resetting.address(), 5),
    ];
    let options = UpstreamOptions {
        head_timeout: SOON / 2,
        ..options()
    };
    let once = EjectionOptions {
        after: 1,
        ..ejection()
    };
    let (route, second) = set_after(&[&first], &members, &options, None, Some(once));
    assert_eq!(conditions(&second), ["unknown", "up", "ejected"]);
    for _ in 0..20 {
        let answer = route.fetch(post()).await;
        assert!(["one", "new"].contains(&answer.as_str()), "{answer}");
    }
    assert_eq!(resetting.connections(), before);
    // Without the setting nothing would ever bring it back.
    let (_route, third) = set_after(&[&second], &members, &options, None, None);
    assert_eq!(conditions(&third)[2], "up");
    // One alone is asked in any case, and so is not said to be left alone.
    let members = [(resetting.address(), 1)];
    let (_route, alone) = set_after(&[&second], &members, &options, None, Some(once));
    assert_eq!(conditions(&alone), ["up"]);
}

#[tokio::test]
async fn who_cannot_be_reached_is_not_unknown_after_a_reload() {
    let (closed, good) = (closed().await, good("good").await);
    let members = [(closed, 1), (good.address(), 1)];
    let (route, first) = set(&members, &options(), None, None);
    for _ in 0..2 {
        route.fetch(get("/")).await;
    }
    assert_eq!(conditions(&first), ["unreachable", "up"]);
    let members = [(closed, 1), (good.address(), 9)];
    let (_route, second) = set_after(&[&first], &members, &options(), None, None);
    assert_eq!(conditions(&second), ["unreachable", "up"]);
}

#[tokio::test]
async fn who_was_unhealthy_is_so_after_a_reload_until_its_new_checks_hold() {
    let (checked, good) = (Checked::start().await, good("good").await);
    let members = [(checked.scripted.address(), 1), (good.address(), 1)];
    let (_route, first) = set(&members, &options(), Some(checks()), None);
    become_so(&first, &["unhealthy", "up"]).await;
    let before = checked.asked();
    let other = HealthOptions {
        path: "/healthz?other".parse().unwrap(),
        unhealthy_after: 5,
        ..checks()
    };
    let elsewhere = [(good.address(), 3)];
    let (_route, stranger) = set(&elsewhere, &options(), None, None);
    let earlier = [&*stranger, &*first];
    let members = [members[1], members[0]];
    let (route, second) = set_after(&earlier, &members, &options(), Some(other), None);
    for _ in 0..10 {
        assert_eq!(route.fetch(get("/")).await, "good");
    }
    assert_eq!(checked.asked(), before);
    // Where nobody checks whether it has come back, it is tried.
    let (_route, third) = set_after(&[&first], &members, &options(), None, Some(ejection()));
    assert_eq!(conditions(&third), ["up", "up"]);
    checked.is_well.store(true, Ordering::SeqCst);
    become_so(&second, &["up", "up"]).await;
}

#[tokio::test]
async fn one_that_dies_and_returns_under_load_costs_no_harmless_request() {
    let stays = good("stays").await;
    let dies = good("dies").await;
    let address = dies.address();
    let members = [(stays.address(), 1), (address, 1)];
    let (route, set) = set(&members, &options(), Some(checks()), Some(ejection()));
    become_so(&set, &["up", "up"]).await;
    let (route, is_over) = (Arc::new(route), Arc::new(AtomicBool::new(false)));
    let mut load = JoinSet::new();
    for _ in 0..8 {
        let (route, is_over) = (Arc::clone(&route), Arc::clone(&is_over));
        load.spawn(async move {
            let mut answers = 0;
            while !is_over.load(Ordering::SeqCst) {
                route.fetch(get("/")).await;
                answers += 1;
            }
            answers
        });
    }
    let used = async { while route.fetch(get("/")).await != "dies" {} };
    timeout(SOON, used).await.unwrap();
    drop(dies);
    become_so(&set, &["up", "unhealthy"]).await;
    let returned =
        ScriptedUpstream::start_at(address, |mut connection: ScriptedConnection| async move {
            while connection.head().await.is_ok() {
                connection.send(answer("returned")).await;
            }
        })
        .await;
    let used = async { while route.fetch(get("/")).await != "returned" {} };
    timeout(SOON, used).await.unwrap();
    is_over.store(true, Ordering::SeqCst);
    let answers: usize = load.join_all().await.into_iter().sum();
    assert!(answers > 0);
    drop(returned);
}

#[tokio::test]
async fn one_alone_is_asked_whatever_its_checks_say() {
    let only = ScriptedUpstream::start(|mut connection: ScriptedConnection| async move {
        while let Ok(head) = connection.head().await {
            let answer = match head.starts_with("GET /healthz") {
                true => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
                false => answer("only"),
            };
            connection.send(answer).await;
        }
    })
    .await;
    let members = [(only.address(), 1)];
    let (route, set) = set(&members, &options(), Some(checks()), Some(ejection()));
    become_so(&set, &["unhealthy"]).await;
    assert_eq!(route.fetch(get("/")).await, "only");
}

#[tokio::test]
async fn a_set_needs_members_and_shares() {
    let url: UpstreamUrl = "http://127.0.0.1:1".parse().unwrap();
    let make = |members: Vec<(UpstreamUrl, u32)>| {
        let members = members.into_iter();
        let config = UpstreamsConfig {
            members: members
                .map(|(url, weight)| UpstreamMember { url, weight })
                .collect(),
            options: options(),
            health: None,
            ejection: None,
        };
        UpstreamSet::new(&config, &shared(), |_| None).err()
    };
    assert!(matches!(make(Vec::new()), Some(UpstreamError::NoUpstream)));
    for weight in [0, 1001] {
        let made = make(vec![(url.clone(), weight)]);
        assert!(matches!(made, Some(UpstreamError::Weight)));
    }
    let https = "https://127.0.0.1:1".parse().unwrap();
    let made = make(vec![(url, 1), (https, 1)]);
    assert!(matches!(made, Some(UpstreamError::Tls(_))));
}
