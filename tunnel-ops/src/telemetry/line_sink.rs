//! Where the lines of the access log go: standard error, a file, or nowhere.
//!
//! In: whole lines from any thread, and a target that can be replaced at run time. Out: the lines, gathered, at the
//! target. Log rotation: the program never renames a file, and opens its file again after another program has moved or
//! deleted it, without a signal.
//! Lines that are lost are counted and reported in the log.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntCounter;
use tokio::time::Instant;

use super::LogFormat;
use super::line_writer::{LineQueue, LineWriter, LostLines};
use crate::config_value::ValueError;

/// Readable by the group, so that a collector of logs needs no more rights than that.
const FILE_MODE: u32 = 0o640;

/// Time between two reports that lines cannot be written, so that a full disk does not fill the log too.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Where an access log is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Nowhere.
    Off,
    /// To standard error, among the lines of the log.
    #[default]
    Stderr,
    /// To the end of the file of this absolute path, which is made if there is none.
    File(PathBuf),
}

/// A file for an access log cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the access log {}: {source}", .path.display())]
pub struct AccessLogError {
    path: PathBuf,
    source: io::Error,
}

/// Takes whole lines, from any thread, and never blocks. Clones share their target.
#[derive(Debug, Clone)]
pub struct LineSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    format: LogFormat,
    output: ArcSwap<LineOutput>,
    lost: Arc<OnceLock<IntCounter>>,
}

/// Takes a whole line.
type LineFunction = Box<dyn Fn(&[u8]) + Send + Sync>;

/// An opened target.
pub(super) enum LineOutput {
    Off,
    Stderr(LineQueue),
    File(PathBuf, LineWriter),
    Function(LineFunction),
}

impl LineSink {
    /// A sink without a target, for programs and tests without an access log.
    #[must_use]
    pub fn off() -> Self {
        Self::new(LogFormat::default(), LineOutput::Off)
    }

    /// A sink that calls `take` with each line, on the thread that made it: for programs that show the lines
    /// themselves, and for tests.
    #[must_use]
    pub fn to_function(format: LogFormat, take: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self::new(format, LineOutput::Function(Box::new(take)))
    }

    pub(super) fn new(format: LogFormat, output: LineOutput) -> Self {
        Self {
            shared: Arc::new(Shared {
                format,
                output: ArcSwap::from_pointee(output),
                lost: Arc::default(),
            }),
        }
    }

    /// How lines are to be written.
    #[must_use]
    pub fn format(&self) -> LogFormat {
        self.shared.format
    }

    /// Whether lines have a target.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(**self.shared.output.load(), LineOutput::Off)
    }

    /// Queues a whole line. It is dropped without a target, and lost if the target is too slow.
    pub fn write(&self, line: &[u8]) {
        let is_taken = match &**self.shared.output.load() {
            LineOutput::Off => true,
            LineOutput::Stderr(queue) => queue.gather(line),
            LineOutput::File(_, writer) => writer.queue().gather(line),
            LineOutput::Function(take) => {
                take(line);
                true
            }
        };
        if !is_taken {
            count(&self.shared.lost, 1);
        }
    }

    /// Counts lost lines in this counter from now on; a second counter is ignored.
    pub fn count_lost(&self, counter: IntCounter) {
        let _ = self.shared.lost.set(counter);
    }

    /// Opens a target; `None` if it is the one that is open.
    pub(super) fn open(
        &self,
        target: &AccessLogTarget,
        stderr: &LineQueue,
    ) -> Result<Option<LineOutput>, AccessLogError> {
        if self.shared.output.load().is(target) {
            return Ok(None);
        }
        Ok(Some(match target {
            AccessLogTarget::Off => LineOutput::Off,
            AccessLogTarget::Stderr => LineOutput::Stderr(stderr.clone()),
            AccessLogTarget::File(path) => {
                let writer = self.write_file(path).map_err(|source| AccessLogError {
                    path: path.clone(),
                    source,
                })?;
                LineOutput::File(path.clone(), writer)
            }
        }))
    }

    fn write_file(&self, path: &Path) -> io::Result<LineWriter> {
        let lost = Arc::clone(&self.shared.lost);
        let path = path.to_owned();
        let file = MovableFile::open(path.clone())?;
        let mut last_report = None;
        LineWriter::start(file, move |lines| {
            if lines.error.is_some() {
                count(&lost, lines.count);
            }
            let now = Instant::now();
            if last_report.is_none_or(|last| now - last >= REPORT_INTERVAL) {
                last_report = Some(now);
                report_lost(&path, lines);
            }
        })
    }

    /// Writes to this target from now on.
    pub(super) fn replace(&self, output: LineOutput) {
        self.shared.output.store(Arc::new(output));
    }

    /// Writes what is queued, and drops all lines from now on.
    pub(super) fn close(&self) {
        self.replace(LineOutput::Off);
    }
}

