//! The waits of a request's content: for the upstream's 100, and for the next bytes. Each has a
//! time-out.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

use tunnel_ops::alarm::Alarm;

/// Holds back the content of a request that expects 100 until the upstream sends a 100 or a final response, or a time limit
/// is over. The platform client gets its 100 as soon as the content is read.
#[derive(Debug)]
pub struct Gate {
    opened: oneshot::Receiver<()>,
    limit: Pin<Box<Sleep>>,
}

/// Why content may pass a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It is asked for, by a 100.
    Asked,
    /// The final response has come: no 100 is to be sent.
    Unasked,
}

impl Gate {
    /// A gate that opens when something is sent to the returned opener, after `limit`, or when the opener is dropped, which
    /// is when the final response has come.
    #[must_use]
    pub fn new(limit: Duration) -> (Self, oneshot::Sender<()>) {
        let (sender, opened) = oneshot::channel();
        let gate = Self {
            opened,
            limit: Box::pin(sleep(limit)),
        };
        (gate, sender)
    }

    /// Ready when the content may pass.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Passage> {
        if self.opened.is_terminated() {
            return Poll::Ready(Passage::Unasked);
        }
        match Pin::new(&mut self.opened).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Passage::Asked),
            Poll::Ready(Err(_)) => Poll::Ready(Passage::Unasked),
            Poll::Pending => self.limit.as_mut().poll(cx).map(|()| Passage::Asked),
        }
    }
}

/// Bounds the silence of a platform client over HTTP/2 until its request is answered. Afterwards it may be silent:
/// request and response are independent streams then, and either may rest. Over HTTP/1 the guard does so.
#[derive(Debug)]
pub struct Silence {
    limit: Duration,
    /// Set while the peer is silent: when the time-out is over.
    due: Option<Instant>,
    alarm: Alarm,
    unanswered: Weak<()>,
}

impl Silence {
    /// Limits the silence to `limit` until the returned marker is dropped.
    #[must_use]
    pub fn until_answered(limit: Duration) -> (Self, Arc<()>) {
        let unanswered = Arc::default();
        let silence = Self {
            limit,
            due: None,
            alarm: Alarm::default(),
            unanswered: Arc::downgrade(&unanswered),
        };
        (silence, unanswered)
    }

    /// Bytes were received.
    pub fn end(&mut self) {
        self.due = None;
    }

    /// Ready when the silence has lasted for the limit.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unanswered.strong_count() == 0 {
            return Poll::Pending;
        }
        let limit = self.limit;
        let due = *self.due.get_or_insert_with(|| Instant::now() + limit);
        self.alarm.poll(cx, due)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_gate_opens_when_asked_or_after_a_while_or_with_the_final_response() {
        let start = Instant::now();
        let (mut gate, open) = Gate::new(LIMIT);
        open.send(()).unwrap();
        assert_eq!(poll_fn(|cx| gate.poll(cx)).await, Passage::Asked);
        assert_eq!(start.elapsed(), Duration::ZERO);
        let (mut gate, _open) = Gate::new(LIMIT);
        assert_eq!(poll_fn(|cx| gate.poll(cx)).await, Passage::Asked);
        assert_eq!(start.elapsed(), LIMIT);
        let (mut gate, open) = Gate::new(LIMIT);
        drop(open);
        // Twice, since what comes after the gate may have to wait.
        for _ in 0..2 {
            assert_eq!(poll_fn(|cx| gate.poll(cx)).await, Passage::Unasked);
        }
        assert_eq!(start.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_bounded_until_there_is_an_answer_and_starts_anew_with_each_piece() {
        let (mut silence, unanswered) = Silence::until_answered(LIMIT);
        let half = timeout(LIMIT / 2, poll_fn(|cx| silence.poll(cx)));
        assert!(half.await.is_err());
        silence.end();
        let start = Instant::now();
        poll_fn(|cx| silence.poll(cx)).await;
        assert_eq!(start.elapsed(), LIMIT);
        drop(unanswered);
        let late = timeout(LIMIT * 5, poll_fn(|cx| silence.poll(cx)));
        assert!(late.await.is_err());
    }
}
