//! Watches files for changes.
//!
//! In: paths, the kernel's notifications, a timer and SIGHUP. Out: one [`Change`] whenever the *content* of
//! a file differs from before: it was written in place, replaced by a rename, deleted, created again, or
//! reached through a symlink that now points elsewhere. Only the hash of the content is stored.

mod folders;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use self::folders::Folders;

/// How often files are checked without a notification: for file systems that send none, and for when the
/// kernel has no watches left.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A burst of events ends after this time without one: long enough for a writer of small files to finish,
/// so that a half-written file is rarely read.
const QUIET: Duration = Duration::from_millis(100);

/// The longest time that a burst may last, so that an edit takes effect within half a second.
const LONGEST_BURST: Duration = Duration::from_millis(400);

/// A change of watched files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The watched files whose content has changed, by the paths that were given. Empty only if requested
    /// by a signal.
    pub files: Vec<PathBuf>,
    /// Whether SIGHUP requests to read all files again, changed or not.
    pub is_requested: bool,
}

/// Watches files. Later states are compared with the state at [`FileWatch::new`], so create it before
/// reading the files for use: then no edit between the two is missed.
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
    content: ContentHash,
}

/// The hash of a file's content, or why it cannot be read.
type ContentHash = Result<[u8; 32], io::ErrorKind>;

/// Events in quick succession, which count as one change.
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
        let mut tick = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
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
        // Watched before they are read, so that an edit in between is read, or notified, or both.
        self.folders.follow(paths.iter().map(PathBuf::as_path));
        for path in paths {
            let known = before.iter().position(|file| file.path == path);
            self.files.push(match known {
                Some(index) => before.swap_remove(index),
                None => File::now(path),
            });
        }
    }

    /// Returns once a file's content has changed or SIGHUP was received. Cancel safe: no change is lost.
    pub async fn changed(&mut self) -> Change {
        loop {
            let settled = self.burst.as_ref().map(Burst::end);
            tokio::select! {
                Some(()) = self.hangup.recv() => {
                    return Change { files: self.check_files(), is_requested: true };
                }
                () = self.folders.touched() => {
                    let now = Instant::now();
                    self.burst.get_or_insert(Burst { first: now, last: now }).last = now;
                    continue;
                }
                () = reached(settled) => {}
                _ = self.tick.tick(), if self.burst.is_none() => {}
            }
            let files = self.check_files();
            if !files.is_empty() {
                return Change {
                    files,
                    is_requested: false,
                };
            }
        }
    }

    /// Reads all files and returns those that have changed. Blocks this thread: the files are small and
    /// this is rare.
    fn check_files(&mut self) -> Vec<PathBuf> {
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

fn read(path: &Path) -> ContentHash {
    let content = || {
        // Reading other kinds of file could block, or never end.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut hash = Sha256::new();
        io::copy(&mut std::fs::File::open(path)?, &mut HashWriter(&mut hash))?;
        Ok(hash.finalize().into())
    };
    content().map_err(|error: io::Error| error.kind())
}

/// Feeds a file of any size into a hash.
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
