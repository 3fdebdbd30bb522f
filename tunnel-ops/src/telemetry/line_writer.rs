//! Writes log lines to standard error from a separate thread.
//!
//! In: whole lines from any thread. Out: the lines in order, many in one system call. The queue is bounded:
//! a stalled reader causes the loss of lines, which are counted, and never blocks a connection.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most bytes in the queue: some thousand lines, enough for a burst, and few enough to lose.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// Longest time that the exit of the program waits for the last lines, so that a stalled reader cannot keep
/// it alive.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The owner of the writing thread. Dropping it writes the queued lines.
#[derive(Debug)]
pub(super) struct LineWriter {
    shared: Arc<Shared>,
}

/// The writer for log events. Each `write` is one whole line.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when lines are queued, or the writer is closing.
    work: Condvar,
    /// Notified when the writing thread has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    lost_lines: u64,
    closing: bool,
    ended: bool,
}

impl LineWriter {
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writing = Arc::clone(&shared);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                writing.write_all_lines(output);
                writing.state.lock().ended = true;
                writing.ended.notify_all();
            })?;
        Ok(Self { shared })
    }

    pub(super) fn lines(&self) -> Lines {
        Lines {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        self.shared.work.notify_one();
        self.shared
            .ended
            .wait_while_for(&mut state, |state| !state.ended, CLOSE_TIME);
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.state.lock();
        if state.waiting.len() + line.len() > MAX_WAITING_BYTES {
            state.lost_lines += 1;
            return Ok(line.len());
        }
        // If the queue was not empty, the thread was notified before.
        let idle = state.waiting.is_empty();
        state.waiting.extend_from_slice(line);
        drop(state);
        if idle {
            self.shared.work.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn write_all_lines(&self, mut output: impl Write) {
        let mut taken = Vec::new();
        loop {
            let mut state = self.state.lock();
            self.work.wait_while(&mut state, |state| {
                state.waiting.is_empty() && !state.closing
            });
            if state.waiting.is_empty() {
                return;
            }
            mem::swap(&mut state.waiting, &mut taken);
            let lost = mem::take(&mut state.lost_lines);
            drop(state);
            // A failure of standard error cannot be reported anywhere.
            let _ = output.write_all(&taken);
            if lost > 0 {
                let _ = writeln!(
                    output,
                    "{lost} log lines were lost: their reader is too slow"
                );
            }
            taken.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An output that reports each write, and blocks it until the test allows it.
    struct Gate {
        seen: mpsc::Sender<Vec<u8>>,
        allowed: mpsc::Receiver<()>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.seen.send(bytes.to_vec()).map_err(io::Error::other)?;
            let _ = self.allowed.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (LineWriter, mpsc::Receiver<Vec<u8>>, mpsc::Sender<()>) {
        let ((seen, shown), (allow, allowed)) = (mpsc::channel(), mpsc::channel());
        (
            LineWriter::start(Gate { seen, allowed }).unwrap(),
            shown,
            allow,
        )
    }

    #[test]
    fn queued_lines_are_written_together_and_in_order() {
        let (writer, shown, allow) = gated();
        let mut lines = writer.lines();
        lines.write_all(b"one\n").unwrap();
        assert_eq!(shown.recv().unwrap(), b"one\n");
        lines.write_all(b"two\n").unwrap();
        lines.clone().write_all(b"three\n").unwrap();
        allow.send(()).unwrap();
        assert_eq!(shown.recv().unwrap(), b"two\nthree\n");
        drop(allow);
    }

    #[test]
    fn lines_lost_to_a_stalled_reader_are_counted() {
        let (writer, shown, allow) = gated();
        let mut lines = writer.lines();
        lines.write_all(b"one\n").unwrap();
        shown.recv().unwrap();
        let long = vec![b'x'; MAX_WAITING_BYTES / 2];
        for _ in 0..5 {
            lines.write_all(&long).unwrap();
        }
        drop(allow);
        assert_eq!(shown.recv().unwrap().len(), MAX_WAITING_BYTES);
        lines.write_all(b"next\n").unwrap();
        let rest: Vec<u8> = {
            drop(writer);
            shown.iter().flatten().collect()
        };
        let reported = "3 log lines were lost: their reader is too slow\nnext\n";
        assert_eq!(rest, reported.as_bytes(), "the loss is reported once");
    }

    #[test]
    fn the_last_lines_are_written() {
        let (writer, shown, allow) = gated();
        drop(allow);
        writer.lines().write_all(b"last\n").unwrap();
        drop(writer);
        assert_eq!(shown.recv().unwrap(), b"last\n");
    }
}
