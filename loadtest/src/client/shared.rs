//! HTTP/2 connections that several workers of one thread share.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::sync::Mutex;

use crate::{
    client::{Dialer, connection::Http2},
    measure::errors::Failure,
};

/// The connection of some workers. One that finds it closed makes it anew while the others wait.
type Slot = Rc<Mutex<Option<Http2>>>;

thread_local! {
    /// By group of workers, and by the number of the connection on this thread.
    static SLOTS: RefCell<HashMap<(u64, usize), Slot>> = RefCell::default();
}

/// Workers of one group that share connections. Streams do not cross threads, so each thread has
/// connections of its own.
#[derive(Debug)]
pub struct Shared {
    group: u64,
    streams: usize,
}

impl Shared {
    /// For `streams` workers to a connection.
    pub fn new(streams: usize) -> Self {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        Self {
            group: GROUPS.fetch_add(1, Ordering::Relaxed),
            streams: streams.max(1),
        }
    }

    /// The HTTP/2 connection of the worker with this number, made if need be.
    ///
    /// # Errors
    /// As [`Dialer::http2`].
    pub async fn connect(&self, dialer: &Dialer, worker: usize) -> Result<Http2, Failure> {
        let key = (self.group, worker / self.streams);
        let slot = SLOTS.with_borrow_mut(|slots| slots.entry(key).or_default().clone());
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        let made = dialer.http2().await?;
        *slot = Some(made.clone());
        Ok(made)
    }
}
