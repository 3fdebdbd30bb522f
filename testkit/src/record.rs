//! A record of what happened, in order, that can be read at any time and awaited.
//!
//! Program output, requests seen by an upstream and hang-ups are all records. What was written
//! before the test waits for it is found as well, so that a test cannot miss an event by being late.

use std::{fmt::Debug, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};

/// How many of the last entries a failure shows.
const SHOWN: usize = 60;

/// An append-only list that wakes those who wait for an entry.
#[derive(Debug)]
pub struct Record<T> {
    entries: Mutex<Vec<T>>,
    grown: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    length: usize,
    closed: bool,
}

impl<T> Default for Record<T> {
    fn default() -> Self {
        Self {
            entries: Mutex::new(Vec::new()),
            grown: watch::Sender::default(),
        }
    }
}

impl<T: Clone + Debug> Record<T> {
    /// Appends an entry.
    pub fn push(&self, entry: T) {
        let mut entries = self.entries.lock();
        entries.push(entry);
        let length = entries.len();
        self.grown.send_modify(|state| state.length = length);
    }

    /// Marks the record as complete: waiting for a further entry then fails immediately.
    pub fn close(&self) {
        self.grown.send_modify(|state| state.closed = true);
    }

    /// Whether nothing will be appended any more.
    pub fn is_closed(&self) -> bool {
        self.grown.borrow().closed
    }

    /// Everything up to now.
    pub fn all(&self) -> Vec<T> {
        self.entries.lock().clone()
    }

    /// How many entries there are; with [`Record::wait_for_after`], a mark to wait from.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first entry that `pick` accepts, waiting for it if need be.
    ///
    /// # Panics
    /// When there is none after `limit`, or when the record was closed without one. The message
    /// names `what` was awaited and shows the end of the record.
    pub async fn wait_for<U>(
        &self,
        what: &str,
        limit: Duration,
        pick: impl FnMut(&T) -> Option<U>,
    ) -> U {
        self.wait_for_after(0, what, limit, pick).await
    }

    /// As [`Record::wait_for`], looking only at entries after the first `mark`.
    ///
    /// # Panics
    /// As [`Record::wait_for`].
    pub async fn wait_for_after<U>(
        &self,
        mark: usize,
        what: &str,
        limit: Duration,
        mut pick: impl FnMut(&T) -> Option<U>,
    ) -> U {
        let mut grown = self.grown.subscribe();
        let mut read = mark;
        let search = async {
            loop {
                let state = *grown.borrow_and_update();
                while read < state.length {
                    let entry = self.entries.lock()[read].clone();
                    read += 1;
                    if let Some(found) = pick(&entry) {
                        return Some(found);
                    }
                }
                if state.closed || grown.changed().await.is_err() {
                    return None;
                }
            }
        };
        match timeout(limit, search).await {
            Ok(Some(found)) => found,
            Ok(None) => panic!("{what}: the record ended without it\n{}", self.tail()),
            Err(_) => panic!("{what}: not within {limit:?}\n{}", self.tail()),
        }
    }

    /// Waits until the record is closed.
    ///
    /// # Panics
    /// When it is still open after `limit`.
    pub async fn wait_closed(&self, what: &str, limit: Duration) {
        let mut grown = self.grown.subscribe();
        let closed = timeout(limit, grown.wait_for(|state| state.closed))
            .await
            .is_ok();
        assert!(closed, "{what}: not within {limit:?}\n{}", self.tail());
    }

    /// The last entries, one on a line.
    pub fn tail(&self) -> String {
        let entries = self.entries.lock();
        let skipped = entries.len().saturating_sub(SHOWN);
        let mut text = format!("({} entries, the last are:)\n", entries.len());
        for entry in &entries[skipped..] {
            text.push_str(&format!("  {entry:?}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::deadline::SOON;

    #[tokio::test]
    async fn finds_what_came_before_and_what_comes_after() {
        let record = Arc::new(Record::default());
        record.push(1);
        assert_eq!(
            record
                .wait_for("one", SOON, |n| (*n == 1).then_some("first"))
                .await,
            "first"
        );

        let writer = record.clone();
        let late = tokio::task::spawn_blocking(move || writer.push(2));
        assert_eq!(
            record
                .wait_for("two", SOON, |n| (*n == 2).then_some(*n))
                .await,
            2
        );
        late.await.unwrap();
        assert_eq!(record.all(), [1, 2]);
    }

    #[tokio::test]
    async fn a_mark_hides_what_came_before_it() {
        let record = Record::default();
        record.push("a1");
        record.push("a2");
        let found = record
            .wait_for_after(1, "an a", SOON, |entry| {
                entry.starts_with('a').then_some(*entry)
            })
            .await;
        assert_eq!(found, "a2");
    }

    #[tokio::test]
    #[should_panic(expected = "ended without it")]
    async fn waiting_in_vain_ends_when_the_record_does() {
        let record = Record::<u8>::default();
        record.close();
        record.wait_for("a byte", SOON, |_| Some(())).await;
    }
}
