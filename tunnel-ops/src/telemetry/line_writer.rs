//! Writes log lines to an output from a separate thread.
//!
//! In: whole lines from any thread. Out: the lines in order, many in one system call. The queue is bounded:
//! an output that stalls or fails causes the loss of lines, which are reported, and never blocks a connection.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most bytes in the queue: a tenth of a second of some 100,000 access-log lines each second.
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Bytes in the queue at which gathered lines are written without waiting for [`GATHERING`].
const FULL_BATCH_BYTES: usize = MAX_QUEUED_BYTES / 16;

/// Longest time that a gathered line waits for others: a person who follows the log does not notice it, and a busy
/// program wakes the writing thread ten times a second instead of once for each line.
const GATHERING: Duration = Duration::from_millis(100);

/// Longest time that the end of the program waits for the last lines, so that a stalled reader cannot keep
/// it alive.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The owner of the writing thread. Dropping it writes the queued lines.
#[derive(Debug)]
pub(super) struct LineWriter {
    queue: LineQueue,
}

/// The lines that the thread writes next. As [`Write`], each `write` is one whole line, written as soon as possible.
#[derive(Debug, Clone)]
pub(super) struct LineQueue {
    shared: Arc<Shared>,
}

/// Lines that were not written.
#[derive(Debug)]
pub(super) struct LostLines {
    /// How many.
    pub(super) count: u64,
    /// The failure of the output; `None` if the queue was full.
    pub(super) error: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the thread has to act before [`GATHERING`] has passed.
    work: Condvar,
    /// Notified when the writing thread has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queued: Vec<u8>,
    /// Lines that found the queue full, since the last report.
    lost: u64,
    /// Whether a queued line is to be written as soon as possible.
    urgent: bool,
    closing: bool,
    ended: bool,
}

impl LineWriter {
    /// Starts the thread. `report` is called on it after lines were lost.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        report: impl FnMut(&LostLines) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writing = Arc::clone(&shared);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                writing.write_until_closed(output, report);
                writing.state.lock().ended = true;
                writing.ended.notify_all();
            })?;
        let queue = LineQueue { shared };
        Ok(Self { queue })
    }

    pub(super) fn queue(&self) -> &LineQueue {
        &self.queue
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        let shared = &self.queue.shared;
        let mut state = shared.state.lock();
        state.closing = true;
        shared.work.notify_one();
        shared
            .ended
            .wait_while_for(&mut state, |state| !state.ended, CLOSE_TIME);
    }
}

impl LineQueue {
    /// Queues a whole line, to be written together with others within [`GATHERING`]. Returns whether there was room
    /// for it.
    pub(super) fn gather(&self, line: &[u8]) -> bool {
        self.push(line, false)
    }

    fn push(&self, line: &[u8], urgent: bool) -> bool {
        let mut state = self.shared.state.lock();
        let before = state.queued.len();
        let length = before + line.len();
        if length > MAX_QUEUED_BYTES || state.ended {
            state.lost += 1;
            return false;
        }
        state.queued.extend_from_slice(line);
        let becomes_urgent = urgent && !state.urgent;
        state.urgent |= urgent;
        let fills_a_batch = before < FULL_BATCH_BYTES && length >= FULL_BATCH_BYTES;
        drop(state);
        if becomes_urgent || fills_a_batch || before == 0 {
            self.shared.work.notify_one();
        }
        true
    }
}

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line, true);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn write_until_closed(&self, mut output: impl Write, mut report: impl FnMut(&LostLines)) {
        let mut batch = Vec::new();
        // Whether the last byte that was written is within a line.
        let mut is_torn = false;
        while let Some(lost) = self.next_batch(&mut batch) {
            if lost > 0 {
                report(&LostLines {
                    count: lost,
                    error: None,
                });
            }
            let written = match is_torn {
                true => output.write_all(b"\n").map_err(|error| (0, error)),
                false => Ok(()),
            };
            is_torn &= written.is_err();
            if let Err((bytes, error)) = written.and_then(|()| write_all(&mut output, &batch)) {
                let (written, left) = batch.split_at(bytes);
                is_torn |= written.last().is_some_and(|byte| *byte != b'\n');
                report(&LostLines {
                    count: left.iter().filter(|byte| **byte == b'\n').count() as u64,
                    error: Some(error),
                });
            }
            batch.clear();
            batch.shrink_to(FULL_BATCH_BYTES);
        }
    }

    /// Waits for lines, and moves them into `batch`, which is empty. Returns how many were lost since the last batch;
    /// `None` when the writer is closing and no line is left.
    fn next_batch(&self, batch: &mut Vec<u8>) -> Option<u64> {
        let mut state = self.state.lock();
        self.work.wait_while(&mut state, |state| {
            state.queued.is_empty() && !state.closing
        });
        self.work.wait_while_for(
            &mut state,
            |state| !state.urgent && !state.closing && state.queued.len() < FULL_BATCH_BYTES,
            GATHERING,
        );
        if state.queued.is_empty() {
            return None;
        }
        mem::swap(&mut state.queued, batch);
        state.urgent = false;
        Some(mem::take(&mut state.lost))
    }
}

