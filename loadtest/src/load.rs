//! Runs workers on threads of their own and measures what they do.
//!
//! A [`Load`] has groups of workers. A worker is a task that first makes its connection, then says
//! that it is [`Worker::ready`] and gets the [`Window`], and then works until the window is over.
//! The measured stretch begins when all are ready and the warm-up has passed. The threads do
//! nothing but load; usage, progress and merging are the control thread's.
//!
//! The module `requests` has the two usual ways to work: the next request when the last has ended,
//! or when it is due.

mod pacer;
mod requests;
mod thread;

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, sleep_until},
};

use crate::{
    measure::{
        self, Collector, Recorder, Window,
        errors::Failure,
        usage::{Meter, Roles},
    },
    progress::Progress,
    report::{Note, NoteLevel, Report, Run, Usage, tables::cpu_us_per_request},
};

pub use crate::load::pacer::Schedule;
pub use crate::load::thread::ThreadUse;

/// A window that no worker reaches the end of.
const NO_END: Duration = Duration::from_secs(7 * 24 * 3600);

/// How many interval reports of threads may wait for the control thread.
const REPORTS: usize = 64;

/// Flags that say how long and how much, for all scenarios that send requests.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// How long to run before measuring begins
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub warm_up: Duration,
    /// Longest time for one request, and for making a connection
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Threads that make the load; each is a core that the target does not get
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
}

/// The repeated request to a target: how to connect, and one request and its response.
pub trait Client: Send + Sync + 'static {
    /// A connection; it stays on its thread.
    type Connection: 'static;

    /// Makes a connection for the worker with this number.
    fn connect(&self, worker: usize) -> impl Future<Output = Result<Self::Connection, Failure>>;

    /// Does one request and takes the whole answer.
    fn exchange(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<BodyBytes, Failure>>;

    /// Whether the connection may carry the next request; else it is made anew, as part of that.
    /// A peer may close what rests, and that is no failure.
    fn is_open(connection: &mut Self::Connection) -> bool {
        let _ = connection;
        true
    }
}

/// Body bytes of one request and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyBytes {
    /// Sent.
    pub up: u64,
    /// Received.
    pub down: u64,
}

/// One worker of a group, on its thread.
pub struct Worker {
    /// Its number within the group, from zero.
    pub index: usize,
    /// Longest time for one request.
    pub timeout: Duration,
    /// Where it records.
    pub recorder: Recorder,
    schedule: Option<Schedule>,
    window: watch::Receiver<Option<Window>>,
    ready: Option<mpsc::Sender<()>>,
}

impl Worker {
    /// Says that this worker could start, and waits until all can. Returns the window; the warm-up
    /// begins with it. A worker without a connection calls this too, and tries again afterwards.
    pub async fn ready(&mut self) -> Window {
        // Dropping the sender is the message: control waits until all are gone.
        self.ready = None;
        let window = match self.window.wait_for(Option::is_some).await {
            Ok(window) => *window,
            Err(_) => None,
        };
        // Without a window the run was abandoned, and nothing counts.
        let window = window.unwrap_or_else(|| Window::from_now(Duration::ZERO, Duration::ZERO));
        self.recorder.open(window);
        window
    }

    /// When requests are due, in a group with a rate.
    pub fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Workers that run one kind of work and are recorded together.
pub(crate) struct Group {
    name: String,
    workers: usize,
    rate: Option<f64>,
    work: Box<dyn Fn(Worker) -> Task + Send + Sync>,
}

/// What to run: groups of workers, for how long, on how many threads.
pub struct Load {
    args: LoadArgs,
    interval: Duration,
    groups: Vec<Group>,
    opening: watch::Sender<Option<Window>>,
}

impl Load {
    /// Without groups yet.
    pub fn new(args: LoadArgs) -> Self {
        Self {
            args,
            interval: measure::interval(args.duration),
            groups: Vec::new(),
            opening: watch::Sender::new(None),
        }
    }

    /// Without groups yet, for workers that end by themselves. The intervals of the timeline are those
    /// of a load of the usual duration.
    pub fn until_done(args: LoadArgs) -> Self {
        Self {
            interval: measure::interval(args.duration),
            ..Self::new(LoadArgs {
                warm_up: Duration::ZERO,
                duration: NO_END,
                ..args
            })
        }
    }

    /// Holds the window once the load runs.
    pub fn opened(&self) -> watch::Receiver<Option<Window>> {
        self.opening.subscribe()
    }

