//! Thousands of random steps in the lives of tunnels, and afterwards nothing is left of them.
//!
//! A few runtimes on one server process, most of their clients in this process. Each step is drawn from a
//! seed that is printed: connect, kill, leave, take over, drain, disconnect, revoke, reload, other limits, a
//! runtime that comes and goes, and traffic of every kind, while what went before is still under way. One
//! client is a process of its own that lives through all of it, so that what it and its sessions hold is
//! compared too. `E2E_LIFE_STEPS` sets the number of steps, `E2E_LIFE_SEED` repeats a run.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::Path,
    time::Duration,
};

use e2e::{
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    grpc::{self, Say},
    http1::End,
    inside::InsideClient,
    platform::PlatformClient,
    program::Signal,
    random::Random,
    raw::RawClient,
    scripted::ScriptedUpstream,
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};
use futures_util::{SinkExt, StreamExt};
use tokio::{
    net::TcpStream,
    runtime::Handle,
    time::{sleep, timeout},
};
use tokio_tungstenite::{
    client_async,
    tungstenite::{self, Message},
};

/// Steps of an ordinary run, which takes well under a minute.
const STEPS: usize = 3_000;

/// Whose clients come and go.
const RUNTIMES: [&str; 6] = ["app", "b", "c", "d", EXTRA, ASKED];

/// Those of them whose tokens are revoked, and whose limits are changed.
const LISTED: [&str; 4] = ["app", "b", "c", "d"];

/// Taken out of the runtimes file and put back.
const EXTRA: &str = "extra";

/// Known to the platform alone.
const ASKED: &str = "asked";

/// What the platform's runtime shows.
const ASKED_TOKEN: &str = "of-the-runtime-that-the-platform-knows-0123456789";

/// Whose client is there all the time.
const STEADY: &str = "steady";

/// Everybody who is asked for something.
const ALL: [&str; 7] = ["app", "b", "c", "d", EXTRA, ASKED, STEADY];

/// Streams that are left open, the oldest of which is given up when there are more.
const HELD: usize = 12;

/// Superseded clients that stand by, the oldest of which is killed when there are more: each watches its files, and
/// the kernel lets one user watch by so many handles only.
const SUPERSEDED: usize = 4;

/// Answers that may come while clients and limits come and go; 404 is of a runtime that is not listed.
const EXPECTED: [u16; 5] = [200, 404, 429, 502, 503];

/// How long a conversation may take whose runtime may leave in the middle.
const CONVERSATION: Duration = Duration::from_secs(10);

/// Gauges that have no reason to return to what they were: what they show is no thing that is held. Threads come and go
/// with files that are checked; descriptors may become fewer, and are compared by themselves.
const NOT_HELD: [&str; 9] = [
    "version", "time", "expiry", "reload", "memory", "cpu", "limit", "threads", "open_fds",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A client comes where there is none.
    Connect,
    /// The client breaks off.
    Kill,
    /// The client is asked to leave, and has left.
    Leave,
    /// A second client takes the runtime over; the first is still there to be told.
    Supersede,
    Drain,
    Disconnect,
    /// All tokens are taken back, and another is made.
    Revoke,
    /// The token that a session goes by is taken back by the operator, when the next is there.
    RevokeOne,
    /// A runtime is taken out of the file, or put back.
    Relist,
    /// A runtime's limits become others.
    Limit,
    /// The runtimes file changes in a way that means nothing.
    Reload,
    /// The server is told to look at its files.
    HangUp,
    Get,
    Post,
    /// A message and its echo.
    WebSocket,
    /// One call.
    Grpc,
    /// A stream is begun and left open.
    Hold,
    /// One of them is given up.
    GiveUp,
}

/// Each as often as it stands here.
const LOTS: [Step; 30] = [
    Step::Connect,
    Step::Connect,
    Step::Connect,
    Step::Connect,
    Step::Kill,
    Step::Kill,
    Step::Leave,
    Step::Supersede,
    Step::Supersede,
    Step::Drain,
    Step::Disconnect,
    Step::Reload,
    Step::Relist,
    Step::Limit,
    Step::WebSocket,
    Step::WebSocket,
    Step::Grpc,
    Step::Grpc,
    Step::Get,
    Step::Get,
    Step::Get,
    Step::Get,
    Step::Get,
    Step::Post,
    Step::Post,
    Step::Hold,
    Step::Hold,
    Step::Hold,
    Step::GiveUp,
    Step::GiveUp,
];

/// Steps that take long, and are drawn seldom.
const RARE: [Step; 3] = [Step::Revoke, Step::RevokeOne, Step::HangUp];