/// As [`Write::write_all`]; an error comes with the number of bytes that were written before.
fn write_all(output: &mut impl Write, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while let Some(left) = bytes.get(written..).filter(|left| !left.is_empty()) {
        match output.write(left) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::time::Instant;

    use super::*;

    /// An output that reports each write, and blocks it until the test allows it.
    struct Gate {
        written: Sender<Vec<u8>>,
        allowed: Receiver<()>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written
                .send(bytes.to_vec())
                .map_err(io::Error::other)?;
            let _ = self.allowed.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Gated {
        writer: LineWriter,
        written: Receiver<Vec<u8>>,
        allow: Sender<()>,
        lost: Receiver<u64>,
    }

    fn gated() -> Gated {
        let ((sender, written), (allow, allowed)) = (channel(), channel());
        let (report, lost) = channel();
        let gate = Gate {
            written: sender,
            allowed,
        };
        let report = move |lost: &LostLines| report.send(lost.count).unwrap();
        Gated {
            writer: LineWriter::start(gate, report).unwrap(),
            written,
            allow,
            lost,
        }
    }

    #[test]
    fn queued_lines_are_written_together_and_in_order() {
        let gated = gated();
        let mut queue = gated.writer.queue().clone();
        queue.write_all(b"one\n").unwrap();
        assert_eq!(gated.written.recv().unwrap(), b"one\n");
        assert!(queue.gather(b"two\n"));
        queue.clone().write_all(b"three\n").unwrap();
        gated.allow.send(()).unwrap();
        assert_eq!(gated.written.recv().unwrap(), b"two\nthree\n");
        drop(gated.allow);
    }

    #[test]
    fn gathered_lines_wait_for_others_and_not_for_ever() {
        let gated = gated();
        drop(gated.allow);
        let begun = Instant::now();
        assert!(gated.writer.queue().gather(b"one\n"));
        assert!(gated.writer.queue().gather(b"two\n"));
        assert_eq!(gated.written.recv().unwrap(), b"one\ntwo\n");
        assert!(begun.elapsed() >= GATHERING / 2);
        // An urgent line takes along what was gathered before it.
        assert!(gated.writer.queue().gather(b"three\n"));
        gated.writer.queue().clone().write_all(b"four\n").unwrap();
        assert_eq!(gated.written.recv().unwrap(), b"three\nfour\n");
    }

    #[test]
    fn lines_lost_to_a_stalled_reader_are_counted() {
        let gated = gated();
        let mut queue = gated.writer.queue().clone();
        queue.write_all(b"one\n").unwrap();
        gated.written.recv().unwrap();
        let long = vec![b'x'; MAX_QUEUED_BYTES / 2];
        let taken: Vec<_> = (0..5).map(|_| queue.gather(&long)).collect();
        assert_eq!(taken, [true, true, false, false, false]);
        drop(gated.allow);
        assert_eq!(gated.written.recv().unwrap().len(), MAX_QUEUED_BYTES);
        queue.write_all(b"next\n").unwrap();
        assert_eq!(gated.written.recv().unwrap(), b"next\n");
        drop(gated.writer);
        assert_eq!(gated.lost.iter().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (report, lost) = channel();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let report = move |lost: &LostLines| {
            let kind = lost.error.as_ref().map(io::Error::kind);
            report.send((lost.count, kind)).unwrap();
        };
        let writer = LineWriter::start(full, report).unwrap();
        assert!(writer.queue().gather(b"one\n"));
        assert!(writer.queue().gather(b"two\n"));
        let full = Some(io::ErrorKind::StorageFull);
        assert_eq!(lost.recv().unwrap(), (2, full));
    }

    #[test]
    fn the_last_lines_are_written() {
        let gated = gated();
        drop(gated.allow);
        assert!(gated.writer.queue().gather(b"last\n"));
        drop(gated.writer);
        assert_eq!(gated.written.recv().unwrap(), b"last\n");
    }

    /// A disk with room for so many bytes.
    struct Disk {
        room: Arc<Mutex<usize>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut room = self.room.lock();
            if *room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let count = bytes.len().min(*room);
            *room -= count;
            self.written.lock().extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_line_is_joined_to_one_that_a_full_disk_has_cut() {
        let (room, written) = (Arc::new(Mutex::new(9)), Arc::<Mutex<Vec<u8>>>::default());
        let disk = Disk {
            room: Arc::clone(&room),
            written: Arc::clone(&written),
        };
        let (report, lost) = channel();
        let writer = LineWriter::start(disk, move |lost| report.send(lost.count).unwrap()).unwrap();
        let mut queue = writer.queue().clone();
        for line in ["one 1\n", "two 2\n"] {
            queue.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(lost.recv(), Ok(1));
        // Nothing is written, not even the end of the line.
        queue.write_all(b"three\n").unwrap();
        assert_eq!(lost.recv(), Ok(1));
        *room.lock() = 100;
        queue.write_all(b"four\n").unwrap();
        drop(writer);
        assert_eq!(*written.lock(), b"one 1\ntwo\nfour\n");
    }
}
