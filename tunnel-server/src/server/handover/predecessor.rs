//! The new process' end of the hand-over.

use std::{
    env,
    io::{self, Write},
    os::{fd::AsFd, unix::net::UnixStream as StdUnixStream},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use super::{LINE_BYTES, PredecessorOrder, REPORTS, SuccessorReport, VARIABLE, WORDS};
use crate::{registry::HandedRuntimes, server::reload::EmptyList};

/// The process that hands its listeners over to this one.
#[derive(Debug)]
pub struct Predecessor {
    channel: StdUnixStream,
    /// What it knows of the hand-over, beyond what the first version did.
    words: Vec<String>,
}

/// The channel, once something is awaited on it.
pub(in crate::server) struct Channel {
    stream: BufReader<UnixStream>,
    /// Whether the predecessor waits for reports.
    has_reports: bool,
}

impl Predecessor {
    /// The predecessor, if this process was started by one.
    ///
    /// # Errors
    /// When it was, and the channel cannot be used.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let Ok(process) = env::var(VARIABLE) else {
            return Ok(None);
        };
        let channel = io::stdin().as_fd().try_clone_to_owned()?;
        let channel = StdUnixStream::from(channel);
        // Fails if it is anything else.
        channel.local_addr()?;
        let words = words(&env::var(WORDS).unwrap_or_default(), &process);
        Ok(Some(Self { channel, words }))
    }

    /// Whether it knows what has this word.
    pub(super) fn knows(&self, word: &str) -> bool {
        self.words.iter().any(|known| known == word)
    }

    /// Reports that this process has started the program once more.
    pub(super) fn report_started(&self, process: u32) {
        // A predecessor that does not listen any more is no matter.
        let _ = (&self.channel).write_all(&line(&SuccessorReport::Started { process }));
    }

    /// A second handle, for the report of a failure.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn try_clone(&self) -> io::Result<Self> {
        let channel = self.channel.try_clone()?;
        let words = self.words.clone();
        Ok(Self { channel, words })
    }

    /// Reports that this process cannot serve. A predecessor that does not listen any more is no matter.
    pub fn report_failure(&self, reason: &str) {
        let reason = reason.to_owned();
        let _ = (&self.channel).write_all(&line(&SuccessorReport::Failed { reason }));
    }

    /// Reports that this process can serve, and the lists that it has found empty.
    pub(in crate::server) async fn ready(self, empty: Vec<EmptyList>) -> io::Result<Channel> {
        let has_reports = self.knows(REPORTS);
        self.channel.set_nonblocking(true)?;
        let mut stream = BufReader::new(UnixStream::from_std(self.channel)?);
        let ready = SuccessorReport::Ready {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            empty,
            reports: true,
        };
        stream.write_all(&line(&ready)).await?;
        Ok(Channel {
            stream,
            has_reports,
        })
    }
}

impl Channel {
    /// Waits until tunnel clients may be accepted, and returns who holds which runtime, and whose the labels are: nobody and
    /// nobody's, as far as is known, if the predecessor has ended.
    pub(in crate::server) async fn tunnels(&mut self) -> HandedRuntimes {
        match self.next().await {
            Some(PredecessorOrder::Tunnels(runtimes)) => runtimes,
            _ => HandedRuntimes::default(),
        }
    }

    /// Whether the predecessor has the admin listener until it confirms that this process serves.
    pub(in crate::server) fn is_confirmed_later(&self) -> bool {
        self.has_reports
    }

    /// Reports that tunnel clients are accepted, and waits until platform clients may be.
    pub(in crate::server) async fn public(&mut self) {
        self.report(&SuccessorReport::Tunnels).await;
        self.next().await;
    }

    /// Reports that everything is served, and waits until the predecessor does not take its clients back any more.
    pub(in crate::server) async fn confirmed(&mut self) {
        if !self.has_reports {
            return;
        }
        loop {
            self.report(&SuccessorReport::Serving).await;
            if !matches!(self.next().await, Some(PredecessorOrder::Report)) {
                return;
            }
        }
    }

    async fn report(&mut self, report: &SuccessorReport) {
        if self.has_reports {
            // That the predecessor has ended is found by the next order.
            let _ = self.stream.write_all(&line(report)).await;
        }
    }

    /// The next order; `None` if the predecessor has ended.
    async fn next(&mut self) -> Option<PredecessorOrder> {
        let mut line = Vec::new();
        let mut stream = (&mut self.stream).take(LINE_BYTES);
        let read = stream.read_until(b'\n', &mut line).await;
        match read.and_then(|_| Ok(serde_json::from_slice(&line)?)) {
            Ok(order) => Some(order),
            Err(error) => {
                tracing::warn!(%error, "the previous process has ended early, or is of an unknown version: serving everything");
                None
            }
        }
    }
}

/// The words of this process; none if an earlier version has passed on those that it was given.
fn words(text: &str, process: &str) -> Vec<String> {
    let mut words = text.split_ascii_whitespace();
    let is_own = words.next() == Some(process);
    words.filter(|_| is_own).map(str::to_owned).collect()
}

fn line(report: &SuccessorReport) -> Vec<u8> {
    // Plain values, which can always be written.
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_another_process_was_given_do_not_count() {
        assert_eq!(words("17 detach later", "17"), ["detach", "later"]);
        assert_eq!(words("17  later", "17"), ["later"]);
        for of_other in ["", "17", "16 detach", "detach 17"] {
            assert!(words(of_other, "17").is_empty(), "{of_other}");
        }
    }
}