struct Life {
    system: System,
    steady: Client,
    random: Random,
    clients: BTreeMap<&'static str, InsideClient>,
    /// Superseded, the oldest first: they stand by, and take their runtime when nobody holds it.
    superseded: VecDeque<InsideClient>,
    held: VecDeque<RawClient>,
    /// What the runtimes file says of the runtime that comes and goes.
    extra: String,
    taken: BTreeMap<String, usize>,
    /// What came to the end that it was meant to have, by step.
    done: BTreeMap<String, usize>,
    _platform: ScriptedUpstream,
}

/// What the programs hold at one moment.
#[derive(Debug, PartialEq)]
struct Holdings {
    gauges: BTreeMap<String, String>,
    /// The gauges of the client that is a process of its own.
    client_gauges: BTreeMap<String, String>,
    /// Series that belong to single runtimes, but for the one whose tunnel stays.
    series: usize,
    /// Of the server, and of that client.
    descriptors: [usize; 2],
    /// Of the server, of that client, and of this process: its clients', and what the test itself needs.
    tasks: [usize; 3],
}

impl Holdings {
    /// Whether there are the two sessions of the client that stays, and nothing on them.
    fn is_of_one_client_at_rest(&self) -> bool {
        let held = |name: &str| self.gauges.get(name).map(String::as_str);
        held("tunnel_server_sessions") == Some("2")
            && self.client_gauges["tunnel_client_sessions"] == "2"
            && held("tunnel_server_held{table=\"streams\"}") == Some("0")
    }
}

/// The series of gauges that show what is held, and how many tasks there are, which the reader's own
/// connections are among.
fn gauges(metrics: &str) -> (BTreeMap<String, String>, usize) {
    let kinds = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let gauges: Vec<_> = kinds
        .filter_map(|line| line.strip_suffix(" gauge"))
        .collect();
    let is_held =
        |name: &str| gauges.contains(&name) && NOT_HELD.iter().all(|word| !name.contains(word));
    let name = |line: &'_ str| line.split(['{', ' ']).next().unwrap().to_owned();
    let series = metrics.lines().filter(|line| !line.starts_with('#'));
    // Those of single runtimes come with the first exchange and go with the tunnel.
    let is_nothing = |line: &str| line.contains("runtime=\"") && line.ends_with(" 0");
    let series = series.filter(|line| is_held(&name(line)) && !is_nothing(line));
    let split = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.to_owned())
    };
    let mut gauges: BTreeMap<_, _> = series.map(split).collect();
    let tasks = ["tunnel_server_tasks", "tunnel_client_tasks"];
    let tasks = tasks.iter().find_map(|name| gauges.remove(*name));
    (gauges, tasks.unwrap().parse().unwrap())
}

/// Changes a file at once, as an editor does.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, path).unwrap();
}

