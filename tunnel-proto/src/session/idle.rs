//! Idle streams of a session, which carry its next exchanges.

use super::mux::MuxStream;
use crate::limits;

/// Idle streams, each ready to carry the next exchange.
#[derive(Default)]
pub(crate) struct IdleStreams {
    /// The most recently used last.
    streams: Vec<MuxStream>,
    /// Number of streams at the front that were not used since the last trim.
    untouched: usize,
}

impl IdleStreams {
    /// Takes the most recently used stream. Streams that were reset while idle, or on which unsolicited
    /// bytes arrived, are dropped.
    pub(crate) fn take(&mut self) -> Option<MuxStream> {
        let taken = loop {
            let Some(stream) = self.streams.pop() else {
                break None;
            };
            if stream.is_quiet() {
                break Some(stream);
            }
        };
        self.untouched = self.untouched.min(self.streams.len());
        taken
    }

    /// Keeps an accepted stream without an open exchange, or ends it if there are enough.
    pub(crate) fn put(&mut self, stream: MuxStream) {
        if self.streams.len() < limits::IDLE_STREAMS && !stream.is_reset() {
            self.streams.push(stream);
        } else {
            stream.finish();
        }
    }

    /// Ends the streams that were not used since the last call.
    pub(crate) fn trim(&mut self) {
        for stream in self.streams.drain(..self.untouched) {
            stream.finish();
        }
        self.untouched = self.streams.len();
    }

    /// Drops all streams of a session that has ended.
    pub(crate) fn clear(&mut self) {
        self.streams = Vec::new();
        self.untouched = 0;
    }
}
