//! The threads that make the load: each runs its share of every group's workers, and nothing else.

use std::{io, ops::Range, rc::Rc, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, anyhow};
use tokio::{
    runtime::{Builder, LocalOptions, LocalRuntime},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    load::{Group, Schedule, Worker, pacer::Pacer},
    measure::{Recorder, Slice, Window, usage::own_thread},
};

/// How much longer than the time limit of a request workers may take to see that it has passed.
const LATE: Duration = Duration::from_secs(1);

/// What every thread is started with.
#[derive(Clone)]
pub(super) struct ThreadStart {
    pub(super) groups: Arc<Vec<Group>>,
    pub(super) threads: usize,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) window: watch::Receiver<Option<Window>>,
    pub(super) ready: mpsc::Sender<()>,
    pub(super) reports: mpsc::Sender<IntervalReport>,
}

/// What one thread recorded for one group in one interval.
pub(super) struct IntervalReport {
    pub(super) group: usize,
    pub(super) interval: usize,
    pub(super) slice: Slice,
}

/// What a thread used within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadUse {
    /// Share of the window in which it ran.
    pub ran: f64,
    /// Share of the window in which it could have run but waited for a processor.
    pub waited: f64,
}

/// The running threads; they end when this is dropped.
pub(super) struct Threads {
    stop: Option<watch::Sender<()>>,
    running: Vec<thread::JoinHandle<io::Result<ThreadUse>>>,
}

impl Threads {
    pub(super) fn start(start: ThreadStart) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(());
        let mut threads = Self {
            stop: Some(stop),
            running: Vec::new(),
        };
        for number in 0..start.threads {
            let start = start.clone();
            let stopped = stopped.clone();
            let thread = thread::Builder::new()
                .name(format!("load-{number}"))
                .spawn(move || run(number, start, stopped))
                .context("cannot start a thread for the load")?;
            threads.running.push(thread);
        }
        Ok(threads)
    }

    /// Lets all end, and waits for them. Their workers have ended when they report no more.
    pub(super) fn join(mut self) -> anyhow::Result<Vec<ThreadUse>> {
        self.stop = None;
        let running = std::mem::take(&mut self.running);
        let ends = running.into_iter().map(|thread| {
            let end = thread.join();
            let end = end.map_err(|_| anyhow!("a thread that makes the load has panicked"))?;
            end.context("a thread that makes the load has failed")
        });
        ends.collect()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop = None;
        for thread in self.running.drain(..) {
            drop(thread.join());
        }
    }
}

fn run(
    number: usize,
    start: ThreadStart,
    mut stopped: watch::Receiver<()>,
) -> io::Result<ThreadUse> {
    let runtime: LocalRuntime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    runtime.block_on(async move {
        // The sender is never used, only dropped.
        let used = tokio::select! {
            used = work(number, start) => used,
            _ = stopped.changed() => return Ok(ThreadUse::default()),
        };
        // What a thread has used goes with it, so it stays until the control thread has read that.
        drop(stopped.changed().await);
        used
    })
}

async fn work(number: usize, start: ThreadStart) -> io::Result<ThreadUse> {
    let pacer = Rc::new(Pacer::new()?);
    let mut workers = JoinSet::new();
    let mut recorders = Vec::new();
    for group in start.groups.iter() {
        let recorder = Recorder::default();
        let schedule = |rate| Schedule::new(pacer.clone(), rate, number, start.threads);
        let schedule = group.rate.map(schedule);
        for index in share(group.workers, number, start.threads) {
            let worker = Worker {
                index,
                timeout: start.timeout,
                recorder: recorder.clone(),
                schedule: schedule.clone(),
                window: start.window.clone(),
                ready: Some(start.ready.clone()),
            };
            workers.spawn_local((group.work)(worker));
        }
        recorders.push(recorder);
    }
    let mut reporter = Reporter {
        recorders,
        reports: start.reports,
        interval: start.interval,
        timeout: start.timeout,
        reported: 0,
        before: None,
        used: None,
    };
    drop(start.ready);
    let end = tokio::select! {
        end = all(&mut workers) => end,
        error = pacer.run() => Err(error),
        () = reporter.run(start.window) => Ok(()),
    };
    reporter.report().await;
    // Workers may all have ended before the window was seen to.
    end.map(|()| reporter.used.unwrap_or_else(|| reporter.use_so_far()))
}

/// The workers of one thread: neighbours, since they may share connections.
fn share(workers: usize, number: usize, threads: usize) -> Range<usize> {
    workers * number / threads..workers * (number + 1) / threads
}

/// Waits until all workers have ended.
async fn all(workers: &mut JoinSet<()>) -> io::Result<()> {
    while let Some(end) = workers.join_next().await {
        end.map_err(|error| io::Error::other(format!("a worker has ended early: {error}")))?;
    }
    Ok(())
}

/// Hands over what was recorded at the end of each interval, and measures the thread itself.
struct Reporter {
    recorders: Vec<Recorder>,
    reports: mpsc::Sender<IntervalReport>,
    interval: Duration,
    timeout: Duration,
    /// Intervals that were reported.
    reported: usize,
    /// The window's begin, and what this thread had used by then.
    before: Option<(Instant, (Duration, Duration))>,
    /// Within the window; none before its end.
    used: Option<ThreadUse>,
}

impl Reporter {
    /// Ends when the last answer is overdue; what is still open then is a stream without end.
    async fn run(&mut self, mut window: watch::Receiver<Option<Window>>) {
        let Ok(Some(window)) = window.wait_for(Option::is_some).await.map(|window| *window) else {
            return;
        };
        sleep_until(window.begin).await;
        self.before = Some((Instant::now(), own_thread()));
        let mut due = window.begin + self.interval;
        while due < window.end {
            sleep_until(due).await;
            self.report().await;
            due += self.interval;
        }
        sleep_until(window.end).await;
        self.used = Some(self.use_so_far());
        self.report().await;
        sleep_until(window.end + self.timeout + LATE).await;
    }

    /// From the window's begin to now; nothing before it.
    fn use_so_far(&self) -> ThreadUse {
        let Some((begun, before)) = self.before else {
            return ThreadUse::default();
        };
        let now = own_thread();
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        ThreadUse {
            ran: now.0.saturating_sub(before.0).as_secs_f64() / seconds,
            waited: now.1.saturating_sub(before.1).as_secs_f64() / seconds,
        }
    }

    async fn report(&mut self) {
        for (group, recorder) in self.recorders.iter().enumerate() {
            let report = IntervalReport {
                group,
                interval: self.reported,
                slice: recorder.take(),
            };
            // The receiver is gone when the run was abandoned.
            drop(self.reports.send(report).await);
        }
        self.reported += 1;
    }
}