impl Life {
    async fn start(upstreams: &[Upstream; 2], random: Random) -> Self {
        let [plain, h2c] = [upstreams[0].url(), upstreams[1].h2c_url()];
        let answer = r#"{"account":"demo","runtime":"asked","id":"platform-1"}"#;
        let platform = ScriptedUpstream::answering(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{answer}",
            answer.len()
        ))
        .await;
        let options = Options::to(&plain)
            .server_flags(&["--offline-wait", "10ms", "--drain-spread", "100ms"])
            .server_flags(&["--access-log=off", "--ping-interval", "2s"])
            .server_flags(&["--auth-url", &platform.url()])
            .client_flags(&["--redial-base", "20ms", "--redial-cap", "200ms"])
            .client_flags(&["--grace-period", "50ms"])
            .with_admin_token()
            .not_connected()
            .and("demo", "b", &h2c)
            .and("demo", "c", &plain)
            .and("demo", "d", &h2c)
            .and("demo", STEADY, &h2c)
            .and("demo", EXTRA, &h2c);
        let mut system = System::with(options).await;
        let mut steady = system.client_options("demo-steady").clone();
        let flags = ["--upstream-idle-pool", "0", "--access-log=off"];
        steady.flags.extend(flags.map(str::to_owned));
        let steady = Client::start(&steady).await;
        steady.admin().wait_ready(true).await;
        fs::write(system.directory().join("asked.token"), ASKED_TOKEN).unwrap();
        let runtimes = fs::read_to_string(&system.files().runtimes).unwrap();
        let (_, extra) = runtimes.rsplit_once("[[runtime]]").unwrap();
        assert!(extra.contains("\"extra\""), "{runtimes}");
        Self {
            extra: format!("[[runtime]]{extra}"),
            system,
            steady,
            random,
            clients: BTreeMap::new(),
            superseded: VecDeque::new(),
            held: VecDeque::new(),
            taken: BTreeMap::new(),
            done: BTreeMap::new(),
            _platform: platform,
        }
    }

    fn options(&mut self, runtime: &str) -> ClientOptions {
        if runtime == ASKED {
            return ClientOptions {
                token: self.system.directory().join("asked.token"),
                ..self.system.client_options("demo-app").clone()
            };
        }
        let label = format!("demo-{runtime}");
        self.system.client_options(&label).clone()
    }

    fn done(&mut self, step: Step) {
        *self.done.entry(format!("{step:?}")).or_default() += 1;
    }

    async fn step(&mut self) {
        let step = match self.random.below(100) {
            0 => self.random.pick(&RARE),
            _ => self.random.pick(&LOTS),
        };
        let runtime = match step {
            Step::Connect | Step::Kill | Step::Leave | Step::Supersede => {
                self.random.pick(&RUNTIMES)
            }
            Step::Revoke | Step::RevokeOne | Step::Limit => self.random.pick(&LISTED),
            _ => self.random.pick(&ALL),
        };
        *self.taken.entry(format!("{step:?}")).or_default() += 1;
        self.superseded.retain(|client| !client.has_ended());
        let took = timeout(2 * SOON, self.take(step, runtime)).await;
        assert!(took.is_ok(), "{step:?} of {runtime} does not end");
    }

    async fn take(&mut self, step: Step, runtime: &'static str) {
        let label = format!("demo-{runtime}");
        match step {
            Step::Connect => {
                let has_ended = self
                    .clients
                    .get(runtime)
                    .is_none_or(InsideClient::has_ended);
                if has_ended {
                    let client = InsideClient::start(&self.options(runtime));
                    self.clients.insert(runtime, client);
                }
            }
            Step::Kill => drop(self.clients.remove(runtime)),
            Step::Leave => {
                if let Some(client) = self.clients.remove(runtime) {
                    client.leave(SOON).await;
                }
            }
            Step::Supersede => {
                let newer = InsideClient::start(&self.options(runtime));
                self.superseded.extend(self.clients.insert(runtime, newer));
                if self.superseded.len() > SUPERSEDED {
                    self.superseded.pop_front();
                }
            }
            Step::Drain => self.operate(step, &label, "drain", "").await,
            Step::Disconnect => self.operate(step, &label, "disconnect", "").await,
            Step::Revoke | Step::RevokeOne => self.revoke(step, runtime).await,
            Step::Reload | Step::Relist | Step::Limit => self.edit(step, runtime),
            Step::HangUp => self.system.server().program().signal(Signal::HUP),
            Step::Get => self.ask(step, &label).await,
            Step::Post => self.ask(step, &label).await,
            Step::WebSocket => self.talk(&label).await,
            Step::Grpc => self.call(&label).await,
            Step::Hold => self.hold(&label).await,
            Step::GiveUp => {
                if let Some(mut client) = self.held.pop_front()
                    && self.random.below(2) == 0
                {
                    client.reset();
                }
            }
        }
    }

    async fn revoke(&mut self, step: Step, runtime: &str) {
        let label = format!("demo-{runtime}");
        let current = self.system.token_of(&label);
        let before = fs::read_to_string(&current).unwrap();
        if step == Step::Revoke {
            self.system.files().revoke_token("demo", runtime, None);
        }
        let token = self.system.files().create_token("demo", runtime);
        fs::rename(token, current).unwrap();
        if step == Step::RevokeOne {
            let id = before.split('_').nth(1).unwrap();
            let order = format!(r#"{{"id":"{id}"}}"#);
            self.operate(step, &label, "revoke", &order).await;
        }
    }

    fn edit(&mut self, step: Step, runtime: &str) {
        let path = self.system.files().runtimes.clone();
        let text = fs::read_to_string(&path).unwrap();
        let text = text.trim_end_matches(['#', '\n']);
        let text = match step {
            Step::Reload => format!("{text}\n{}\n", "#".repeat(1 + self.random.below(9))),
            Step::Limit => {
                let limits = self.random.pick(&[
                    "exchanges = 2",
                    "websockets = 0",
                    "exchange_rate = 5",
                    "download_rate = \"1MiB\"",
                    "",
                ]);
                limited(text, runtime, limits)
            }
            _ => match text.split_once(self.extra.trim_end()) {
                Some((before, after)) => format!("{before}{after}\n"),
                None => format!("{text}\n\n{}", self.extra),
            },
        };
        self.done(step);
        replace(&path, &text);
    }

    async fn operate(&mut self, step: Step, label: &str, verb: &str, content: &str) {
        let path = format!("/api/v1/runtimes/{label}/{verb}");
        let admin = self.system.server().admin();
        let answer = admin.post_with(&path, Some(ADMIN_TOKEN), content).await;
        assert!(!answer.status.is_server_error(), "{path}: {answer:?}");
        assert_ne!(answer.status, 400, "{path}: {answer:?}");
        if answer.status.is_success() {
            self.done(step);
        }
    }

    async fn ask(&mut self, step: Step, label: &str) {
        let mut client = PlatformClient::http1(&self.system.entry_of(label)).await;
        let answer = match step {
            Step::Post => client.post("/upload", vec![7; 50_000]).await,
            _ => client.get("/status/200").await,
        };
        assert!(EXPECTED.contains(&answer.status.as_u16()), "{answer:?}");
        if answer.status == 200 {
            self.done(step);
        }
    }

    /// A WebSocket's opening, one message, and its end, which may be a rude one.
    async fn talk(&mut self, label: &str) {
        let entry = self.system.entry_of(label);
        let socket = TcpStream::connect(entry.address()).await.unwrap();
        let opened = client_async(entry.websocket_url("/websocket"), socket).await;
        let mut socket = match opened {
            Ok((socket, _)) => socket,
            Err(tungstenite::Error::Http(answer)) => {
                assert!(EXPECTED.contains(&answer.status().as_u16()), "{answer:?}");
                return;
            }
            // Its runtime may have left in the middle.
            Err(_) => return,
        };
        let talked = timeout(CONVERSATION, async {
            socket.send(Message::text("word")).await.ok()?;
            socket.next().await?.ok()
        });
        let heard = talked.await.expect("an echo, or an end");
        if heard == Some(Message::text("word")) {
            self.done(Step::WebSocket);
            if self.random.below(2) == 0 {
                drop(timeout(CONVERSATION, socket.close(None)).await);
            }
        }
    }

    async fn call(&mut self, label: &str) {
        let mut client = grpc::client(&self.system.entry_of(label));
        let say = Say {
            text: "word".to_owned(),
            ..Say::default()
        };
        let answered = timeout(CONVERSATION, client.once(say)).await;
        let answered = answered.expect("an answer, or a status");
        if answered.is_ok_and(|said| said.get_ref().text == "word") {
            self.done(Step::Grpc);
        }
    }

    async fn hold(&mut self, label: &str) {
        let mut client = RawClient::connect(&self.system.entry_of(label)).await;
        let target = self
            .random
            .pick(&["/hold", "/events?every_ms=50", "/download?bytes=9000000"]);
        client.request("GET", target, "", b"").await;
        self.held.push_back(client);
        if self.held.len() > HELD {
            self.held.pop_front();
        }
    }

    /// Everything ends, in one way or another.
    async fn end_all(&mut self) {
        self.held.clear();
        self.superseded.clear();
        for (number, client) in std::mem::take(&mut self.clients).into_values().enumerate() {
            if number % 2 == 0 {
                client.leave(SOON).await;
            }
        }
    }

    async fn holdings(&self) -> Holdings {
        let (server, client) = (self.system.server(), &self.steady);
        let metrics = server.admin().metrics().await;
        let (gauges, server_tasks) = gauges(&metrics);
        let (client_gauges, client_tasks) = self::gauges(&client.admin().metrics().await);
        Holdings {
            gauges,
            client_gauges,
            series: metrics
                .lines()
                .filter(|line| !line.starts_with('#') && line.contains("runtime=\""))
                .filter(|line| !line.contains(STEADY))
                .count(),
            descriptors: [
                server.program().descriptors(),
                client.program().descriptors(),
            ],
            tasks: [
                server_tasks,
                client_tasks,
                Handle::current().metrics().num_alive_tasks(),
            ],
        }
    }

    /// The holdings once only the sessions of the client that stays are left, and nothing changes any more.
    async fn holdings_at_rest(&self) -> Holdings {
        let mut now = self.holdings().await;
        let at_rest = async || {
            now = self.holdings().await;
            now.is_of_one_client_at_rest().then_some(())
        };
        let resting = timeout(SOON, eventually(2 * SOON, "rest", at_rest)).await;
        assert!(resting.is_ok(), "no rest: {now:#?}");
        let mut last = self.holdings().await;
        eventually(SOON, "rest", async || {
            sleep(Duration::from_millis(300)).await;
            let now = self.holdings().await;
            let is_same = now == last;
            last = now;
            is_same.then_some(())
        })
        .await;
        last
    }

    /// Waits until nothing is held beyond what was held before, which may take the rest of what is
    /// under way.
    async fn assert_holds_no_more_than(&self, before: &Holdings) {
        let mut now = self.holdings().await;
        let settled = async || {
            now = self.holdings().await;
            let no_more = |now: &[usize], before: &[usize]| {
                now.iter().zip(before).all(|(now, before)| now <= before)
            };
            let is_no_more = now.gauges == before.gauges
                && now.client_gauges == before.client_gauges
                && now.series <= before.series
                && no_more(&now.descriptors, &before.descriptors)
                && no_more(&now.tasks, &before.tasks);
            is_no_more.then_some(())
        };
        let settling = timeout(2 * SOON, eventually(3 * SOON, "an end of all", settled)).await;
        assert!(settling.is_ok(), "before: {before:#?}\nnow: {now:#?}");
    }

    /// Every runtime is listed once more, and none has limits of its own.
    fn list_all(&mut self) {
        let path = self.system.files().runtimes.clone();
        if !fs::read_to_string(&path)
            .unwrap()
            .contains(self.extra.trim_end())
        {
            self.edit(Step::Relist, EXTRA);
        }
        for runtime in LISTED {
            let text = fs::read_to_string(&path).unwrap();
            replace(&path, &limited(&text, runtime, ""));
        }
    }

    /// Every runtime has a client once more, and answers.
    async fn assert_all_well(&mut self) {
        for runtime in RUNTIMES {
            let label = format!("demo-{runtime}");
            let mut options = self.options(runtime);
            // The last token may be newer than what the server has read.
            let patient = ["--on-refusal", "retry", "--refusal-wait", "100ms"];
            options.flags.extend(patient.map(str::to_owned));
            let client = InsideClient::start(&options);
            self.clients.insert(runtime, client);
            let entry = self.system.entry_of(&label);
            let answered = async || {
                let mut client = PlatformClient::http1(&entry).await;
                (client.get("/status/200").await.status == 200).then_some(())
            };
            eventually(SOON, &format!("{label} to answer"), answered).await;
        }
    }
}

