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

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::socket::{Echo, Receiver, Sender, Socket};
use crate::{
    client::template::{PAUSE, connected, within},
    load::{Schedule, Worker},
    measure::{
        Recorder, Window,
        errors::{Failure, FailureKind},
    },
};

/// One connection, until the window is over and the last message has come back.
pub(super) async fn work(echo: Arc<Echo>, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again within the window, and is counted there.
    let mut socket = connected(limit, echo.connect()).await.ok();
    let window = worker.ready().await;
    let Some(schedule) = worker.schedule() else {
        return;
    };
    let paced = PacedSocket {
        schedule,
        window,
        recorder: &worker.recorder,
        size: echo.size as u64,
        limit,
        open: RefCell::default(),
    };
    while !window.is_over() {
        let ready = match socket.take() {
            Some(socket) => Ok(socket),
            None => connected(limit, echo.connect()).await,
        };
        let failure = match ready {
            Ok(socket) => match paced.exchange(socket).await {
                Ok(()) => break,
                Err(failure) => failure,
            },
            Err(failure) => {
                // This is the failure of what is due next.
                let due = schedule.next(&window, &worker.recorder).await;
                paced.open.borrow_mut().extend(due);
                failure
            }
        };
        paced.fail_open(failure.kind);
        sleep(PAUSE).await;
    }
    // What was not taken until the end is counted as not sent.
    let _ = schedule.take(&window, &worker.recorder);
    // The stretch is as long as it was planned, not until the last that was due is answered.
    sleep_until(window.end).await;
}

/// What is on its way over a connection.
struct PacedSocket<'a> {
    schedule: &'a Schedule,
    window: Window,
    recorder: &'a Recorder,
    size: u64,
    limit: Duration,
    /// When the messages were due that this connection took and that have not come back yet, in order.
    open: RefCell<VecDeque<Instant>>,
}

impl PacedSocket<'_> {
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
            Err(Failure::fatal(FailureKind::Timeout))
        };
        tokio::select! {
            biased;
            received = receive => received,
            sent = send => sent,
        }
    }

    async fn send(&self, sender: &mut Sender) -> Result<(), Failure> {
        while let Some(due) = self.schedule.take(&self.window, self.recorder) {
            self.open.borrow_mut().push_back(due);
            self.schedule.wait(due, self.recorder).await;
            within(self.limit, sender.send()).await?;
        }
        Ok(())
    }

    async fn receive(&self, receiver: &mut Receiver, sent: &Cell<bool>) -> Result<(), Failure> {
        loop {
            // The oldest has the least time left; when none is open, no message is awaited.
            let oldest = self.open.borrow().front().copied();
            let until = oldest.unwrap_or_else(Instant::now) + self.limit;
            match timeout_at(until, receiver.receive()).await {
                Ok(received) => received?,
                Err(_) if oldest.is_none() => continue,
                Err(_) => return Err(Failure::fatal(FailureKind::Timeout)),
            }
            let begun = self.open.borrow_mut().pop_front();
            match begun {
                Some(begun) => self.recorder.completed(begun, self.size, self.size),
                None => return Err(Failure::fatal(FailureKind::Other("wrong_echo"))),
            }
            if sent.get() && self.open.borrow().is_empty() {
                return Ok(());
            }
        }
    }

    /// Everything that is on its way failed with its connection; when nothing is, the connection
    /// is all that failed.
    fn fail_open(&self, kind: FailureKind) {
        if self.open.borrow().is_empty() {
            self.recorder.failed(Instant::now(), kind);
        }
        for begun in self.open.borrow_mut().drain(..) {
            self.recorder.failed(begun, kind);
        }
    }
}
