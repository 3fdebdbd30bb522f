//! Keys of a range as they are, and then as they change.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use crate::{Client, EtcdError, Event, KeyValue, RangeRequest, WatchReport};

/// Keys in one read. Their values, of up to 256 KiB each, have to fit into one answer of up to 16 MiB.
const PAGE: i64 = 50;

/// Time without a word of the watched member, after which it is asked for a sign.
const SILENCE: Duration = Duration::from_secs(5);

/// What is told of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// All keys there are, in order. What was told before counts no more.
    Listed {
        /// The keys.
        keys: Vec<KeyValue>,
        /// The revision at which they were read.
        revision: i64,
    },
    /// Changes, in order.
    Changed {
        /// The changes.
        events: Vec<Event>,
        /// The revision up to which all changes have been told; `None` when more of this revision follow.
        up_to: Option<i64>,
    },
}

impl Client {
    /// Reads all keys of a range, the first one of it and the first one behind it, then tells each change. The next is told
    /// when the future of the one before has ended.
    ///
    /// It returns when all has to be read again, since etcd was restored to an earlier revision. Call it again then, and
    /// after an error, some time later.
    ///
    /// # Errors
    /// When etcd cannot be read, or does not answer any more; [`EtcdError::Compacted`] when changes were missed.
    pub async fn follow<F: Future<Output = ()>>(
        &self,
        range: (Bytes, Bytes),
        mut tell: impl FnMut(Followed) -> F,
    ) -> Result<(), EtcdError> {
        let (keys, revision) = self.list(&range).await?;
        tell(Followed::Listed { keys, revision }).await;
        let mut position = revision;
        let member = self.preferred();
        let mut watch = self.watch(member, range, revision + 1).await?;
        let mut is_asked = false;
        loop {
            match timeout(SILENCE, watch.next()).await {
                Ok(report) => match report? {
                    WatchReport::Events { events, up_to } => {
                        position = up_to.unwrap_or(position).max(position);
                        tell(Followed::Changed { events, up_to }).await;
                    }
                    WatchReport::Progress { up_to } => position = up_to.max(position),
                    // A member that is only behind is read again in vain, which is rare.
                    WatchReport::Alive { revision } if revision < position => return Ok(()),
                    WatchReport::Alive { .. } => {}
                },
                Err(_) if is_asked => {
                    let member = "the member that is watched".to_owned();
                    return Err(EtcdError::TimedOut { member });
                }
                Err(_) => {
                    watch.request_progress();
                    is_asked = true;
                    continue;
                }
            }
            is_asked = false;
        }
    }

    /// All keys of a range at one revision, page by page, and the revision.
    async fn list(&self, range: &(Bytes, Bytes)) -> Result<(Vec<KeyValue>, i64), EtcdError> {
        let (mut key, range_end) = range.clone();
        let (mut keys, mut revision) = (Vec::new(), 0);
        loop {
            let request = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: PAGE,
                revision,
                // The first page decides the revision, and so has to be the newest.
                serializable: revision > 0,
                count_only: false,
            };
            let page = self.range(request).await?;
            if revision == 0 {
                revision = page.header.map_or(0, |header| header.revision);
            }
            keys.extend(page.kvs);
            match keys.last() {
                Some(last) if page.more => key = Bytes::from([&last.key[..], b"\0"].concat()),
                _ => return Ok((keys, revision)),
            }
        }
    }
}
