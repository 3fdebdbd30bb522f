//! Thousands of random steps in the lives of tunnels, and afterwards nothing is left of them.
//!
//! A few runtimes on one server process, their clients in this process. Each step is drawn from a
//! seed that is printed: connect, kill, leave, take over, drain, disconnect, revoke, reload, and
//! traffic of several kinds, while what went before is still under way. `E2E_LIFE_STEPS` sets the
//! number of steps, `E2E_LIFE_SEED` repeats a run.

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use e2e::{
    deadline::{SOON, eventually},
    inside::InsideClient,
    message::End,
    platform::PlatformClient,
    program::Signal,
    raw::RawClient,
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

/// Steps of an ordinary run, which takes well under a minute.
const STEPS: usize = 10_000;

const RUNTIMES: [&str; 4] = ["app", "b", "c", "d"];

/// Streams that are left open, the oldest of which is given up when there are more.
const HELD: usize = 12;

/// Answers that may come while clients come and go.
const EXPECTED: [u16; 3] = [200, 502, 503];

/// Gauges that have no reason to return to what they were: what they show is no thing that is held.
const NOT_HELD: [&str; 7] = [
    "version", "time", "expiry", "reload", "memory", "cpu", "limit",
];

/// Numbers that follow from a seed (the generator is "splitmix64").
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

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
    /// The runtimes file changes in a way that means nothing.
    Reload,
    /// The server is told to look at its files.
    HangUp,
    Get,
    Post,
    /// A stream is begun and left open.
    Hold,
    /// One of them is given up.
    GiveUp,
}

