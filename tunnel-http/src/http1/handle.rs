//! The state that the guard of a connection shares with the code that answers its requests.
//!
//! In, from the answering side: an exchange begins and ends, an upgrade is granted or not, a 1xx head is to be written.
//! Out, from the guard: why it ended the connection. Neither side waits for the other; the lock is held for a few
//! instructions and never during a poll.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tunnel_proto::problem::Reason;

use super::violation::Violation;

/// Most bytes of informational heads that wait to be written: enough for several early hints.
const INFORMATIONAL_BYTES: usize = 16 * 1024;

/// Why the guard refused a request before hyper read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Its head broke a rule.
    Violation(Violation),
    /// Its head was not complete in time.
    HeadTimeout,
}

impl Refusal {
    /// The reason of the response, after which the connection closes.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Violation(violation) => violation.reason(),
            Self::HeadTimeout => Reason::RequestTimeout,
        }
    }

    /// The description: part of a sentence.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Violation(violation) => violation.detail(),
            Self::HeadTimeout => "head of the request did not come in time",
        }
    }
}

/// The answering side's view of a [`Guard`](super::Guard). Cheap to clone.
#[derive(Clone)]
pub struct GuardHandle {
    shared: Arc<Shared>,
}

/// An exchange whose response is not complete; drop it when the response is complete.
#[must_use = "an exchange that is dropped at once counts as answered"]
pub struct InFlight {
    shared: Arc<Shared>,
}

impl GuardHandle {
    pub(super) fn new() -> (Self, Arc<Shared>) {
        let shared = Arc::<Shared>::default();
        (
            Self {
                shared: Arc::clone(&shared),
            },
            shared,
        )
    }

    /// Begins the exchange of the next request. Call this exactly once for each request, before hyper's call of the service
    /// returns. Keep the result in the response's body, so that hyper drops both after the last byte. If it is dropped
    /// earlier, the connection counts as idle during the response; if later and elsewhere, the idle time begins late.
    pub fn begin_exchange(&self) -> InFlight {
        self.shared.state.lock().is_answering = false;
        InFlight {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Why the guard ended the connection before a request that hyper has not read, if it did. The code that runs the
    /// connection then takes the socket back from hyper, writes the response and closes.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.shared.state.lock().refusal
    }

    /// Whether the answer to the refused request has no content, since its method is HEAD.
    #[must_use]
    pub fn refuses_head_request(&self) -> bool {
        self.shared.state.lock().is_head_refused
    }

    /// The rule that the body of the current request broke. The body fails with
    /// [`InvalidData`](std::io::ErrorKind::InvalidData).
    #[must_use]
    pub fn body_violation(&self) -> Option<Violation> {
        self.shared.state.lock().body_violation
    }

    /// The current request is answered by 101: the following bytes are not HTTP.
    pub fn upgraded(&self) {
        self.shared.decide(Upgrade::Granted);
    }

    /// The current request's upgrade is not granted, so that the following bytes are read during the response. Without this
    /// call they are read after it.
    pub fn not_upgraded(&self) {
        // With two requests passed on, the other one may have requested the upgrade.
        if self.shared.open() <= 1 {
            self.shared.decide(Upgrade::Refused);
        }
    }

    /// Whether an upgrade was granted: the connection changes its protocol when hyper has ended.
    #[must_use]
    pub fn is_upgraded(&self) -> bool {
        self.shared.upgrade() == Upgrade::Granted
    }

    /// The answer to the current request ends with the connection, as some do over HTTP/1.0: until
    /// [`ResetWhenDropped`](super::ResetWhenDropped) is taken back, any other end is a reset. Called before its head is written.
    pub(crate) fn close_delimited(&self) {
        self.shared.state.lock().is_close_delimited = true;
    }

    /// Whether the last answer ends with the connection.
    pub(crate) fn is_close_delimited(&self) -> bool {
        self.shared.state.lock().is_close_delimited
    }

    /// Writes a complete informational head (`HTTP/1.1 103 Early Hints`, fields, empty line) before the response to the
    /// current request. Returns whether it will be written: not after the response has begun, not while older bytes wait to
    /// be written, and not when more than 16 KiB would wait. The caller has checked that the client speaks HTTP/1.1.
    pub fn informational(&self, head: Bytes) -> bool {
        let mut state = self.shared.state.lock();
        let is_clean = !state.is_answering && !state.is_unflushed && self.shared.open() > 0;
        if !is_clean || state.informational.len() + head.len() > INFORMATIONAL_BYTES {
            return false;
        }
        state.informational.extend_from_slice(&head);
        self.shared.has_informational.store(true, Ordering::Release);
        let reader = state.reader.clone();
        drop(state);
        wake(reader);
        true
    }
}

impl fmt::Debug for GuardHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardHandle")
            .field("open", &self.shared.open())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let one_less = |open: usize| open.checked_sub(1);
        let before = self
            .shared
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        debug_assert!(
            before.is_ok(),
            "more exchanges ended than requests were handed on"
        );
        if before == Ok(1) {
            let state = self.shared.state.lock();
            // Mostly the connection's task itself ends the exchange, and notices that at its next flush. Waking it would poll
            // it once more for every request.
            let reader = if state.waits_for_end {
                state.reader.clone()
            } else {
                None
            };
            drop(state);
            wake(reader);
        }
    }
}