    /// Adds workers that each run `work` with what they share. With a rate the loop is open: so many requests a second are due over all workers,
    /// and each has a [`Worker::schedule`].
    pub fn group<T: Send + Sync + 'static, F: Future<Output = ()> + 'static>(
        &mut self,
        name: impl Into<String>,
        workers: usize,
        rate: Option<f64>,
        shared: Arc<T>,
        work: impl Fn(Arc<T>, Worker) -> F + Send + Sync + 'static,
    ) {
        self.groups.push(Group {
            name: name.into(),
            workers,
            rate,
            work: Box::new(move |worker| Box::pin(work(shared.clone(), worker))),
        });
    }

    /// Adds workers that send requests of `client`, each over a connection of its own: the next one when the last has
    /// ended, or, with a rate, when it is due.
    pub fn requests<C: Client>(
        &mut self,
        name: impl Into<String>,
        connections: usize,
        rate: Option<f64>,
        client: Arc<C>,
    ) {
        self.group(name, connections, rate, client, requests::work);
    }

    /// Runs all groups at once, until the window is over and the last answer has come. Dropping
    /// the future ends the threads.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends before it should.
    pub async fn run(self, progress: &Progress, roles: &Roles) -> anyhow::Result<Outcome> {
        let LoadArgs {
            warm_up,
            duration,
            timeout,
            threads,
        } = self.args;
        let interval = self.interval;
        let workers = self.groups.iter().map(|group| group.workers).sum();
        // A thread without workers would only be waited for.
        let most = self.groups.iter().map(|group| group.workers).max();
        let threads = most.unwrap_or(1).clamp(1, threads.into());
        let collector = |group: &Group| Collector::new(group.name.clone(), interval, threads);
        let mut collectors: Vec<_> = self.groups.iter().map(collector).collect();

        let (reports, mut received) = mpsc::channel(REPORTS);
        let window = self.opening.subscribe();
        let (ready, mut all_ready) = mpsc::channel::<()>(1);
        let groups = Arc::new(self.groups);
        let start = thread::ThreadStart {
            groups,
            threads,
            interval,
            timeout,
            window,
            ready,
            reports,
        };
        let threads = thread::Threads::start(start)?;

        progress.message("connecting");
        let all = tokio::time::timeout(timeout, all_ready.recv()).await;
        // A worker that is ready drops its sender.
        let missing = all.map_or_else(|_| all_ready.sender_strong_count(), |_| 0);
        // Without a warm-up the first request must not be ahead of the meter.
        let mut meter = warm_up.is_zero().then(|| Meter::start(roles.clone()));
        let window = Window::from_now(warm_up, duration);
        self.opening.send_replace(Some(window));

        let mut usage = None;
        let begin = sleep_until(window.begin);
        let end = sleep_until(window.end);
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(begin, end);
        loop {
            tokio::select! {
                biased;
                () = &mut begin, if meter.is_none() && usage.is_none() => {
                    meter = Some(Meter::start(roles.clone()));
                }
                () = &mut end, if meter.is_some() => usage = meter.take().map(Meter::finish),
                _ = tick.tick() => {
                    meter.iter_mut().for_each(Meter::sample);
                    progress.update(&collectors, &window);
                }
                report = received.recv() => match report {
                    Some(report) => collect(&mut collectors, report),
                    None => break,
                },
            }
        }
        // Threads may see the window's end first, or have had no more to do before it.
        let seconds = measured_for(&window);
        let usage = usage.or_else(|| meter.map(Meter::finish));
        let threads = threads.join()?;
        let groups = collectors.into_iter();
        let groups = groups.map(|collector| collector.finish(seconds));
        let usage = usage.unwrap_or_default();
        Ok(Outcome::new(groups, usage, threads, (workers, missing)))
    }
}

/// How much of the window has passed, seconds. Never zero, as rates are divided by it.
fn measured_for(window: &Window) -> f64 {
    let end = window.end.min(Instant::now());
    let measured = end.saturating_duration_since(window.begin);
    measured.as_secs_f64().max(1e-3)
}

fn collect(collectors: &mut [Collector], report: thread::IntervalReport) {
    if let Some(collector) = collectors.get_mut(report.group) {
        collector.add(report.interval, &report.slice);
    }
}

/// A load thread that ran for this share of the time was busy: what is left goes to the kernel's
/// switches between threads.
pub const BUSY: f64 = 0.95;

/// A load thread that waited for a processor for this share of the time sent late.
const WAITED: f64 = 0.25;

/// Everything that one load measured.
#[derive(Debug)]
pub struct Outcome {
    /// One for each group, in the order in which they were added. What programs used is in each of them, since it
    /// is known for all groups together.
    pub runs: Vec<Run>,
    /// What to know about the figures.
    pub notes: Vec<Note>,
    /// One for each load thread.
    pub threads: Vec<ThreadUse>,
}

impl Outcome {
    /// Of these groups. Of all `workers`, `missing` were not ready when the warm-up began.
    fn new(
        groups: impl IntoIterator<Item = (Run, Vec<Note>)>,
        usage: BTreeMap<String, Usage>,
        threads: Vec<ThreadUse>,
        (workers, missing): (usize, usize),
    ) -> Self {
        let (mut runs, of_groups): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let names: Vec<_> = runs.iter().map(|run: &Run| run.name.as_str()).collect();
        let names = names.join(", ");
        let is_bound = !threads.is_empty() && threads.iter().all(|thread| thread.ran >= BUSY);
        let mut notes = Vec::from_iter(note_on_threads(&names, is_bound, &threads));
        if missing > 0 {
            let there = workers.saturating_sub(missing);
            notes.push(Note::warning(format!(
                "{names}: only {there} of {workers} connections were there when the warm-up \
                 began; the others came later or never"
            )));
        }
        let gone = usage.iter().filter(|(_, usage)| usage.processes == 0);
        let gone = gone.map(|(role, _)| Note::warning(format!("{role}: its processes have ended")));
        notes.extend(gone);
        notes.extend(of_groups.into_iter().flatten());
        let completed = runs.iter().map(|run| run.completed).sum();
        for run in &mut runs {
            run.usage.clone_from(&usage);
            run.cpu_us_per_request = cpu_us_per_request(&usage, completed);
            run.generator_bound = is_bound;
        }
        Self {
            runs,
            notes,
            threads,
        }
    }

