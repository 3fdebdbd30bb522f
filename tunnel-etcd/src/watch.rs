//! One watch at one member.

use std::fmt;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::Streaming;

use crate::{
    error::EtcdError,
    member::Connection,
    messages::{Event, WatchCommand, WatchCreate, WatchProgress, WatchRequest, WatchResponse},
};

/// Progress requests that may wait, one of which is enough.
const REQUESTS: usize = 4;

/// A watch. It ends when this is dropped.
pub struct Watch {
    member: String,
    requests: Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    _connection: Connection,
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchReport {
    /// Changes, in order.
    Events {
        /// The changes.
        events: Vec<Event>,
        /// The revision up to which all changes have been reported; `None` when more of this revision follow.
        up_to: Option<i64>,
    },
    /// Nothing has changed up to this revision.
    Progress {
        /// The revision.
        up_to: i64,
    },
    /// The member is there, and has this revision. Changes before it may follow still: etcd 3.4 sends this out of order.
    Alive {
        /// The member's revision.
        revision: i64,
    },
}

impl Watch {
    /// The requests of a watch from this revision on, and where more of them are put.
    pub(crate) fn requests(
        key: Bytes,
        range_end: Bytes,
        start_revision: i64,
    ) -> (
        Sender<WatchRequest>,
        impl Stream<Item = WatchRequest> + Send + 'static,
    ) {
        let (sender, receiver) = channel(REQUESTS);
        let create = WatchRequest {
            command: Some(WatchCommand::Create(WatchCreate {
                key,
                range_end,
                start_revision,
                progress_notify: true,
                fragment: true,
            })),
        };
        // There is room: the channel is new.
        let _ = sender.try_send(create);
        let next = |mut receiver: Receiver<WatchRequest>| async move {
            let request = receiver.recv().await?;
            Some((request, receiver))
        };
        (sender, stream::unfold(receiver, next))
    }

    pub(crate) fn new(
        member: String,
        requests: Sender<WatchRequest>,
        answers: Streaming<WatchResponse>,
        connection: Connection,
    ) -> Self {
        Self {
            member,
            requests,
            answers,
            _connection: connection,
        }
    }

    /// Sends etcd's progress request. The member answers it with a [`WatchReport::Alive`], not with a
    /// [`WatchReport::Progress`].
    pub fn request_progress(&self) {
        let progress = WatchCommand::Progress(WatchProgress {});
        // A full queue holds such a request already.
        let _ = self.requests.try_send(WatchRequest {
            command: Some(progress),
        });
    }

    /// The next report. Cancel safe: a report is not lost when the future is dropped.
    ///
    /// # Errors
    /// [`EtcdError::Compacted`] when the first revision was compacted; else when the member has ended the watch, or the
    /// connection is lost.
    pub async fn next(&mut self) -> Result<WatchReport, EtcdError> {
        loop {
            let answer = self.answers.message().await;
            let answer = answer.map_err(|status| EtcdError::of_status(&self.member, &status))?;
            let answer = answer.ok_or_else(|| self.ended("the watch has ended"))?;
            if let Some(report) = self.report(answer)? {
                return Ok(report);
            }
        }
    }

    fn report(&self, answer: WatchResponse) -> Result<Option<WatchReport>, EtcdError> {
        if answer.compact_revision > 0 {
            let oldest = answer.compact_revision;
            return Err(EtcdError::Compacted { oldest });
        }
        if answer.canceled {
            return Err(self.ended(&answer.cancel_reason));
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        // The answer to a progress request has the watch id -1.
        if answer.watch_id < 0 {
            return Ok(Some(WatchReport::Alive { revision }));
        }
        if answer.created {
            return Ok(None);
        }
        if answer.events.is_empty() {
            return Ok(Some(WatchReport::Progress { up_to: revision }));
        }
        let last = answer.events.last().and_then(|event| event.kv.as_ref());
        let up_to = last.map(|kv| kv.mod_revision).filter(|_| !answer.fragment);
        let events = answer.events;
        Ok(Some(WatchReport::Events { events, up_to }))
    }

    fn ended(&self, reason: &str) -> EtcdError {
        EtcdError::Unreachable {
            member: self.member.clone(),
            reason: reason.to_owned(),
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}
