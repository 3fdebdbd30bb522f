//! Locks whose order is chosen by a race checker.
//!
//! Each is a lock of parking_lot behind one of shuttle. Within a run of the checker both are taken, so that the checker
//! chooses the next thread before a lock is taken, before it is released, and after. Outside of a run the checker's lock
//! is not used.

use std::{
    cell::Cell,
    fmt,
    ops::{Deref, DerefMut},
    sync::PoisonError,
};

use shuttle::{
    current::try_get_current_task,
    sync::{
        self as checked,
        atomic::{AtomicBool, Ordering},
    },
};

/// As `parking_lot::Mutex`, as far as it is used here.
#[derive(Default)]
pub(crate) struct Mutex<T> {
    turn: checked::Mutex<()>,
    after: AtomicBool,
    inner: parking_lot::Mutex<T>,
}

/// As `parking_lot::RwLock`, as far as it is used here.
#[derive(Default)]
pub(crate) struct RwLock<T> {
    turn: checked::RwLock<()>,
    after: AtomicBool,
    inner: parking_lot::RwLock<T>,
}

/// A lock that is held. Its fields are released in this order.
pub(crate) struct LockGuard<'a, G, T> {
    inner: G,
    _turn: Option<T>,
    _after: Option<After<'a>>,
}

/// Lets the checker choose a thread after a lock was released, since the next step may need no lock.
struct After<'a>(&'a AtomicBool);

type MutexGuard<'a, T> = LockGuard<'a, parking_lot::MutexGuard<'a, T>, checked::MutexGuard<'a, ()>>;
type ReadGuard<'a, T> =
    LockGuard<'a, parking_lot::RwLockReadGuard<'a, T>, checked::RwLockReadGuard<'a, ()>>;
type WriteGuard<'a, T> =
    LockGuard<'a, parking_lot::RwLockWriteGuard<'a, T>, checked::RwLockWriteGuard<'a, ()>>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            turn: checked::Mutex::default(),
            after: AtomicBool::default(),
            inner: parking_lot::Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let turn = || self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        held(turn, &self.after, || self.inner.lock())
    }
}

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            turn: checked::RwLock::default(),
            after: AtomicBool::default(),
            inner: parking_lot::RwLock::new(value),
        }
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let turn = || self.turn.read().unwrap_or_else(PoisonError::into_inner);
        held(turn, &self.after, || self.inner.read())
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let turn = || self.turn.write().unwrap_or_else(PoisonError::into_inner);
        held(turn, &self.after, || self.inner.write())
    }
}

fn held<'a, G, T>(
    turn: impl FnOnce() -> T,
    after: &'a AtomicBool,
    lock: impl FnOnce() -> G,
) -> LockGuard<'a, G, T> {
    let is_checked = try_get_current_task().is_some();
    LockGuard {
        _turn: is_checked.then(turn),
        _after: (is_checked && !WITHOUT_AFTER.get()).then(|| After(after)),
        inner: lock(),
    }
}

thread_local! {
    static WITHOUT_AFTER: Cell<bool> = const { Cell::new(false) };
}

/// Runs the checker on this thread without its choice after a lock was released, which reduces the number of schedules by a
/// factor of a hundred, so that all of them can be tried.
pub(crate) fn without_after(run: impl FnOnce()) {
    WITHOUT_AFTER.set(true);
    run();
    WITHOUT_AFTER.set(false);
}

impl Drop for After<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.load(Ordering::SeqCst);
        }
    }
}

impl<G: Deref, T> Deref for LockGuard<'_, G, T> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut, T> DerefMut for LockGuard<'_, G, T> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