/// The runtimes file with these limits for one runtime, and no others of its own.
fn limited(text: &str, runtime: &str, limits: &str) -> String {
    let name = format!("name = \"{runtime}\"");
    let mut lines = Vec::new();
    let mut is_its = false;
    for line in text.lines() {
        // What it had before stands right after its name.
        if !(is_its && line.starts_with("limits = ")) {
            lines.push(line.to_owned());
        }
        is_its = line == name;
        if is_its && !limits.is_empty() {
            lines.push(format!("limits = {{ {limits} }}"));
        }
    }
    lines.join("\n") + "\n"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_number_of_random_steps_nothing_is_left_behind() {
    let (steps, random) = Random::of_test("LIFE", STEPS);
    let upstreams = [Upstream::start().await, Upstream::start().await];
    let mut life = Life::start(&upstreams, random).await;
    // Once through everything, so that what is made at first use is there before it is counted.
    for runtime in ALL {
        for step in LOTS.iter().chain(&RARE) {
            let is_fit = match step {
                Step::Revoke | Step::RevokeOne | Step::Limit => LISTED.contains(&runtime),
                Step::Connect | Step::Kill | Step::Leave | Step::Supersede => {
                    RUNTIMES.contains(&runtime)
                }
                // As it is listed in the end, too.
                Step::Relist => false,
                _ => true,
            };
            if is_fit {
                life.take(*step, runtime).await;
            }
        }
    }
    life.list_all();
    life.end_all().await;
    let before = life.holdings_at_rest().await;

    for _ in 0..steps {
        life.step().await;
    }
    eprintln!("steps taken: {:?}", life.taken);
    eprintln!("steps that did what they were meant to: {:?}", life.done);
    for step in [
        Step::Get,
        Step::Post,
        Step::WebSocket,
        Step::Grpc,
        Step::Drain,
    ] {
        let done = life.done.get(&format!("{step:?}"));
        assert!(
            done.is_some_and(|count| *count > steps / 500),
            "{step:?}: {:?}",
            life.done
        );
    }
    life.list_all();
    life.end_all().await;
    life.assert_holds_no_more_than(&before).await;

    // And the server is as good as new.
    life.assert_all_well().await;
    life.end_all().await;
    life.assert_holds_no_more_than(&before).await;
    assert!(
        !life.steady.program().log().is_closed(),
        "the client that stays has ended"
    );
    let mut last = RawClient::connect(&life.system.entry()).await;
    last.finish().await;
    assert_eq!(last.wait_end(Duration::from_secs(5)).await, End::Clean);
}