/// The state of a request for an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Upgrade {
    #[default]
    NotAsked,
    Undecided,
    Granted,
    Refused,
}

#[derive(Default)]
pub(super) struct Shared {
    /// Requests that were passed on and whose response is not complete. A request counts before hyper can read it, so that
    /// it is never missed.
    open: AtomicUsize,
    /// Whether `State::informational` is not empty, so that most writes need no lock.
    has_informational: AtomicBool,
    state: Mutex<State>,
}

/// A write of hyper's that begins.
pub(super) struct BegunWrite {
    /// The informational heads to write first.
    pub(super) informational: Option<BytesMut>,
    /// Whether it begins a response that ends with the connection.
    pub(super) is_close_delimited: bool,
}

#[derive(Default)]
struct State {
    refusal: Option<Refusal>,
    is_head_refused: bool,
    body_violation: Option<Violation>,
    upgrade: Upgrade,
    /// Whether bytes were written since the last complete flush.
    is_unflushed: bool,
    /// Whether bytes of the response to the current request were written.
    is_answering: bool,
    /// Whether the response ends with the connection, so that it is the last.
    is_close_delimited: bool,
    informational: BytesMut,
    /// The task that read last and had to wait. Kept when it is woken, since hyper may not read again then.
    reader: Option<Waker>,
    /// Whether the reader waits for the end of the open exchanges, not only for the client.
    waits_for_end: bool,
}

impl Shared {
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Whether a response has begun and has not ended.
    pub(super) fn is_answering(&self) -> bool {
        self.open() > 0 && self.state.lock().is_answering
    }

    /// Counts requests that are about to be passed on.
    pub(super) fn passed_on(&self, heads: usize, asks_for_upgrade: bool) {
        self.open.fetch_add(heads, Ordering::AcqRel);
        if asks_for_upgrade {
            self.state.lock().upgrade = Upgrade::Undecided;
        }
    }

    /// Registers the task to wake. The caller has to check its condition again after this call, since it may have changed
    /// just before.
    pub(super) fn park(&self, cx: &Context<'_>, waits_for_end: bool) {
        let mut state = self.state.lock();
        state.waits_for_end = waits_for_end;
        match &mut state.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader => *reader = Some(cx.waker().clone()),
        }
    }

    pub(super) fn refuse(&self, refusal: Refusal, is_head_request: bool) {
        let mut state = self.state.lock();
        state.refusal = Some(refusal);
        state.is_head_refused = is_head_request;
    }

    pub(super) fn is_refused(&self) -> bool {
        self.state.lock().refusal.is_some()
    }

    pub(super) fn refuse_body(&self, violation: Violation) {
        self.state.lock().body_violation = Some(violation);
    }

    pub(super) fn upgrade(&self) -> Upgrade {
        self.state.lock().upgrade
    }

    fn decide(&self, upgrade: Upgrade) {
        let mut state = self.state.lock();
        // Called for every request, but only an undecided upgrade has a waiting reader.
        if state.upgrade != Upgrade::Undecided {
            return;
        }
        state.upgrade = upgrade;
        let reader = state.reader.clone();
        drop(state);
        wake(reader);
    }

    /// Begins a write. Until [`Shared::flushed`] no further informational head is accepted, so that none is written inside a
    /// response.
    pub(super) fn begin_write(&self, is_answer: bool) -> BegunWrite {
        let mut state = self.state.lock();
        state.is_unflushed = true;
        let begins = is_answer && !state.is_answering;
        state.is_answering |= is_answer;
        BegunWrite {
            informational: self.take_from(&mut state),
            is_close_delimited: begins && state.is_close_delimited,
        }
    }

    /// All written bytes are flushed.
    pub(super) fn flushed(&self) {
        self.state.lock().is_unflushed = false;
    }

    /// Takes the waiting informational heads, if there are any.
    pub(super) fn take_informational(&self) -> Option<BytesMut> {
        if self.has_informational.load(Ordering::Acquire) {
            self.take_from(&mut self.state.lock())
        } else {
            None
        }
    }

    fn take_from(&self, state: &mut State) -> Option<BytesMut> {
        self.has_informational
            .swap(false, Ordering::AcqRel)
            .then(|| std::mem::take(&mut state.informational))
    }
}

fn wake(reader: Option<Waker>) {
    if let Some(reader) = reader {
        reader.wake();
    }
}