impl LineOutput {
    /// Whether this is what opening `target` would give.
    fn is(&self, target: &AccessLogTarget) -> bool {
        match (self, target) {
            (Self::Off, AccessLogTarget::Off) | (Self::Stderr(_), AccessLogTarget::Stderr) => true,
            (Self::File(path, _), AccessLogTarget::File(wanted)) => path == wanted,
            _ => false,
        }
    }
}

impl fmt::Debug for LineOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("Off"),
            Self::Stderr(_) => f.write_str("Stderr"),
            Self::File(path, _) => f.debug_tuple("File").field(path).finish(),
            Self::Function(_) => f.write_str("Function"),
        }
    }
}

fn count(counter: &OnceLock<IntCounter>, lines: u64) {
    if let Some(counter) = counter.get() {
        counter.inc_by(lines);
    }
}

fn report_lost(path: &Path, lines: &LostLines) {
    let (path, lost) = (path.display(), lines.count);
    match &lines.error {
        Some(error) => tracing::error!(%path, lost, %error, "cannot write the access log"),
        None => {
            tracing::error!(%path, lost, "lines of the access log were lost: its file is too slow")
        }
    }
}

/// A file that is opened again when its path leads to another file, or to none.
#[derive(Debug)]
struct MovableFile {
    path: PathBuf,
    file: File,
    /// Device and inode of the open file.
    identity: (u64, u64),
}

impl MovableFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .append(true)
            .create(true)
            .mode(FILE_MODE)
            .open(&path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            path,
            file,
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    fn was_moved(&self) -> bool {
        let now = std::fs::metadata(&self.path);
        !now.is_ok_and(|now| (now.dev(), now.ino()) == self.identity)
    }
}

impl Write for MovableFile {
    /// Writes to the file that the path leads to now; to the one before, if that cannot be opened.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.was_moved()
            && let Ok(next) = Self::open(self.path.clone())
        {
            *self = next;
        }
        self.file.write(lines)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl FromStr for AccessLogTarget {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Self::Off),
            "stderr" => Ok(Self::Stderr),
            // An absolute one, so that it depends on no folder, and a slip in a word is no file.
            path if path.starts_with('/') => Ok(Self::File(path.into())),
            _ => Err(ValueError::new(
                "expected `stderr`, `off`, or the absolute path of a file",
            )),
        }
    }
}

impl fmt::Display for AccessLogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

crate::text_value!(AccessLogTarget);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_target_is_a_word_or_a_path() {
        for text in ["off", "stderr", "/var/log/access.log"] {
            let target: AccessLogTarget = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
        }
        for text in ["", "false", "true", "stdout", "./access.log"] {
            assert!(text.parse::<AccessLogTarget>().is_err(), "{text}");
        }
    }

    #[test]
    fn lines_after_a_move_are_in_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let mut file = MovableFile::open(path.clone()).unwrap();
        file.write_all(b"one\n").unwrap();
        fs::rename(&path, &moved).unwrap();
        file.write_all(b"two\n").unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(b"three\n").unwrap();
        assert_eq!(fs::read(&moved).unwrap(), b"one\n");
        assert_eq!(fs::read(&path).unwrap(), b"three\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, FILE_MODE);
    }

    #[test]
    fn a_path_that_cannot_be_opened_again_does_not_lose_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, moved) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir(&inner).unwrap();
        let mut file = MovableFile::open(inner.join("log")).unwrap();
        fs::rename(&inner, &moved).unwrap();
        file.write_all(b"one\n").unwrap();
        assert_eq!(fs::read(moved.join("log")).unwrap(), b"one\n");
    }
}
