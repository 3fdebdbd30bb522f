//! Files that change while the program runs.
//!
//! In come paths, the kernel's notifications, a timer and SIGHUP; out comes one [`Change`] whenever
//! the *content* of a file is another than before: written in place, renamed over, gone, come back,
//! or reached through a symlink that now points elsewhere. What a file holds, and what to do with
//! it, is the programs' business: no content is kept here, only its hash.

mod folders;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use self::folders::Folders;

/// How often files are looked at without being told: for file systems that tell nothing, and when
/// the kernel has no watches left.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Without an event for this long, a burst is over: long enough for a writer of small files to
/// finish, so that half a file is rarely seen.
const QUIET: Duration = Duration::from_millis(100);

/// The longest a burst may last: whoever edits is to see the effect within half a second.
const LONGEST_BURST: Duration = Duration::from_millis(400);

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The watched files whose content is another now, as they were named. Empty only when asked
    /// by a signal.
    pub files: Vec<PathBuf>,
    /// Whether SIGHUP asked to look at everything again, changed or not.
    pub is_requested: bool,
}

/// Watches files. The state as of [`FileWatch::new`] is what later states are compared to, so make it before
/// the files are read for use: no edit between the two is missed then.
#[derive(Debug)]
pub struct FileWatch {
    files: Vec<File>,
    folders: Folders,
    hangup: Signal,
    tick: Interval,
    burst: Option<Burst>,
}

/// Files cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The process cannot listen for the signal.
    #[error("cannot listen for SIGHUP: {0}")]
    Signal(#[source] io::Error),
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    content: Content,
}

/// The hash of what a file holds, or why it cannot be read.
type Content = Result<[u8; 32], io::ErrorKind>;

/// Events so close to each other that they are one change.
#[derive(Debug, Clone, Copy)]
struct Burst {
    first: Instant,
    last: Instant,
}

impl FileWatch {
    /// Watches these files, which need not exist yet. From now on SIGHUP no longer ends the process.
    /// Must be called within a runtime with I/O and time.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, WatchError> {
        Self::with_folders(paths, Folders::new())
    }

    fn with_folders(
        paths: impl IntoIterator<Item = PathBuf>,
        folders: Folders,
    ) -> Result<Self, WatchError> {
        let hangup = signal(SignalKind::hangup()).map_err(WatchError::Signal)?;
        let mut tick = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Self {
            files: Vec::new(),
            folders,
            hangup,
            tick,
            burst: None,
        };
        watch.set_paths(paths);
        Ok(watch)
    }

    /// Watches these files from now on. Those among them that were watched before are still
    /// compared to their last known state.
    pub fn set_paths(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut before = std::mem::take(&mut self.files);
        let paths: Vec<PathBuf> = paths.into_iter().collect();
        // Watched before they are read: an edit in between is read, or told, or both.
        self.folders.follow(paths.iter().map(PathBuf::as_path));
        for path in paths {
            let known = before.iter().position(|file| file.path == path);
            self.files.push(match known {
                Some(index) => before.swap_remove(index),
                None => File::now(path),
            });
        }
    }

    /// Returns once a file's content has changed, or SIGHUP came. May be dropped and called again: no
    /// change is lost.
    pub async fn changed(&mut self) -> Change {
        loop {
            let settled = self.burst.as_ref().map(Burst::end);
            tokio::select! {
                Some(()) = self.hangup.recv() => {
                    return Change { files: self.look(), is_requested: true };
                }
                () = self.folders.touched() => {
                    let now = Instant::now();
                    self.burst.get_or_insert(Burst { first: now, last: now }).last = now;
                    continue;
                }
                () = reached(settled) => {}
                _ = self.tick.tick(), if self.burst.is_none() => {}
            }
            let files = self.look();
            if !files.is_empty() {
                return Change {
                    files,
                    is_requested: false,
                };
            }
        }
    }

    /// Reads all files on this thread: configuration is small, and this is seldom.
    fn look(&mut self) -> Vec<PathBuf> {
        self.burst = None;
        self.folders
            .follow(self.files.iter().map(|file| file.path.as_path()));
        let mut changed = Vec::new();
        for file in &mut self.files {
            let content = read(&file.path);
            if content != file.content {
                file.content = content;
                changed.push(file.path.clone());
            }
        }
        changed
    }
}

impl File {
    fn now(path: PathBuf) -> Self {
        let content = read(&path);
        Self { path, content }
    }
}

impl Burst {
    fn end(&self) -> Instant {
        (self.last + QUIET).min(self.first + LONGEST_BURST)
    }
}

fn read(path: &Path) -> Content {
    let content = || {
        // What is no regular file could wait for a writer, or never end.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut hash = Sha256::new();
        io::copy(&mut std::fs::File::open(path)?, &mut HashWriter(&mut hash))?;
        Ok(hash.finalize().into())
    };
    content().map_err(|error: io::Error| error.kind())
}

/// Lets a file of any size be copied into its hash.
struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn reached(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
