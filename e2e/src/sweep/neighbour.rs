//! Somebody beside the hostile peer: small requests at a steady rate, and one download that lasts as long as the cell.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use crate::{entry::Entry, http1::End, raw::RawClient};

/// The longest that a neighbour waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What neighbours are to do and have seen.
#[derive(Default)]
pub struct Watch {
    /// Whether the hostile peer is there.
    pub is_hostile: AtomicBool,
    is_over: AtomicBool,
    seen: Mutex<Seen>,
}

/// What neighbours saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The times of small requests without the hostile peer, and with it.
    pub quiet: Vec<Duration>,
    /// As `quiet`, with it.
    pub hostile: Vec<Duration>,
    /// What failed.
    pub errors: Vec<String>,
}

/// Running neighbours, on a thread of their own: what the hostile peers cost this program is not what they measure.
pub struct Neighbours {
    watch: Arc<Watch>,
    thread: Option<thread::JoinHandle<()>>,
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
    /// Starts one at each of these entries, with the first part of its paths, that sends so many requests a second.
    ///
    /// # Panics
    /// When there is no thread for them.
    pub fn start(at: Vec<(&'static str, Entry, &'static str)>, per_second: u32) -> Self {
        let watch = Arc::<Watch>::default();
        let shared = Arc::clone(&watch);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async move {
                let mut tasks = JoinSet::new();
                for (name, entry, path) in at {
                    tasks.spawn(ask(
                        name,
                        entry.clone(),
                        path,
                        per_second,
                        Arc::clone(&shared),
                    ));
                    tasks.spawn(download(name, entry, path, Arc::clone(&shared)));
                }
                tasks.join_all().await;
            });
        };
        let thread = thread::Builder::new()
            .name("neighbours".to_owned())
            .spawn(run)
            .unwrap();
        Self {
            watch,
            thread: Some(thread),
        }
    }

    /// Says whether the hostile peer is there.
    pub fn set_hostile(&self, is_hostile: bool) {
        self.watch.is_hostile.store(is_hostile, Ordering::Relaxed);
    }

    /// Ends them; the downloads have to be ended by then, or are soon.
    pub async fn finish(mut self) -> Seen {
        self.watch.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        let joined = tokio::task::spawn_blocking(move || thread.map(thread::JoinHandle::join));
        if let Ok(Some(Err(_))) | Err(_) = joined.await {
            self.watch.fail("neighbours", "they panicked");
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
        let is_hostile = watch.is_hostile.load(Ordering::Relaxed);
        let answered = timeout(PATIENCE, small(&mut client, &entry, path)).await;
        match answered {
            Ok(Ok(())) => {
                let mut seen = watch.seen.lock();
                let times = if is_hostile {
                    &mut seen.hostile
                } else {
                    &mut seen.quiet
                };
                times.push(due.elapsed());
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
