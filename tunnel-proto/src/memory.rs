//! Accounts of the bytes that a program has received and nobody has taken yet.
//!
//! ```text
//!   session ─┐
//!   session ─┴─▶ account of a runtime ─┐
//!   session ───▶ account of a runtime ─┴─▶ account of the node
//! ```
//!
//! In: what each session holds, told in steps of `STEP_BYTES`, and a limit for each account. Out: whether
//! receive windows may grow ([`MemoryAccount::is_pressed`]); and above a limit the end of single streams, those
//! that hold the most in the session that holds the most, until the account is within its limit again. What
//! one runtime holds never ends a stream of another as long as the runtimes' limits leave room in the node's.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicIsize, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::session::mux::Mux;

/// What a session may hold without its account knowing: so that small exchanges touch no account.
pub(crate) const STEP_BYTES: usize = 32 * 1024;

/// Streams ended in one go. More than are needed for what one read can bring.
const SHED_AT_ONCE: usize = 64;

/// Bytes held by sessions, with a limit.
#[derive(Debug)]
pub struct MemoryAccount {
    /// Below zero for a moment when bytes are counted out before another thread has counted them in.
    held: AtomicIsize,
    limit: AtomicUsize,
    parent: Option<Arc<Self>>,
    holders: Mutex<Vec<Holder>>,
}

/// What holds bytes that an account counts.
#[derive(Debug)]
enum Holder {
    Account(Weak<MemoryAccount>),
    Session(Weak<Mux>),
}

/// A holder that is still there.
enum Live {
    Account(Arc<MemoryAccount>),
    Session(Arc<Mux>),
}

impl Live {
    fn held(&self) -> usize {
        match self {
            Self::Account(account) => account.held(),
            Self::Session(mux) => mux.held_bytes(),
        }
    }
}

impl Holder {
    fn live(&self) -> Option<Live> {
        match self {
            Self::Account(account) => account.upgrade().map(Live::Account),
            Self::Session(mux) => mux.upgrade().map(Live::Session),
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Account(account) => account.strong_count() == 0,
            Self::Session(mux) => mux.strong_count() == 0,
        }
    }
}

impl MemoryAccount {
    /// An account of `limit` bytes that is part of no other.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self::with(limit, None))
    }

    /// An account of `limit` bytes whose bytes count for `parent` as well.
    #[must_use]
    pub fn within(parent: &Arc<Self>, limit: usize) -> Arc<Self> {
        let account = Arc::new(Self::with(limit, Some(parent.clone())));
        parent.enter(Holder::Account(Arc::downgrade(&account)));
        account
    }

    fn with(limit: usize, parent: Option<Arc<Self>>) -> Self {
        Self {
            held: AtomicIsize::new(0),
            limit: AtomicUsize::new(limit),
            parent,
            holders: Mutex::default(),
        }
    }

    /// Changes the limit. What is held beyond a lower one is given up when something more comes.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        usize::try_from(held).unwrap_or(0)
    }

    /// Whether less than half of the account, or of one that it is part of, is free: time to let no
    /// window grow, and to have those that have grown shrink.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.held() > self.limit() / 2
            || self
                .parent
                .as_ref()
                .is_some_and(|parent| parent.is_pressed())
    }

    /// Counts bytes that are held by other means than a session.
    pub fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes.cast_signed(), Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.hold(bytes);
        }
    }

    /// Counts bytes out again.
    pub fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes.cast_signed(), Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.release(bytes);
        }
    }

    /// Ends streams until this account, and each that it is part of, is within its limit, or there is
    /// nothing to be ended. Call with no lock of a session held.
    pub(crate) fn keep_limit(&self) {
        for _ in 0..SHED_AT_ONCE {
            if !self.is_over() || !self.shed() {
                break;
            }
        }
        if let Some(parent) = &self.parent {
            parent.keep_limit();
        }
    }

    /// Counts a session's bytes from here on.
    pub(crate) fn enter_session(&self, mux: &Arc<Mux>) {
        self.enter(Holder::Session(Arc::downgrade(mux)));
    }

    fn enter(&self, holder: Holder) {
        let mut holders = self.holders.lock();
        // Only before it would grow, so that to enter costs about the same however many there are.
        if holders.len() == holders.capacity() {
            holders.retain(|holder| !holder.is_gone());
        }
        holders.push(holder);
    }

    fn is_over(&self) -> bool {
        self.held() > self.limit()
    }

    /// Ends one stream; `false` if there is none to be ended.
    fn shed(&self) -> bool {
        let holders = self.holders.lock();
        // Upgraded as a whole, since the last to let go of a session takes this lock no more.
        let live: Vec<Live> = holders.iter().filter_map(Holder::live).collect();
        drop(holders);
        match live.iter().max_by_key(|holder| holder.held()) {
            Some(Live::Account(account)) => account.shed(),
            Some(Live::Session(mux)) => mux.shed(),
            None => false,
        }
    }
}
