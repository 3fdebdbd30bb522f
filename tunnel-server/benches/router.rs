//! What a request costs before it is sent on: its bytes scanned, its head checked, its host looked
//! up, and the outgoing request built.
//!
//! In: requests of a program and of a browser, and tables of one to many runtimes. Out: time and
//! allocations of each step. No sockets, no hyper, and of the session only the handle.
//!
//! Allocations are counted while the time is taken, which adds some nanoseconds to each of them.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::{
    fmt::Write,
    hint::black_box,
    net::Ipv4Addr,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use divan::{AllocProfiler, Bencher, counter::BytesCount};
use futures_util::FutureExt;
use http::{Request, request::Parts};
use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tunnel_directory::OnConflict;
use tunnel_http::http1::framing::{Framing, HeadLimits};
use tunnel_http::outgoing::{ForwardedClient, ViaName};
use tunnel_ops::config_file::TomlFile;
use tunnel_proto::{
    handshake::InstanceSecret,
    session::{Driver, Session, SessionEvents, SessionSettings, Side},
};
use tunnel_server::{
    events::Events,
    metrics::Metrics,
    public::check::{CHECKER, forwarded_head},
    registry::{JoinRequest, Membership, Registry},
    router::Router,
    runtimes::{HostName, Runtimes},
    tunnel::Peer,
};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

/// Samples of each benchmark, and runs in each: fixed, since a slow first run (a cold cache) would
/// otherwise make every sample too short to time.
const SAMPLES: u32 = 200;
const SAMPLE_SIZE: u32 = 32;

/// Runtimes that are online and asked for, spread over a larger table: enough that no host is found
/// where the one before it was.
const ONLINE: usize = 1_024;

/// As they are by default.
const LIMITS: HeadLimits = HeadLimits {
    bytes: 128 * 1024,
    fields: 100,
};

const DOMAIN: &str = "tunnel.example";

const HEADS: [Head; 2] = [Head::Small, Head::Browser];

/// A GET of a program, and of a browser.
#[derive(Debug, Clone, Copy)]
enum Head {
    Small,
    Browser,
}

const SMALL: &str = "GET /status HTTP/1.1\r\n\
    host: acme-prod.tunnel.example\r\n\
    accept: */*\r\n\
    user-agent: curl/8.5.0\r\n\
    \r\n";

const BROWSER: &str = "GET /app/projects?page=2 HTTP/1.1\r\n\
    host: acme-prod.tunnel.example\r\n\
    user-agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    accept-language: en-GB,en;q=0.7,de;q=0.3\r\n\
    accept-encoding: gzip, deflate, br, zstd\r\n\
    referer: https://acme-prod.tunnel.example/app/projects\r\n\
    cookie: session=Zr8sQ1vWk0m3xJ5tYpLbNcHd; theme=dark; csrf=9f1c2e7ab4\r\n\
    connection: keep-alive\r\n\
    cache-control: no-cache\r\n\
    dnt: 1\r\n\
    upgrade-insecure-requests: 1\r\n\
    sec-fetch-dest: document\r\n\
    sec-fetch-mode: navigate\r\n\
    sec-fetch-site: same-origin\r\n\
    priority: u=0, i\r\n\
    \r\n";

fn main() {
    divan::main();
}

// === The request ===

impl Head {
    fn text(self) -> &'static str {
        match self {
            Self::Small => SMALL,
            Self::Browser => BROWSER,
        }
    }

    /// What the HTTP library makes of it.
    fn parsed(self) -> Parts {
        let mut lines = self.text().trim_end().split("\r\n");
        let target = lines.next().unwrap().split(' ').nth(1).unwrap();
        let fields = lines.map(|line| line.split_once(": ").unwrap());
        let request = fields.fold(Request::get(target), |request, (name, value)| {
            request.header(name, value)
        });
        request.body(()).unwrap().into_parts().0
    }
}

/// Every byte of the head, before the HTTP library sees it.
#[divan::bench(args = HEADS, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn scan_head(bencher: Bencher<'_, '_>, head: Head) {
    let bytes = head.text().as_bytes();
    let mut framing = Framing::new(LIMITS);
    bencher
        .counter(BytesCount::new(bytes.len()))
        .bench_local(|| {
            let scan = framing.scan(black_box(bytes));
            assert_eq!((scan.pass, scan.heads), (bytes.len(), 1));
        });
}

