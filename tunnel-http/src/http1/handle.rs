//! What the guard of a connection and the code that answers its requests report to each other.
//!
//! In, from the answering side: an exchange begins and ends, an upgrade is granted or not, a 1xx head
//! wants to be written. Out, from the guard: why it ended the connection. Neither side waits for the
//! other; the lock is held for a few instructions and never while anything is polled.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::violation::Violation;

/// Most bytes of informational heads that wait to be written. A few early hints; more than that
/// helps no client.
const INFORMATIONAL_BYTES: usize = 16 * 1024;

/// Why the guard refused a request before hyper read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Its head broke a rule.
    Violation(Violation),
    /// Its head did not come to an end in time.
    HeadTimeout,
}

impl Refusal {
    /// The status of the answer, after which the connection ends.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Violation(violation) => violation.status(),
            Self::HeadTimeout => 408,
        }
    }

    /// What was wrong: a part of a sentence.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Violation(violation) => violation.reason(),
            Self::HeadTimeout => "head of the request did not come in time",
        }
    }
}

/// The answering side's view of a [`Guard`](super::Guard). Cheap to clone.
#[derive(Clone)]
pub struct GuardHandle {
    shared: Arc<Shared>,
}

/// An exchange that is not answered in full; dropping it says that it is.
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

    /// Says that hyper has handed over the next request. To be called exactly once for each, before
    /// hyper's call of the service returns, and to be kept until the last byte of the answer's body
    /// was given to hyper: in the body itself, so that hyper drops both. Dropped earlier, the answer
    /// counts as a connection at rest; dropped later and elsewhere, the rest begins unnoticed.
    pub fn begin_exchange(&self) -> InFlight {
        self.shared.state.lock().is_answering = false;
        InFlight {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Why the guard ended the connection in front of a request that hyper never read, once it did:
    /// the code that runs the connection then takes the socket back from hyper, writes the answer and closes.
    #[must_use]
    pub fn violation(&self) -> Option<Refusal> {
        self.shared.state.lock().refusal
    }

    /// The rule that the body of the current request broke. The body fails with
    /// [`InvalidData`](std::io::ErrorKind::InvalidData).
    #[must_use]
    pub fn body_violation(&self) -> Option<Violation> {
        self.shared.state.lock().body_violation
    }

    /// Says that the current request is being answered by 101: what follows it is not HTTP.
    pub fn upgraded(&self) {
        self.shared.decide(Upgrade::Granted);
    }

    /// Says that the current request asked for an upgrade and does not get it, so that what follows
    /// it is read while it is being answered. Without this it is read after the answer.
    pub fn not_upgraded(&self) {
        // With two requests handed on, it may be the other one that asked for the upgrade.
        if self.shared.open() <= 1 {
            self.shared.decide(Upgrade::Refused);
        }
    }

    /// Whether an upgrade was granted: once hyper is done, the connection goes on as something else.
    #[must_use]
    pub fn is_upgraded(&self) -> bool {
        self.shared.upgrade() == Upgrade::Granted
    }

    /// Writes a whole informational head (`HTTP/1.1 103 Early Hints`, fields, empty line) in front of
    /// the answer to the current request. Returns whether it will be written: not after the answer
    /// has begun, not while older bytes wait to be written, and not beyond a bound. The caller sees to
    /// it that the client speaks HTTP/1.1.
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
            // In most cases the connection's task ends the exchange itself, and sees so when it then
            // flushes; waking it each time would poll it once more for every request.
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

/// What became of a request for an upgrade.
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
    /// Requests that were handed on and are not answered in full. A request counts from the moment
    /// at which hyper can read it, so that there is no instant in which it is not counted.
    open: AtomicUsize,
    /// Whether `State::informational` holds anything, so that writing need not lock to see that not.
    has_informational: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refusal: Option<Refusal>,
    body_violation: Option<Violation>,
    upgrade: Upgrade,
    /// Something was written since the last complete flush.
    is_unflushed: bool,
    /// Something of the answer to the current request was written.
    is_answering: bool,
    informational: BytesMut,
    /// The task that read last and had to wait. Kept when woken: hyper need not read again because of that.
    reader: Option<Waker>,
    /// The reader waits for the open exchanges to end, not only for the client.
    waits_for_end: bool,
}

impl Shared {
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Whether an answer has begun and has not ended.
    pub(super) fn is_answering(&self) -> bool {
        self.open() > 0 && self.state.lock().is_answering
    }

    /// Counts requests that are about to be handed on.
    pub(super) fn handed_on(&self, heads: usize, asks_for_upgrade: bool) {
        self.open.fetch_add(heads, Ordering::AcqRel);
        if asks_for_upgrade {
            self.state.lock().upgrade = Upgrade::Undecided;
        }
    }

    /// Remembers the task to wake. The caller has to check again after this call what it waits for, since that may
    /// have happened just before.
    pub(super) fn park(&self, cx: &Context<'_>, waits_for_end: bool) {
        let mut state = self.state.lock();
        state.waits_for_end = waits_for_end;
        match &mut state.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            reader => *reader = Some(cx.waker().clone()),
        }
    }

    pub(super) fn refuse(&self, refusal: Refusal) {
        self.state.lock().refusal = Some(refusal);
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
        // Only an undecided upgrade is waited for, and every request comes here.
        if state.upgrade != Upgrade::Undecided {
            return;
        }
        state.upgrade = upgrade;
        let reader = state.reader.clone();
        drop(state);
        wake(reader);
    }

    /// Says that the answering side is about to write, and gives back what has to be written before.
    /// From here to [`Shared::flushed`] no informational head is accepted, so none can end up inside
    /// of an answer.
    pub(super) fn begin_write(&self, is_answer: bool) -> Option<BytesMut> {
        let mut state = self.state.lock();
        state.is_unflushed = true;
        state.is_answering |= is_answer;
        self.take_from(&mut state)
    }

    /// Says that everything written has left.
    pub(super) fn flushed(&self) {
        self.state.lock().is_unflushed = false;
    }

    /// The informational heads that wait, when there are any.
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
