//! Open loop over a WebSocket: messages are due at even intervals and do not wait for one another.
//!
//! A message's latency counts from when it was due, so a target that stalls shows in all messages
//! that it delayed. What was due when there was no connection is sent late, over the next one.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::socket::{Maker, Receiver, Sender, Socket};
use crate::{
    load::Worker,
    measure::{
        Recorder, Window,
        errors::{Failure, Kind},
    },
    scenario::connection::PAUSE,
};

/// The runtime's timers tick in milliseconds. To be late by less is this program's doing and not
/// the target's, so it is not counted.
const TICK: Duration = Duration::from_millis(1);

/// When messages are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beat {
    every: f64,
    workers: usize,
}

impl Beat {
    /// So many a second on each of so many connections.
    pub(super) fn new(rate: f64, workers: usize) -> Self {
        Self {
            every: 1.0 / rate,
            workers,
        }
    }

    /// When a worker's message with this number is due.
    fn due(&self, window: &Window, worker: usize, number: u64) -> Instant {
        let offset = worker as f64 / self.workers.max(1) as f64;
        window.start + Duration::from_secs_f64((number as f64 + offset) * self.every)
    }
}

/// One connection, until the window is over and the last message has come back.
pub(super) async fn work(maker: Arc<Maker>, beat: Beat, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again within the window, and is counted there.
    let mut socket = connect(&maker, limit).await.ok();
    let window = worker.ready().await;
    let paced = PacedSocket {
        beat,
        window,
        worker: worker.index,
        recorder: worker.recorder.clone(),
        size: maker.size as u64,
        limit,
        next: Cell::new(0),
        open: RefCell::default(),
    };
    while paced.due() < window.end {
        if window.is_over() {
            paced.give_up();
            break;
        }
        let ready = match socket.take() {
            Some(socket) => Ok(socket),
            None => connect(&maker, limit).await,
        };
        match ready {
            Ok(socket) => match paced.exchange(socket).await {
                Ok(()) => break,
                Err(failure) => paced.fail_open(failure.kind),
            },
            Err(failure) => {
                // Nothing was sent over it, so this is the failure of what is due now.
                let due = paced.due().min(Instant::now());
                worker.recorder.failed(due, failure.kind);
                paced.skip_due();
            }
        }
        sleep(PAUSE).await;
    }
    // The stretch is as long as it was planned, not until the last that was due is answered.
    sleep_until(window.end).await;
}

async fn connect(maker: &Maker, limit: Duration) -> Result<Socket, Failure> {
    let made = timeout(limit, maker.connect()).await;
    made.unwrap_or_else(|_| Err(Failure::fatal(Kind::ConnectTimeout)))
}

/// What is due, and what is on its way.
struct PacedSocket {
    beat: Beat,
    window: Window,
    worker: usize,
    recorder: Recorder,
    size: u64,
    limit: Duration,
    next: Cell<u64>,
    /// Since when the messages count that have not come back yet, in order.
    open: RefCell<VecDeque<Instant>>,
}

impl PacedSocket {
    fn due(&self) -> Instant {
        self.beat.due(&self.window, self.worker, self.next.get())
    }

    /// Uses a connection until all was sent and has come back, or it breaks.
    async fn exchange(&self, socket: Socket) -> Result<(), Failure> {
        let Socket {
            mut sender,
            mut receiver,
        } = socket;
        let sent = Cell::new(false);
        let receive = self.receive(&mut receiver, &sent);
        let send = async {
            self.send(&mut sender).await?;
            sent.set(true);
            // What is on its way has the usual time limit; then it is the receiver's failure.
            let last = self.open.borrow().back().copied();
            match last {
                Some(last) => sleep_until(last.max(self.window.end) + self.limit).await,
                None => return Ok(()),
            }
            Err(Failure::fatal(Kind::Timeout))
        };
        tokio::select! {
            biased;
            received = receive => received,
            sent = send => sent,
        }
    }

    async fn send(&self, sender: &mut Sender) -> Result<(), Failure> {
        loop {
            let due = self.due();
            if due >= self.window.end || self.window.is_over() {
                self.give_up();
                return Ok(());
            }
            let counts = self.wait(due).await;
            self.next.set(self.next.get() + 1);
            self.open.borrow_mut().push_back(counts);
            let sent = timeout(self.limit, sender.send()).await;
            sent.unwrap_or_else(|_| Err(Failure::fatal(Kind::Timeout)))?;
        }
    }

    /// Waits until `due`, and gives the instant from which the message's latency counts.
    async fn wait(&self, due: Instant) -> Instant {
        if Instant::now() >= due {
            return due;
        }
        sleep_until(due).await;
        let now = Instant::now();
        if now > due + 2 * TICK {
            // That is no timer's doing: this program had no processor.
            self.recorder.late(due);
        }
        now.min(due + TICK)
    }

    async fn receive(&self, receiver: &mut Receiver, sent: &Cell<bool>) -> Result<(), Failure> {
        loop {
            // The oldest has the least time left; when none is open, no message is awaited.
            let oldest = self.open.borrow().front().copied();
            let until = oldest.unwrap_or_else(Instant::now) + self.limit;
            match timeout_at(until, receiver.receive()).await {
                Ok(received) => received?,
                Err(_) if oldest.is_none() => continue,
                Err(_) => return Err(Failure::fatal(Kind::Timeout)),
            }
            let begun = self.open.borrow_mut().pop_front();
            match begun {
                Some(begun) => self.recorder.completed(begun, self.size, self.size),
                None => return Err(Failure::fatal(Kind::Other("wrong_echo"))),
            }
            if sent.get() && self.open.borrow().is_empty() {
                return Ok(());
            }
        }
    }

    /// Everything that is on its way failed with its connection; when nothing is, the connection
    /// is all that failed.
    fn fail_open(&self, kind: Kind) {
        if self.open.borrow().is_empty() {
            self.recorder.failed(Instant::now(), kind);
        }
        for begun in self.open.borrow_mut().drain(..) {
            self.recorder.failed(begun, kind);
        }
    }

    /// Takes one message that is due as failed.
    fn skip_due(&self) {
        if self.due() <= Instant::now() {
            self.next.set(self.next.get() + 1);
        }
    }

    /// Counts what was due within the window and was never sent.
    fn give_up(&self) {
        while self.due() < self.window.end {
            self.recorder.failed(self.due(), Kind::NotSent);
            self.next.set(self.next.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns() {
        let window = Window::from_now(Duration::ZERO, Duration::from_secs(1));
        let beat = Beat::new(10.0, 4);
        let after = |worker, number| beat.due(&window, worker, number) - window.start;
        assert_eq!(after(0, 0), Duration::ZERO);
        assert_eq!(after(1, 0), Duration::from_millis(25));
        assert_eq!(after(0, 1), Duration::from_millis(100));
        assert_eq!(after(3, 9), Duration::from_millis(975));
    }
}