    /// The first group.
    pub fn into_run(self) -> (Run, Vec<Note>) {
        let run = self.runs.into_iter().next();
        (run.unwrap_or_default(), self.notes)
    }
}

/// What a note says whose load generator had to wait for a processor.
pub(crate) const ALL_BUSY: &str = "all processors were busy";

/// Whether the threads had time left, and processors to run on.
fn note_on_threads(names: &str, is_bound: bool, threads: &[ThreadUse]) -> Option<Note> {
    let share = |of: fn(&ThreadUse) -> f64| {
        let sum: f64 = threads.iter().map(of).sum();
        sum / threads.len().max(1) as f64 * 100.0
    };
    let (ran, waited) = (share(|thread| thread.ran), share(|thread| thread.waited));
    if is_bound {
        return Some(Note::warning(format!(
            "{names}: the load generator was the limit (its threads ran {ran:.0} % of the time): the \
             target may be faster than this; give it more --threads on a machine with more cores, \
             or less load"
        )));
    }
    (waited >= WAITED * 100.0).then(|| Note {
        level: NoteLevel::Info,
        text: format!(
            "{names}: {ALL_BUSY}: the load generator ran {ran:.0} % of the time and \
             waited {waited:.0} % for a processor, which is part of the latencies"
        ),
    })
}

impl Report {
    /// Adds a run for each group of a load, and what to know about them.
    pub fn add(&mut self, outcome: Outcome) {
        self.runs.extend(outcome.runs);
        self.notes.extend(outcome.notes);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{task::yield_now, time::sleep};

    use super::*;
    use crate::report::Note;

    fn load(timeout: u64) -> Load {
        Load::new(LoadArgs {
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(300),
            timeout: Duration::from_millis(timeout),
            threads: 1,
        })
    }

    #[tokio::test]
    async fn what_threads_used_is_known_when_all_workers_end_first() {
        let mut load = load(1_000);
        load.group(
            "busy",
            1,
            None,
            Arc::new(()),
            |_, mut worker: Worker| async move {
                let window = worker.ready().await;
                while Instant::now() + Duration::from_millis(50) < window.end {
                    yield_now().await;
                }
            },
        );
        let outcome = load.run(&Progress::none(), &Roles::generator()).await;
        let outcome = outcome.unwrap();
        let [used] = outcome.threads[..] else {
            panic!("{outcome:?}")
        };
        assert!(used.ran > 0.0 && used.ran < 1.1, "{used:?}");
    }

    #[tokio::test]
    async fn workers_that_are_not_ready_in_time_are_reported() {
        let mut load = load(100);
        load.group(
            "late",
            3,
            None,
            Arc::new(()),
            |_, mut worker: Worker| async move {
                if worker.index == 2 {
                    sleep(Duration::from_millis(350)).await;
                }
                worker.ready().await;
            },
        );
        let outcome = load.run(&Progress::none(), &Roles::generator()).await;
        let outcome = outcome.unwrap();
        let is_it = |note: &Note| note.text.contains("late: only 2 of 3 connections");
        assert!(outcome.notes.iter().any(is_it), "{outcome:?}");
    }
}
