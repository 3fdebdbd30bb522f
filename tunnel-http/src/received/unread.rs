//! What an HTTP/1 connection knows of the content of its request: how much of it is missing when the answer begins, and
//! what becomes of that.
//!
//! ```text
//!   request ──▶ answer's head ──────────────▶ answer's end ─────▶ connection kept
//!               missing content is small:     discarded for
//!               kept, else `close`            DISCARD_TIME, or ─▶ connection closed
//! ```
//!
//! Content that is dropped before its end is read and discarded from the answer's head on, never before: hyper would send
//! a 100 for it. While it is discarded, hyper goes on reading, so that a client that sends before it reads is not stuck.
//! Of a connection that closes the rest is discarded behind the answer by [`crate::connection::close`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::{DISCARD_TIME, Incoming};
use crate::tasks::Tasks;
use tunnel_ops::alarm::Alarm;

/// How much content may be missing when the answer begins, so that the connection is kept. As Go's server does: to read
/// that much costs less than a new connection.
pub(crate) const KEPT_BYTES: u64 = 256 * 1024;

/// How long content that waits for a 100 is awaited behind the final response that has come instead, and while that makes no
/// progress: the client may send it or not (RFC 9110 section 10.1.1), and the upstream may wait for it.
const UNASKED_WAIT: Duration = Duration::from_secs(60);

/// The content of one request over HTTP/1.
#[derive(Debug)]
pub(crate) struct UnreadContent {
    /// The tasks of the connection.
    pub(super) tasks: Tasks,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many bytes are missing; `None` if that is not known.
    missing: Option<u64>,
    /// The client waits for a 100 before it sends content, and has sent none.
    is_expecting: bool,
    answer: AnswerStage,
    /// Whether the connection is kept behind the answer.
    is_kept: bool,
    /// When the last part of the answer was made.
    progress: Instant,
    /// Awaited by what reads the content.
    alarm: Alarm,
    /// The task that waits for the next stage of the answer.
    waiting: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AnswerStage {
    Awaited,
    Begun,
    Ended,
}

impl UnreadContent {
    /// The state of content of which nothing was read. `expects_continue`: the client may wait for a 100 before it sends it.
    pub(super) fn new(incoming: &Incoming, expects_continue: bool, tasks: &Tasks) -> Arc<Self> {
        let state = State {
            missing: incoming.size_hint().exact(),
            is_expecting: expects_continue,
            answer: AnswerStage::Awaited,
            is_kept: false,
            progress: Instant::now(),
            alarm: Alarm::default(),
            waiting: None,
        };
        Arc::new(Self {
            tasks: tasks.clone(),
            state: Mutex::new(state),
        })
    }

    /// A piece was read.
    pub(super) fn on_piece(&self, incoming: &Incoming) {
        let mut state = self.state.lock();
        state.missing = incoming.size_hint().exact();
        state.is_expecting = false;
    }

    /// The content was read to its end.
    pub(super) fn on_end(&self) {
        self.state.lock().missing = Some(0);
    }

    /// Reading it failed, so that its end is not known.
    pub(super) fn on_failed(&self) {
        self.state.lock().missing = None;
    }

    /// The answer's head is about to be written. Returns whether the connection can be kept: whether the missing content
    /// comes, and is small.
    pub(crate) fn begin_answer(&self) -> bool {
        let mut state = self.state.lock();
        let is_small = state.missing.is_some_and(|bytes| bytes <= KEPT_BYTES);
        let is_whole = state.missing == Some(0);
        state.is_kept = is_whole || (is_small && !state.is_expecting);
        state.progress = Instant::now();
        let is_kept = state.is_kept;
        state.advance(AnswerStage::Begun);
        is_kept
    }

    /// A part of the answer's content is made.
    pub(crate) fn on_answer_progress(&self) {
        let mut state = self.state.lock();
        if state.is_expecting {
            state.progress = Instant::now();
        }
    }

    /// Ready when the client has been answered instead of sent its 100, has sent nothing of its content for
    /// [`UNASKED_WAIT`], and the answer has made no progress for as long.
    pub(super) fn poll_given_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.is_expecting || state.answer == AnswerStage::Awaited {
            return Poll::Pending;
        }
        let due = state.progress + UNASKED_WAIT;
        state.alarm.poll(cx, due)
    }

    /// The answer is written.
    pub(crate) fn end_answer(&self) {
        self.state.lock().advance(AnswerStage::Ended);
    }

    /// Ready when the answer has reached `stage`. One task at a time may wait.
    pub(super) fn poll_answer(&self, stage: AnswerStage, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.answer >= stage {
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether nothing is to be read on: the content is whole, or its connection closes.
    fn is_done(&self) -> bool {
        let state = self.state.lock();
        let is_closing = state.answer == AnswerStage::Ended && !state.is_kept;
        is_closing || state.missing == Some(0)
    }

    /// Takes content that is dropped before its end.
    pub(super) fn discard(self: Arc<Self>, mut incoming: Incoming) {
        let is_expecting = self.state.lock().is_expecting;
        // Mostly all of it has come with the head. To poll what waits for a 100 would send that.
        if !is_expecting {
            let mut noop = Context::from_waker(Waker::noop());
            match Pin::new(&mut incoming).poll_frame(&mut noop) {
                Poll::Ready(Some(Ok(_))) => self.on_piece(&incoming),
                Poll::Ready(Some(Err(_))) => return self.on_failed(),
                Poll::Ready(None) => self.on_end(),
                Poll::Pending => {}
            }
        }
        if !self.is_done() && Handle::try_current().is_ok() {
            let tasks = self.tasks.clone();
            tasks.spawn(self.discard_rest(incoming));
        }
    }

    /// Discards content from the answer's head to its end, and for a moment longer if the connection is kept. hyper ends
    /// the connection if the content is not whole by then.
    async fn discard_rest(self: Arc<Self>, mut incoming: Incoming) {
        self.answer_reaches(AnswerStage::Begun).await;
        let given_up = async {
            self.answer_reaches(AnswerStage::Ended).await;
            if !self.is_done() {
                sleep(DISCARD_TIME).await;
            }
        };
        let read = async { while let Some(Ok(_)) = incoming.frame().await {} };
        tokio::select! {
            () = given_up => {}
            () = read => {}
        }
    }

    async fn answer_reaches(&self, stage: AnswerStage) {
        poll_fn(|cx| self.poll_answer(stage, cx)).await;
    }
}

impl State {
    fn advance(&mut self, to: AnswerStage) {
        self.answer = to;
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }
}
