//! Somebody beside the hostile peer: small requests at a steady rate, and one download that lasts as long as the cell.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use crate::{entry::Entry, http1::End, raw::RawClient};

/// The longest that a neighbour waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the hostile peers do meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    #[default]
    Quiet,
    /// As much as they can. Times are not kept: programs, hostile peers and neighbours share few processors.
    Flood,
    /// As much as a line carries.
    Beside,
}

/// What neighbours are to do and have seen.
#[derive(Default)]
struct Watch {
    /// Since when which one is.
    phase: Mutex<(Phase, Option<Instant>)>,
    is_over: AtomicBool,
    seen: Mutex<Seen>,
}

/// What neighbours saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The times of small requests without hostile peers.
    pub quiet: Vec<Duration>,
    /// The times of those beside hostile peers.
    pub beside: Vec<Duration>,
    /// What failed.
    pub errors: Vec<String>,
}

/// Running neighbours.
pub struct Neighbours {
    watch: Arc<Watch>,
    tasks: JoinSet<()>,
}

/// The time that 99 of a hundred stay below.
pub fn p99(times: &[Duration]) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort();
    times
        .get((times.len() * 99 / 100).min(times.len().saturating_sub(1)))
        .copied()
}

impl Neighbours {
    /// Starts one at each of these entries, with the first part of its paths, that sends so many requests a second. They run
    /// on the runtime `honest`: what the hostile peers cost this program is not what they measure.
    pub fn start(
        at: Vec<(&'static str, Entry, &'static str)>,
        per_second: u32,
        honest: &Handle,
    ) -> Self {
        let watch = Arc::<Watch>::default();
        let mut tasks = JoinSet::new();
        for (name, entry, path) in at {
            let shared = Arc::clone(&watch);
            tasks.spawn_on(ask(name, entry.clone(), path, per_second, shared), honest);
            let shared = Arc::clone(&watch);
            tasks.spawn_on(download(name, entry, path, shared), honest);
        }
        Self { watch, tasks }
    }

    /// Says what the hostile peers do from now on.
    pub fn set(&self, phase: Phase) {
        *self.watch.phase.lock() = (phase, Some(Instant::now()));
    }

    /// What failed since the last call.
    pub fn take_errors(&self) -> Vec<String> {
        std::mem::take(&mut self.watch.seen.lock().errors)
    }

    /// Ends them; the downloads have to be ended by then, or are soon.
    pub async fn finish(mut self) -> Seen {
        self.watch.is_over.store(true, Ordering::Relaxed);
        while let Some(joined) = self.tasks.join_next().await {
            if let Err(panic) = joined {
                self.watch.fail("neighbours", &panic.to_string());
            }
        }
        self.watch.seen.lock().clone()
    }
}

impl Watch {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn fail(&self, name: &str, error: &str) {
        self.seen.lock().errors.push(format!("{name}: {error}"));
    }
}

async fn ask(name: &str, entry: Entry, path: &str, per_second: u32, watch: Arc<Watch>) {
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    // What comes too late is sent too late, and its time counts from when it should have been.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut client = None;
    while !watch.is_over() {
        let due = ticks.tick().await;
        // What was due in an earlier phase belongs to none.
        let (phase, since) = *watch.phase.lock();
        let is_late = since.is_some_and(|since| due < since);
        let answered = timeout(PATIENCE, small(&mut client, &entry, path)).await;
        match answered {
            Ok(Ok(())) => {
                let mut seen = watch.seen.lock();
                match phase {
                    _ if is_late => {}
                    Phase::Quiet => seen.quiet.push(due.elapsed()),
                    Phase::Flood => {}
                    Phase::Beside => seen.beside.push(due.elapsed()),
                }
            }
            Ok(Err(error)) => {
                watch.fail(name, &error);
                client = None;
            }
            Err(_) => {
                watch.fail(name, "no answer");
                client = None;
            }
        }
    }
}

async fn small(client: &mut Option<RawClient>, entry: &Entry, path: &str) -> Result<(), String> {
    let client = match client {
        Some(client) => client,
        None => client.insert(RawClient::connect(entry).await),
    };
    client.request("POST", &format!("{path}/n"), "", b"n").await;
    let head = client
        .head()
        .await
        .map_err(|end| format!("no head: {end:?}"))?;
    let content = client.content(head.response_framing("POST")).await;
    if head.status() != 200 || content.bytes != "ok" || content.end != End::Clean {
        let text = String::from_utf8_lossy(&content.bytes).into_owned();
        return Err(format!("{} {text} {:?}", head.status(), content.end));
    }
    Ok(())
}

async fn download(name: &str, entry: Entry, path: &str, watch: Arc<Watch>) {
    let whole = async {
        let mut client = RawClient::connect(&entry).await;
        client.request("POST", &format!("{path}/d"), "", b"d").await;
        let head = client.head().await.map_err(|end| format!("{end:?}"))?;
        if head.status() != 200 {
            return Err(format!("{}", head.status()));
        }
        read_chunks(&mut client).await
    };
    let ended = async {
        while !watch.is_over() {
            sleep_until(Instant::now() + Duration::from_millis(100)).await;
        }
        sleep_until(Instant::now() + PATIENCE).await;
    };
    let failure = tokio::select! {
        result = whole => result.err(),
        () = ended => Some("has no end".to_owned()),
    };
    if let Some(failure) = failure {
        watch.fail(name, &format!("download: {failure}"));
    }
}

/// Reads chunks up to the last one. None of them may be long in coming.
async fn read_chunks(client: &mut RawClient) -> Result<(), String> {
    loop {
        let chunk = async {
            let size = client.line().await.map_err(|end| format!("{end:?}"))?;
            let size = usize::from_str_radix(&size, 16).map_err(|_| size)?;
            let bytes = client.try_bytes(size + 2).await;
            bytes.map_err(|end| format!("{end:?}"))?;
            Ok(size == 0)
        };
        match timeout(PATIENCE, chunk).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err("stands still".to_owned()),
        }
    }
}
