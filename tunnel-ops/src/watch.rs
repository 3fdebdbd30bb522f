//! Watches files for changes.
//!
//! In: paths, the kernel's notifications, a timer and SIGHUP. Out: one [`Change`] whenever the *content* of
//! a file differs from before: it was written in place, replaced by a rename, deleted, created again, or
//! reached through a symlink that now points elsewhere. Only the hash of the content is stored. Files are
//! read on a blocking thread, since they may be large, or on a slow disk.

mod folders;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use self::folders::{FolderEvents, Folders};

/// How often files are checked without a notification: for file systems that send none, and for when the
/// kernel has no watches left. A revocation takes effect no later than this.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Of so many checks one reads all files; the others read those with another [`Stamp`].
const FULL_CHECK_EACH: u32 = 12;

/// A stamp counts only when the file was last modified this long before: until then the clock of its file
/// system may give the next change the same time (FAT counts in steps of two seconds).
const STAMP_AGE: Duration = Duration::from_secs(3);

/// A burst of events ends after this time without one: long enough for a writer of small files to finish,
/// so that a half-written file is rarely read.
const QUIET: Duration = Duration::from_millis(100);

/// The longest time that a burst may last, so that an edit takes effect within half a second.
const LONGEST_BURST: Duration = Duration::from_millis(400);

/// A change of watched files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    watched: Arc<Mutex<Watched>>,
    events: Arc<FolderEvents>,
    hangup: Signal,
    tick: Interval,
    ticks: u32,
    burst: Option<Burst>,
    /// Whether SIGHUP was received since the last change was returned.
    is_requested: bool,
}

/// Files cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The process cannot listen for the signal.
    #[error("cannot listen for SIGHUP: {0}")]
    Signal(#[source] io::Error),
}

/// The files, as they were last read. Locked while they are read.
#[derive(Debug)]
struct Watched {
    files: Vec<File>,
    folders: Folders,
    /// The files that have changed since the last change was returned.
    changed: Vec<PathBuf>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    content: ContentHash,
    /// The file's size, times and so on; `None` if they may stay equal when its content changes.
    stamp: Option<Stamp>,
}

/// What differs, as a rule, after each change of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    /// Device and inode number.
    inode: (u64, u64),
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    status_changed: (i64, i64),
}

/// Which files a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    All,
    /// Those whose stamp differs.
    Stamps,
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
        let events = folders.events();
        let mut watched = Watched {
            files: Vec::new(),
            folders,
            changed: Vec::new(),
        };
        watched.set_paths(paths);
        Ok(Self {
            watched: Arc::new(Mutex::new(watched)),
            events,
            hangup,
            tick,
            ticks: 0,
            burst: None,
            is_requested: false,
        })
    }

    /// Watches the files that `paths` returns from now on. Those among them that were watched before are
    /// still compared to their last known state. `paths` is called on a blocking thread.
    pub async fn set_paths<P>(&mut self, paths: impl FnOnce() -> P + Send + 'static)
    where
        P: IntoIterator<Item = PathBuf>,
    {
        block(&self.watched, |watched| watched.set_paths(paths())).await;
    }

    /// Returns once a file's content has changed or SIGHUP was received. Cancel safe: no change is lost.
    pub async fn changed(&mut self) -> Change {
        loop {
            let settled = match self.is_requested {
                true => Some(Instant::now()),
                false => self.burst.as_ref().map(Burst::end),
            };
            let check = tokio::select! {
                Some(()) = self.hangup.recv() => {
                    self.is_requested = true;
                    Check::All
                }
                () = self.events.touched() => {
                    let now = Instant::now();
                    self.burst.get_or_insert(Burst { first: now, last: now }).last = now;
                    continue;
                }
                () = reached(settled) => Check::All,
                _ = self.tick.tick(), if self.burst.is_none() => self.timed_check(),
            };
            // `burst` and `is_requested` are reset afterwards, so that a cancelled check is made again.
            block(&self.watched, move |watched| watched.check(check)).await;
            self.burst = None;
            let files = std::mem::take(&mut self.watched.lock().changed);
            let is_requested = std::mem::take(&mut self.is_requested);
            if is_requested || !files.is_empty() {
                return Change {
                    files,
                    is_requested,
                };
            }
        }
    }

    fn timed_check(&mut self) -> Check {
        self.ticks = self.ticks.wrapping_add(1);
        match self.ticks.is_multiple_of(FULL_CHECK_EACH) {
            true => Check::All,
            false => Check::Stamps,
        }
    }
}

/// Runs `work` on a blocking thread, to its end also when this is cancelled.
async fn block(watched: &Arc<Mutex<Watched>>, work: impl FnOnce(&mut Watched) + Send + 'static) {
    let watched = Arc::clone(watched);
    if let Err(error) = spawn_blocking(move || work(&mut watched.lock())).await {
        tracing::error!(%error, "files were not checked for changes");
    }
}

impl Watched {
    fn set_paths(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
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

    /// Reads the files, and notes those that have changed.
    fn check(&mut self, check: Check) {
        self.folders
            .follow(self.files.iter().map(|file| file.path.as_path()));
        for file in &mut self.files {
            let is_known = file.stamp.is_some() && file.stamp == Stamp::of(&file.path);
            if check == Check::Stamps && is_known {
                continue;
            }
            let now = File::now(file.path.clone());
            if now.content != file.content && !self.changed.contains(&now.path) {
                self.changed.push(now.path.clone());
            }
            *file = now;
        }
    }
}

impl File {
    fn now(path: PathBuf) -> Self {
        // Before the content, so that a write in between changes it.
        let stamp = Stamp::of(&path).filter(|stamp| stamp.is_certain(SystemTime::now()));
        let content = read(&path);
        Self {
            path,
            content,
            stamp,
        }
    }
}

impl Stamp {
    /// `None` if there is no file.
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: (found.dev(), found.ino()),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            status_changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Whether the next change gets another stamp.
    fn is_certain(&self, now: SystemTime) -> bool {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = since_1970.map_or(0, |since| since.as_secs());
        let changed = u64::try_from(self.status_changed.0).unwrap_or_default();
        now.saturating_sub(changed) > STAMP_AGE.as_secs()
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