#[divan::bench(args = HEADS, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn check_request(bencher: Bencher<'_, '_>, head: Head) {
    let parts = head.parsed();
    bencher
        .with_inputs(|| parts.clone())
        .bench_local_refs(|parts| {
            black_box(CHECKER.to_forward(parts).unwrap());
        });
}

#[divan::bench(args = HEADS, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn build_outgoing(bencher: Bencher<'_, '_>, head: Head) {
    let parts = head.parsed();
    let checked = CHECKER.to_forward(&parts).unwrap();
    let client = ForwardedClient::new(Ipv4Addr::new(203, 0, 113, 7).into(), false, true);
    let via = ViaName::new("6f1d2c");
    bencher
        .bench_local(|| forwarded_head(black_box(&checked), &client, &via, false, None).unwrap());
}

// === The host ===

/// From the host to a session that takes the exchange, in tables of so many runtimes.
#[divan::bench(args = [1, 1_000, 100_000], sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn route(bencher: Bencher<'_, '_>, runtimes: usize) {
    let table = Table::new(runtimes);
    let mut hosts = table.online.iter().cycle();
    bencher.bench_local(|| {
        let host = black_box(hosts.next().unwrap());
        let found = table
            .router
            .route(host, Duration::ZERO)
            .next_hop(&mut None, None, || 0, |_| None)
            .now_or_never()
            .unwrap();
        assert!(found.is_ok());
    });
}

/// A host that is nobody's: the answer's problem is made with it.
#[divan::bench(args = [1, 1_000, 100_000], sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn route_unknown_host(bencher: Bencher<'_, '_>, runtimes: usize) {
    let table = Table::new(runtimes);
    let host = "nobody.tunnel.example";
    bencher.bench_local(|| {
        let found = table
            .router
            .route(black_box(host), Duration::ZERO)
            .next_hop(&mut None, None, || 0, |_| None)
            .now_or_never();
        assert!(found.unwrap().is_err());
    });
}

/// All runtimes' hosts, some of them online.
struct Table {
    router: Router,
    online: Vec<String>,
    _memberships: Vec<Membership>,
    _session: Live,
}

impl Table {
    fn new(count: usize) -> Self {
        let domain: HostName = DOMAIN.parse().unwrap();
        let runtimes = Runtimes::parse(&runtimes_file(count), &domain).unwrap();
        let registry = Registry::new(Metrics::new().unwrap(), Events::new("b"));
        let router = Router::new(&runtimes, &domain, &registry).unwrap();
        let live = Live::new();
        let secret = InstanceSecret::from_random([7; 16]);
        let mut online = Vec::new();
        let mut memberships = Vec::new();
        for entry in runtimes.iter().step_by(count.div_ceil(ONLINE)) {
            let request = JoinRequest {
                runtime: entry,
                instance: secret.id(),
                session: &live.session,
                peer: Peer {
                    address: std::net::SocketAddr::from(([192, 0, 2, 1], 1)).into(),
                    version: String::new(),
                    number: 1,
                    since: SystemTime::UNIX_EPOCH,
                    credential: Mutex::default(),
                    routes: Mutex::default(),
                },
                allow_from: None,
                on_conflict: OnConflict::Supersede,
            };
            let joined = registry.join(request).now_or_never();
            memberships.push(joined.unwrap().unwrap());
            online.push(format!("{}.{DOMAIN}", entry.label));
        }
        Self {
            router,
            online,
            _memberships: memberships,
            _session: live,
        }
    }
}

fn runtimes_file(count: usize) -> TomlFile {
    let mut text = String::new();
    for number in 0..count {
        // Spread, so that the order of the file is not that of the names.
        let account = number * 7_919 % 1_000_003;
        writeln!(
            text,
            "[[runtime]]\naccount = \"a{account}\"\nname = \"prod\""
        )
        .unwrap();
    }
    TomlFile::from_text("runtimes.toml", text)
}

/// A session that stays alive although nothing moves on it.
struct Live {
    session: Session,
    _rest: (SessionEvents, Driver<DuplexStream>, DuplexStream),
}

impl Live {
    fn new() -> Self {
        let (io, other) = tokio::io::duplex(64);
        let settings = SessionSettings::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        // Its timers belong to a runtime.
        let _entered = runtime.enter();
        let (session, events, driver) = Session::new(io, Bytes::new(), Side::Server, settings);
        Self {
            session,
            _rest: (events, driver, other),
        }
    }
}
