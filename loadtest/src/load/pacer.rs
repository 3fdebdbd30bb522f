//! When requests are due in open loop, and waking up on time.
//!
//! The runtime's own timers tick in milliseconds, which would add up to one to every latency; so
//! each load thread has one timer of the kernel, set to whichever request is due first.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::poll_fn,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::Instant,
};

use crate::measure::{Recorder, Window, errors::FailureKind};

/// A request that goes out this much later than planned was delayed by this machine.
const LATE: Duration = Duration::from_millis(1);

/// Wakes the workers of one thread when their requests are due.
pub(super) struct Pacer {
    timer: AsyncFd<OwnedFd>,
    waiting: RefCell<BTreeMap<(Instant, u64), Waker>>,
    tickets: Cell<u64>,
}

impl Pacer {
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an owned descriptor stays what it is until dropped"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            timer: AsyncFd::with_interest(timer, Interest::READABLE)?,
            waiting: RefCell::new(BTreeMap::new()),
            tickets: Cell::new(0),
        })
    }

    /// Wakes the workers that are due, for ever. Returns only an error.
    pub(super) async fn run(&self) -> io::Error {
        loop {
            match self.timer.readable().await {
                // Setting the timer anew clears it, so it need not be read.
                Ok(mut ready) => ready.clear_ready(),
                Err(error) => return error,
            }
            self.wake_due();
        }
    }

    fn wake_due(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let now = Instant::now();
        while let Some(first) = waiting.first_entry() {
            let (due, _) = *first.key();
            if due > now {
                self.set(due - now);
                return;
            }
            first.remove().wake();
        }
    }

    /// Waits until `due`.
    async fn until(&self, due: Instant) {
        let mut ticket = None;
        poll_fn(|context| {
            let now = Instant::now();
            if due <= now {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            let ticket = *ticket.get_or_insert_with(|| {
                let ticket = self.tickets.get();
                self.tickets.set(ticket + 1);
                ticket
            });
            let key = (due, ticket);
            waiting.insert(key, context.waker().clone());
            if waiting
                .first_key_value()
                .is_some_and(|(first, _)| *first == key)
            {
                self.set(due - now);
            }
            Poll::Pending
        })
        .await;
    }

    fn set(&self, wait: Duration) {
        let value = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            // Zero would switch the timer off.
            tv_nsec: i64::from(wait.subsec_nanos()).max(1),
        };
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        // It fails only for values out of range, and these are in it.
        drop(timerfd_settime(
            self.timer.get_ref(),
            TimerfdTimerFlags::empty(),
            &once,
        ));
    }
}

/// When the requests of one group are due on one thread: evenly spaced, from the window's start.
#[derive(Clone)]
pub struct Schedule {
    pacer: Rc<Pacer>,
    next: Rc<Cell<u64>>,
    rate: f64,
    first: u64,
    step: u64,
}

impl Schedule {
    /// For thread `number` of `threads`, which together do `rate` requests a second.
    pub(super) fn new(pacer: Rc<Pacer>, rate: f64, number: usize, threads: usize) -> Self {
        Self {
            pacer,
            next: Rc::new(Cell::new(0)),
            rate,
            first: number as u64,
            step: threads as u64,
        }
    }

    /// Takes the next request that no worker has taken, and waits until it is due. Returns the instant
    /// at which it was due, from which its latency counts. None when the window is over: what was
    /// due by then but not taken is counted as not sent.
    pub async fn next(&self, window: &Window, recorder: &Recorder) -> Option<Instant> {
        let due = self.take(window, recorder)?;
        self.wait(due, recorder).await;
        Some(due)
    }

    /// Takes the next request as [`Self::next`] does, without waiting until it is due.
    pub fn take(&self, window: &Window, recorder: &Recorder) -> Option<Instant> {
        let due = self.due(window, self.next.get());
        if due >= window.end {
            return None;
        }
        if window.is_over() {
            self.give_up(window, recorder);
            return None;
        }
        self.next.set(self.next.get() + 1);
        Some(due)
    }

    /// Waits until a request is due. If this thread wakes up too late, that is recorded.
    pub async fn wait(&self, due: Instant, recorder: &Recorder) {
        if Instant::now() < due {
            self.pacer.until(due).await;
            if due.elapsed() > LATE {
                recorder.late(due);
            }
        }
    }

    fn give_up(&self, window: &Window, recorder: &Recorder) {
        loop {
            let due = self.due(window, self.next.get());
            if due >= window.end {
                return;
            }
            recorder.failed(due, FailureKind::NotSent);
            self.next.set(self.next.get() + 1);
        }
    }

    fn due(&self, window: &Window, turn: u64) -> Instant {
        let number = self.first + turn * self.step;
        window.start + Duration::from_secs_f64(number as f64 / self.rate)
    }
}