/// Each as often as it stands here.
const LOTS: [Step; 24] = [
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
const RARE: [Step; 2] = [Step::Revoke, Step::HangUp];

struct Life {
    system: System,
    random: Random,
    clients: BTreeMap<&'static str, InsideClient>,
    /// Superseded, and on their way out.
    leaving: Vec<InsideClient>,
    held: VecDeque<RawClient>,
    taken: BTreeMap<String, usize>,
    /// What the operator asked for and was done.
    operated: usize,
}

/// What a server holds at one moment.
#[derive(Debug, PartialEq)]
struct Holdings {
    gauges: BTreeMap<String, String>,
    /// Series that belong to single runtimes.
    series: usize,
    descriptors: usize,
    /// Tasks of this process: its clients', and what the test itself needs.
    tasks: usize,
}

impl Life {
    async fn start(upstream: &Upstream, seed: u64) -> Self {
        let mut options = Options::to(&upstream.url())
            .server_flags(&["--offline-wait", "10ms", "--drain-spread", "100ms"])
            .server_flags(&["--access-log=false"])
            .client_flags(&["--redial-base", "20ms", "--redial-cap", "200ms"])
            .client_flags(&["--grace-period", "50ms"])
            .with_admin_token()
            .not_connected();
        for runtime in &RUNTIMES[1..] {
            options = options.and("demo", runtime, &upstream.url());
        }
        Self {
            system: System::with(options).await,
            random: Random(seed),
            clients: BTreeMap::new(),
            leaving: Vec::new(),
            held: VecDeque::new(),
            taken: BTreeMap::new(),
            operated: 0,
        }
    }

    async fn step(&mut self) {
        let step = match self.random.below(100) {
            0 => self.random.pick(&RARE),
            _ => self.random.pick(&LOTS),
        };
        let runtime = self.random.pick(&RUNTIMES);
        *self.taken.entry(format!("{step:?}")).or_default() += 1;
        self.leaving.retain(|client| !client.has_ended());
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
                    let client = InsideClient::start(self.system.client_options(&label));
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
                let newer = InsideClient::start(self.system.client_options(&label));
                self.leaving.extend(self.clients.insert(runtime, newer));
            }
            Step::Drain => self.operate(&label, "drain").await,
            Step::Disconnect => self.operate(&label, "disconnect").await,
            Step::Revoke => {
                self.system.files().revoke_token("demo", runtime, None);
                let token = self.system.files().create_token("demo", runtime);
                fs::rename(token, self.system.token_of(&label)).unwrap();
            }
            Step::Reload => {
                let path = &self.system.files().runtimes;
                let text = fs::read_to_string(path).unwrap();
                let text = text.trim_end_matches(['#', '\n']);
                let marks = "#".repeat(1 + self.random.below(9));
                fs::write(path, format!("{text}\n{marks}\n")).unwrap();
            }
            Step::HangUp => self.system.server().program().signal(Signal::HUP),
            Step::Get => self.ask(&label, false).await,
            Step::Post => self.ask(&label, true).await,
            Step::Hold => self.hold(&label).await,
            Step::GiveUp => {
                if let Some(client) = self.held.pop_front()
                    && self.random.below(2) == 0
                {
                    client.reset();
                }
            }
        }
    }

    async fn operate(&mut self, label: &str, verb: &str) {
        let path = format!("/api/v1/runtimes/{label}/{verb}");
        let admin = self.system.server().admin();
        let answer = admin.post(&path, Some(ADMIN_TOKEN)).await;
        assert!(!answer.status.is_server_error(), "{path}: {answer:?}");
        self.operated += usize::from(answer.status.is_success());
    }

    async fn ask(&self, label: &str, is_post: bool) {
        let mut client = PlatformClient::http1(&self.system.entry_of(label)).await;
        let answer = match is_post {
            true => client.post("/upload", vec![7; 50_000]).await,
            false => client.get("/status/200").await,
        };
        assert!(EXPECTED.contains(&answer.status.as_u16()), "{answer:?}");
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
        self.leaving.clear();
        for (number, client) in std::mem::take(&mut self.clients).into_values().enumerate() {
            if number % 2 == 0 {
                client.leave(SOON).await;
            }
        }
    }

    async fn holdings(&self) -> Holdings {
        let server = self.system.server();
        let metrics = server.admin().metrics().await;
        let kinds = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "));
        let gauges: Vec<_> = kinds
            .filter_map(|line| line.strip_suffix(" gauge"))
            .collect();
        let is_held =
            |name: &&str| gauges.contains(name) && NOT_HELD.iter().all(|word| !name.contains(word));
        let name = |line: &'_ str| line.split(['{', ' ']).next().unwrap().to_owned();
        let series = metrics.lines().filter(|line| !line.starts_with('#'));
        let gauges = series.clone().filter(|line| is_held(&name(line).as_str()));
        let split = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.to_owned())
        };
        Holdings {
            gauges: gauges.map(split).collect(),
            series: series.filter(|line| line.contains("runtime=\"")).count(),
            descriptors: server.program().descriptors(),
            tasks: Handle::current().metrics().num_alive_tasks(),
        }
    }

    /// The same when no session is left, and nothing changes any more.
    async fn holdings_at_rest(&self) -> Holdings {
        let admin = self.system.server().admin();
        admin
            .wait_metric("tunnel_server_sessions", &[], |count| count == 0.0)
            .await;
        let mut last = self.holdings().await;
        eventually(SOON, "rest", async || {
            sleep(Duration::from_millis(300)).await;
            let now = self.holdings().await;
            let is_same = now == last;
            last = now;
            is_same.then_some(())
        })
        .await;
        self.holdings().await
    }

    /// Waits until nothing is held beyond what was held before, which may take the rest of what is
    /// under way.
    async fn assert_holds_no_more_than(&self, before: &Holdings) {
        let mut now = self.holdings().await;
        let settled = async || {
            now = self.holdings().await;
            let is_no_more = now.gauges == before.gauges
                && now.series <= before.series
                && now.descriptors <= before.descriptors
                && now.tasks <= before.tasks;
            is_no_more.then_some(())
        };
        let settling = timeout(2 * SOON, eventually(3 * SOON, "an end of all", settled)).await;
        assert!(settling.is_ok(), "before: {before:#?}\nnow: {now:#?}");
    }

    /// Every runtime has a client once more, and answers.
    async fn assert_all_well(&mut self) {
        for runtime in RUNTIMES {
            let label = format!("demo-{runtime}");
            let options = self.system.client_options(&label);
            // The last token may be newer than what the server has read.
            let patient = ["--on-refusal", "retry", "--refusal-wait", "100ms"];
            options.flags.extend(patient.map(str::to_owned));
            let client = InsideClient::start(options);
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

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_number_of_random_steps_nothing_is_left_behind() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let drawn = u64::from(now.subsec_nanos()) ^ now.as_secs();
    let seed = number("E2E_LIFE_SEED").unwrap_or(drawn);
    let steps = number("E2E_LIFE_STEPS").map_or(STEPS, |steps| usize::try_from(steps).unwrap());
    eprintln!("{steps} steps, E2E_LIFE_SEED={seed}");

    let upstream = Upstream::start().await;
    let mut life = Life::start(&upstream, seed).await;
    // Once through everything, so that what is made at first use is there before it is counted.
    for runtime in RUNTIMES {
        for step in LOTS.iter().chain(&RARE) {
            life.take(*step, runtime).await;
        }
    }
    life.end_all().await;
    let before = life.holdings_at_rest().await;

    for _ in 0..steps {
        life.step().await;
    }
    eprintln!("steps taken: {:?}", life.taken);
    assert!(life.operated > 0, "the operator was never heard");
    life.end_all().await;
    life.assert_holds_no_more_than(&before).await;

    // And the server is as good as new.
    life.assert_all_well().await;
    life.end_all().await;
    life.assert_holds_no_more_than(&before).await;
    let mut last = RawClient::connect(&life.system.entry()).await;
    last.finish().await;
    assert_eq!(last.wait_end(Duration::from_secs(5)).await, End::Clean);
}
