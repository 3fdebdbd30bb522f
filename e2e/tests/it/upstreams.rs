//! Upstreams that refuse, hang, reset, show a wrong certificate, move, or die and return: what each
//! does to who asks for it, and to who asks for others.

use std::{net::SocketAddr, time::Duration};

use e2e::{
    addresses::Addresses,
    ca::Ca,
    deadline::{SOON, eventually},
    http1::End,
    load::{ExchangeKind, Load, Plan, Report},
    names::NameServer,
    platform::PlatformClient,
    raw::RawClient,
    scripted::ScriptedUpstream,
    system::{CLIENT_FILE, Options, System},
    upstream::{Echo, Upstream},
};
use testkit::closed_port::closed_port;

/// A system whose client has these routes and no other upstream.
async fn routing(routes: &str, flags: &[&str]) -> System {
    let options = Options::to("").client_file(routes).client_flags(flags);
    System::with(options).await
}

/// A route for everything below a path that has the route's name.
fn route(name: &str, settings: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}/*\"\nstrip_prefix = \"/{name}\"\n{settings}\n"
    )
}

/// Upstreams with a fault each, and some without.
struct Faulty {
    good: Upstream,
    elsewhere: Upstream,
    secure: Upstream,
    scripted: Vec<(&'static str, ScriptedUpstream)>,
    directory: tempfile::TempDir,
}

impl Faulty {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let resetting = ScriptedUpstream::start(|mut connection| async move {
            drop(connection.head().await);
            connection.reset();
        });
        let garbled = ScriptedUpstream::answering_once("what is this\r\n\r\n");
        Self {
            good: Upstream::start().await,
            elsewhere: Upstream::start_tls(&ca.issue("elsewhere", &["elsewhere.test"])).await,
            secure: Upstream::start_tls(&ca.issue("secure", &["localhost"])).await,
            scripted: vec![
                ("silent", ScriptedUpstream::silent().await),
                ("resetting", resetting.await),
                ("garbled", garbled.await),
            ],
            directory,
        }
    }

    /// A route for each, by the name of what is wrong.
    fn table(&self) -> String {
        let to = |name: &str, url: &str, more: &str| {
            route(name, &format!("upstream = \"{url}\"\n{more}"))
        };
        let ca = self.directory.path().join("ca.pem");
        let tls = |more: &str| format!("tls = {{ ca_file = \"{}\"{more} }}", ca.display());
        let renamed = tls(", server_name = \"elsewhere.test\"");
        let (good, elsewhere, secure) = (&self.good, &self.elsewhere, &self.secure);
        let mut table = [
            to("good", &good.url(), ""),
            to("small", &good.url(), "max_body = \"1KiB\""),
            to("away", &format!("http://{}", closed_port()), ""),
            to("secure", &secure.url(), &tls("")),
            to("renamed", &elsewhere.url(), &renamed),
            to("insecure", &elsewhere.url(), "tls = { insecure = true }"),
            to("elsewhere", &elsewhere.url(), &tls("")),
            to("untrusted", &secure.url(), ""),
            to("nameless", "http://nowhere.invalid:80", ""),
            "[[route]]\nname = \"denied\"\npath = \"/denied/*\"\ndeny = \"not for the outside\"\n"
                .to_owned(),
        ]
        .concat();
        for (name, upstream) in &self.scripted {
            table.push_str(&to(name, &upstream.url(), "head_timeout = \"1s\""));
        }
        table
    }
}

#[tokio::test]
async fn each_way_to_fail_has_its_name_and_leaves_the_others_alone() {
    let faulty = Faulty::start().await;
    let system = routing(&faulty.table(), &[]).await;
    let cases: [(&str, u16, &str); 13] = [
        ("good", 200, ""),
        ("small", 413, "body_too_large"),
        ("away", 502, "connection_refused"),
        ("silent", 504, "timeout"),
        ("resetting", 502, "connection"),
        ("garbled", 502, ""),
        ("secure", 200, ""),
        ("renamed", 200, ""),
        ("insecure", 200, ""),
        ("elsewhere", 502, "certificate"),
        ("untrusted", 502, "certificate"),
        ("nameless", 502, "dns"),
        ("denied", 403, "not for the outside"),
    ];
    let mut wrong = Vec::new();
    for (name, status, words) in cases {
        let mut client = PlatformClient::http1(&system.entry()).await;
        let answer = client
            .post(&format!("/{name}/upload"), vec![b'x'; 2_000])
            .await;
        let told = answer.text().contains(words);
        if answer.status != status || !told {
            wrong.push(format!(
                "{name}: not {status} {words}: {} {}",
                answer.status,
                answer.text()
            ));
        }
        let mut client = PlatformClient::http1(&system.entry()).await;
        assert_eq!(
            client.get("/good/status/200").await.status,
            200,
            "after {name}"
        );
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A name that leads elsewhere is followed as soon as its time is over, and the connections to where
/// it led are given up.
#[tokio::test]
async fn an_upstream_that_moves_is_followed() {
    let addresses = match Addresses::take(2) {
        Ok(addresses) => addresses,
        Err(why) => return eprintln!("skipped: this machine gives no addresses: {why}"),
    };
    let old = Upstream::start_on(addresses.at(0, 8080)).await;
    let new = Upstream::start_on(addresses.at(1, 8080)).await;
    let names = NameServer::start().await;
    names.set("moving.test", &[addresses.get(0)], 1);
    let server = names.address().to_string();
    let table =
        "[[route]]\nname = \"moving\"\npath = \"/*\"\nupstream = \"http://moving.test:8080\"\n";
    let system = routing(table, &["--dns-server", &server]).await;
    let load = Load::start(
        system.entry(),
        &Plan::only(&[ExchangeKind::Get, ExchangeKind::Post], 2),
    );
    load.wait_progress(20).await;
    assert!(new.requests().is_empty());
    names.set("moving.test", &[addresses.get(1)], 1);
    load.mark("the name leads elsewhere");
    let followed = async || (new.requests().len() > 20).then_some(());
    eventually(SOON, "requests at the new address", followed).await;
    // Whoever is there now may be gone any time.
    let before = old.requests().len();
    load.wait_progress(50).await;
    assert_eq!(
        old.requests().len(),
        before,
        "requests still go to the old address"
    );
    load.finish().await.assert_none_failed();
}

/// Several upstreams, the addresses that they return to, and a table that leads to them.
struct Several {
    upstreams: Vec<Option<Upstream>>,
    system: System,
}

impl Several {
    async fn start(settings: &str) -> Self {
        let mut upstreams = Vec::new();
        for _ in 0..3 {
            upstreams.push(Upstream::start().await);
        }
        let urls = upstreams
            .iter()
            .map(|one| format!("{{ url = \"{}\" }}", one.url()));
        let urls: Vec<_> = urls.collect();
        let table = format!(
            "[[route]]\nname = \"several\"\npath = \"/*\"\nupstreams = [{}]\n{settings}\n",
            urls.join(", ")
        );
        let system = routing(&table, &[]).await;
        Self {
            upstreams: upstreams.into_iter().map(Some).collect(),
            system,
        }
    }

    fn load(&self) -> Load {
        Load::start(
            self.system.entry(),
            &Plan::only(&[ExchangeKind::Get, ExchangeKind::Post], 4),
        )
    }

    /// Requests of the load, as opposed to checks of health, that the first one got.
    fn served_by_first(&self) -> usize {
        let first = self.upstreams[0].as_ref().unwrap();
        let requests = first.requests();
        requests
            .iter()
            .filter(|seen| seen.target != "/healthy")
            .count()
    }

    /// The first one dies under load; gives what failed until that was noticed.
    async fn first_dies(&mut self) -> (SocketAddr, Report) {
        let load = self.load();
        load.wait_progress(20).await;
        let first = self.upstreams[0].take().unwrap();
        let address = first.address();
        assert!(!first.requests().is_empty());
        drop(first);
        load.mark("the first dies");
        // Long enough for one more than what is allowed to fail, by every worker.
        load.wait_progress(60).await;
        let report = load.finish().await;
        eprintln!("{report}");
        (address, report)
    }
}

#[tokio::test]
async fn one_that_dies_under_load_is_ejected_and_nothing_fails_after_that() {
    let mut several = Several::start("ejection = { after = 3, for = \"10m\" }").await;
    let (_, report) = several.first_dies().await;
    // Three failures make it be left; what was under way at that time may fail beside.
    assert!(report.failures.len() <= 3 + 8, "{report}");
    let load = several.load();
    load.wait_progress(100).await;
    load.finish().await.assert_none_failed();
}

#[tokio::test]
async fn one_that_dies_and_returns_is_left_and_taken_up_again() {
    let health = "health = { path = \"/healthy\", interval = \"200ms\", timeout = \"2s\", \
         unhealthy_after = 2, healthy_after = 2 }\nejection = { after = 3, for = \"1s\" }";
    let mut several = Several::start(health).await;
    let (address, _) = several.first_dies().await;
    let load = several.load();
    load.wait_progress(100).await;
    load.mark("the first returns");
    several.upstreams[0] = Some(Upstream::start_on(address).await);
    let serves = async || (several.served_by_first() > 10).then_some(());
    eventually(SOON, "requests at the one that returned", serves).await;
    load.wait_progress(30).await;
    load.finish().await.assert_none_failed();
}

/// One that takes requests and never answers them well costs as many as are allowed to fail.
#[tokio::test]
async fn one_that_hangs_or_resets_is_ejected_after_as_many_failures_as_are_allowed() {
    let resetting = ScriptedUpstream::start(|mut connection| async move {
        drop(connection.head().await);
        connection.reset();
    });
    for bad in [ScriptedUpstream::silent().await, resetting.await] {
        let good = Upstream::start().await;
        let table = format!(
            "[[route]]\nname = \"two\"\npath = \"/*\"\nhead_timeout = \"500ms\"\n\
             upstreams = [{{ url = \"{}\" }}, {{ url = \"{}\" }}]\n\
             ejection = {{ after = 3, for = \"10m\" }}\n",
            bad.url(),
            good.url()
        );
        let system = routing(&table, &[]).await;
        let mut client = PlatformClient::http1(&system.entry()).await;
        let mut failed = Vec::new();
        for number in 0..60 {
            // A request that must not be sent twice.
            let answer = client.post("/upload", "once").await;
            if answer.status != 200 {
                assert!([502, 504].contains(&answer.status.as_u16()), "{answer:?}");
                failed.push(number);
            }
        }
        assert_eq!(failed.len(), 3, "{failed:?}");
        assert_eq!(good.requests().len(), 57);
    }
}

#[tokio::test]
async fn weights_are_kept() {
    let (heavy, light) = (Upstream::start().await, Upstream::start().await);
    let table = format!(
        "[[route]]\nname = \"weighted\"\npath = \"/*\"\n\
         upstreams = [{{ url = \"{}\", weight = 3 }}, {{ url = \"{}\" }}]\n",
        heavy.url(),
        light.url()
    );
    let system = routing(&table, &[]).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    for _ in 0..400 {
        assert_eq!(client.get("/status/200").await.status, 200);
    }
    let (heavy, light) = (heavy.requests().len(), light.requests().len());
    assert_eq!(heavy + light, 400);
    assert!(
        (270..=330).contains(&heavy),
        "{heavy} of 400 to the one with weight 3 of 4"
    );
}

/// Puts another table in the place of a system's, in one step.
fn replace_table(system: &System, table: &str) {
    let next = system.directory().join("client.next");
    std::fs::write(&next, table).unwrap();
    std::fs::rename(&next, system.directory().join(CLIENT_FILE)).unwrap();
}

/// The state of an ejected upstream outlives a reload of routes that keeps the upstream: no further request fails.
#[tokio::test]
async fn one_that_is_ejected_stays_so_when_the_table_changes_under_load() {
    let bad = ScriptedUpstream::silent().await;
    let (good, new) = (Upstream::start().await, Upstream::start().await);
    let table = |members: &[(String, u32)]| {
        let members = members
            .iter()
            .map(|(url, weight)| format!("{{ url = \"{url}\", weight = {weight} }}"));
        let members: Vec<_> = members.collect();
        format!(
            "[[route]]\nname = \"some\"\npath = \"/*\"\nhead_timeout = \"500ms\"\n\
             upstreams = [{}]\nejection = {{ after = 1, for = \"10m\" }}\n",
            members.join(", ")
        )
    };
    let system = routing(&table(&[(bad.url(), 1), (good.url(), 1)]), &[]).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    let ejected = async || (client.post("/upload", "x").await.status == 504).then_some(());
    eventually(SOON, "one failure", ejected).await;
    let load = Load::start(
        system.entry(),
        &Plan::only(&[ExchangeKind::Get, ExchangeKind::Post], 4),
    );
    load.wait_progress(20).await;
    let heads = bad.record().len();
    for weight in [9, 1] {
        let members = [(bad.url(), 9), (new.url(), weight), (good.url(), 1)];
        let before = new.requests().len();
        replace_table(&system, &table(&members));
        load.mark("the table has changed");
        let taken = async || (new.requests().len() > before + 20).then_some(());
        eventually(SOON, "requests at the new one", taken).await;
    }
    load.wait_progress(50).await;
    load.finish().await.assert_none_failed();
    assert_eq!(bad.record().len(), heads, "it was asked again");
}

/// A new table is taken over under load, and one with a fault in it is not.
#[tokio::test]
async fn the_table_is_replaced_without_a_failure() {
    let (one, other) = (Upstream::start().await, Upstream::start().await);
    let table =
        |url: &str| format!("[[route]]\nname = \"all\"\npath = \"/*\"\nupstream = \"{url}\"\n");
    let system = routing(&table(&one.h2c_url()), &[]).await;
    let load = Load::start(system.entry(), &Plan::every_kind());
    load.wait_progress(10).await;
    let log = system.client().program().log();
    let mark = log.len();
    replace_table(&system, "[[route]]\nname = \"all\"\npath = \"nowhere\"\n");
    load.mark("a table with faults");
    let refused = |line: &e2e::program::OutputLine| {
        let text = line.text();
        (text.contains("\"ERROR\"") || text.contains("\"WARN\"")).then(|| text.to_owned())
    };
    let line = log
        .wait_for_after(mark, "word of the faults", SOON, refused)
        .await;
    assert!(line.contains("client.toml"), "{line}");
    load.wait_progress(5).await;
    assert!(other.requests().is_empty());
    replace_table(&system, &table(&other.h2c_url()));
    load.mark("a table that leads elsewhere");
    let taken = async || {
        let mut client = PlatformClient::http1(&system.entry()).await;
        let echo: Echo = client.get("/which").await.json();
        let here = other
            .requests()
            .iter()
            .any(|seen| seen.target == echo.head.target);
        here.then_some(())
    };
    eventually(SOON, "requests at the other one", taken).await;
    load.wait_progress(5).await;
    load.finish().await.assert_none_failed();
}

/// Destinations that a filled-in template leads to are never at home.
#[tokio::test]
async fn a_name_that_leads_home_is_refused() {
    let names = NameServer::start().await;
    let server = names.address().to_string();
    let home = Upstream::start().await;
    let table = format!(
        "[[route]]\nname = \"webhooks\"\npath = \"/webhooks/{{source}}/*\"\n\
         upstream = \"http://{{source}}.svc.test:{}\"\n",
        home.address().port()
    );
    let system = routing(&table, &["--dns-server", &server]).await;
    let homes = [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "fe80::1",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "224.0.0.1",
        "255.255.255.255",
    ];
    let mut wrong = Vec::new();
    for (number, address) in homes.into_iter().enumerate() {
        names.set(&format!("s{number}.svc.test"), &[address], 60);
        let mut client = PlatformClient::http1(&system.entry()).await;
        let answer = client.get(&format!("/webhooks/s{number}/x")).await;
        if answer.status != 502 || !answer.text().contains("destination_denied") {
            wrong.push(format!("{address}: {} {}", answer.status, answer.text()));
        }
    }
    for written in ["localhost", "127-0-0-1", "metadata"] {
        let mut client = PlatformClient::http1(&system.entry()).await;
        let answer = client.get(&format!("/webhooks/{written}/x")).await;
        if answer.status != 502 {
            wrong.push(format!("{written}: {} {}", answer.status, answer.text()));
        }
    }
    assert_eq!(home.connections(), 0);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// While one hangs, others are answered as if nothing were.
#[tokio::test]
async fn one_that_hangs_holds_nobody_else_up() {
    let good = Upstream::start().await;
    let silent = ScriptedUpstream::silent().await;
    let table = [
        route("good", &format!("upstream = \"{}\"", good.url())),
        route("silent", &format!("upstream = \"{}\"", silent.url())),
    ]
    .concat();
    let system = routing(&table, &[]).await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let entry = system.entry();
        waiting.spawn(async move {
            let client = PlatformClient::http1(&entry).await;
            client
                .with_time_limit(Duration::from_secs(600))
                .get("/silent/x")
                .await
        });
    }
    let held = async || (silent.record().len() >= 100).then_some(());
    eventually(SOON, "all of them to wait", held).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    for _ in 0..20 {
        assert_eq!(client.get("/good/status/200").await.status, 200);
    }
    assert!(waiting.try_join_next().is_none());
}

/// Services that listen at a Unix socket only, in each way that HTTP is spoken there.
#[tokio::test]
async fn an_upstream_at_a_unix_socket_is_as_good_as_any() {
    let directory = tempfile::tempdir().unwrap();
    let mut upstream = Upstream::start().await;
    let kinds = [
        ExchangeKind::Get,
        ExchangeKind::Post,
        ExchangeKind::Events,
        ExchangeKind::WebSocket,
    ];
    let plans = [
        ("unix", Plan::only(&kinds, 2)),
        ("h2c+unix", Plan::every_kind()),
    ];
    for (scheme, plan) in plans {
        let path = directory.path().join(format!("{scheme}.sock"));
        let system = System::start(&format!("{scheme}:{}", path.display())).await;
        let mut client = PlatformClient::http1(&system.entry()).await;
        let answer = client.get("/status/200").await;
        assert_eq!(answer.status, 502, "nobody is there yet");
        assert!(answer.text().contains("connection_refused"), "{answer:?}");
        upstream.open_socket(&path);
        let echo: Echo = client.get("/a//b?x=%2f").await.json();
        assert_eq!(echo.head.target, "/a//b?x=%2f");
        assert_eq!(echo.head.authority, system.entry().authority());
        let load = Load::start(system.entry(), &plan);
        load.wait_progress(10).await;
        load.finish().await.assert_none_failed();
    }
}

/// A request that turns out to be larger than its route takes when its answer has begun already: that
/// is its own fault, whatever is spoken with the upstream.
#[tokio::test]
async fn too_large_a_request_is_called_so_though_its_answer_has_begun() {
    let upstream = Upstream::start().await;
    for url in [upstream.url(), upstream.h2c_url()] {
        let small = format!("upstream = \"{url}\"\nmax_body = \"1KiB\"");
        let system = routing(&route("small", &small), &[]).await;
        let mut client = RawClient::connect(&system.entry()).await;
        let chunked = "Transfer-Encoding: chunked\r\n";
        client
            .request("POST", "/small/duplex", chunked, b"5\r\nfirst\r\n")
            .await;
        let head = client.head().await.unwrap();
        assert_eq!(head.status(), 200);
        let large = [b"7d0\r\n".as_slice(), &[b'x'; 2_000], b"\r\n"].concat();
        client.send(large).await;
        let content = client.content(head.response_framing("POST")).await;
        assert_ne!(content.end, End::Clean, "{url}");
        let programs = [system.client().program(), system.server().program()];
        for program in programs {
            let line = program.wait_for_line("body_too_large", SOON).await;
            assert!(line.contains("\"end\":\"body_too_large\""), "{url}: {line}");
        }
        let admin = system.client().admin();
        let name = "tunnel_client_problems_total";
        let counted = |count| count == 1.0;
        admin.wait_metric(name, &["body_too_large"], counted).await;
        let all = admin.metric(name, &[]).await;
        assert_eq!(all, Some(1.0), "{url}: nobody else is to blame");
    }
}

/// What the server shows of a runtime's routes follows how their upstreams are.
#[tokio::test]
async fn the_server_shows_an_upstream_that_becomes_unhealthy_and_comes_back() {
    let stays = Upstream::start().await;
    let leaves = Upstream::start().await;
    let table = format!(
        "[[route]]\nname = \"two\"\npath = \"/*\"\n\
         upstreams = [{{ url = \"{}\" }}, {{ url = \"{}\" }}]\n\
         health = {{ path = \"/healthy\", interval = \"200ms\", timeout = \"2s\", \
         unhealthy_after = 2, healthy_after = 2 }}\n",
        stays.url(),
        leaves.url()
    );
    let system = routing(&table, &[]).await;
    let shown = async |state: &str| {
        let is_shown = async || {
            let admin = system.server().admin();
            let runtime = admin.get("/api/v1/runtimes/demo-app").await;
            assert_eq!(runtime.status, 200, "{runtime:?}");
            let runtime: serde_json::Value = runtime.json();
            let route = &runtime["routes"][0];
            assert!(route.is_null() || route["name"] == "two", "{runtime}");
            (route["state"] == state).then_some(())
        };
        // It is told at once, and then ever less often.
        eventually(
            3 * SOON,
            &format!("the route to be shown as {state}"),
            is_shown,
        )
        .await;
    };
    shown("up").await;
    let address = leaves.address();
    drop(leaves);
    shown("degraded").await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    for _ in 0..10 {
        assert_eq!(client.get("/status/200").await.status, 200);
    }
    let _back = Upstream::start_on(address).await;
    shown("up").await;
}
