//! Child processes: starts them, reads their output, sends signals, measures them, and ends them.
//!
//! A [`Program`] is killed and waited for when it is dropped, so that no test leaves one behind.
//! Its output is in its record, line by line; a failing test shows the end of the record.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::{
    deadline::{SOON, eventually, within},
    record::Record,
    secrets,
};

/// A child process.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: Arc<Record<OutputLine>>,
    /// How many lines [`Program::next_line`] has read.
    read: usize,
}

/// A line that a program wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputLine {
    /// To standard output.
    Out(String),
    /// To standard error.
    Err(String),
}

/// A program that ran to its end.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

/// A process's resident memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub bytes: u64,
    /// The most it ever was.
    pub peak_bytes: u64,
}

impl OutputLine {
    /// The line itself.
    pub fn text(&self) -> &str {
        match self {
            Self::Out(text) | Self::Err(text) => text,
        }
    }
}

impl Program {
    /// Starts `command`; `name` is for messages.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Self {
        forget_settings(command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{name}: {command:?}: {error}"));
        let log = Arc::new(Record::default());
        let open = Arc::new(AtomicUsize::new(2));
        listen(
            child.stdout.take().unwrap(),
            OutputLine::Out,
            log.clone(),
            open.clone(),
        );
        listen(
            child.stderr.take().unwrap(),
            OutputLine::Err,
            log.clone(),
            open,
        );
        Self {
            name: name.to_owned(),
            child,
            log,
            read: 0,
        }
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything it wrote.
    pub fn log(&self) -> &Record<OutputLine> {
        &self.log
    }

    /// Waits for a line that contains `pattern`.
    ///
    /// # Panics
    /// When there is none after `limit`, or the program ends without one.
    pub async fn wait_for_line(&self, pattern: &str, limit: Duration) -> String {
        let what = format!("{} to write {pattern:?}", self.name);
        let matching = |line: &OutputLine| {
            line.text()
                .contains(pattern)
                .then(|| line.text().to_owned())
        };
        self.log.wait_for(&what, limit, matching).await
    }

    /// Waits for a line that contains `pattern`, after the one that the last call found.
    ///
    /// # Panics
    /// When there is none after [`SOON`], or the program ends without one.
    pub async fn next_line(&mut self, pattern: &str) -> String {
        let what = format!("{} to write {pattern:?}", self.name);
        let mut looked_at = 0;
        let next = |line: &OutputLine| {
            looked_at += 1;
            let text = line.text();
            text.contains(pattern).then(|| text.to_owned())
        };
        let log = self.log.clone();
        let found = log.wait_for_after(self.read, &what, SOON, next).await;
        self.read += looked_at;
        found
    }

    /// The whole output, line by line.
    pub fn text(&self) -> String {
        let lines = self.log.all();
        lines
            .iter()
            .map(|line| format!("{}\n", line.text()))
            .collect()
    }

    /// The files that it holds open for writing.
    pub fn writable_files(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.id());
        let files = fs::read_dir(&folder).unwrap().flatten();
        let writable = files.filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            let number = file.file_name().into_string().ok()?;
            let info = format!("/proc/{}/fdinfo/{number}", self.id());
            let info = fs::read_to_string(info).ok()?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
            let mode = u32::from_str_radix(flags.trim(), 8).unwrap() & 0o3;
            let is_file = target.starts_with("/") && !target.starts_with("/dev");
            (is_file && mode != 0).then(|| target.display().to_string())
        });
        writable.collect()
    }

    /// Sends SIGTERM and waits for the end. Returns the exit code; `None` if a signal ended it.
    pub async fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait_exit(SOON).await.code()
    }

    /// Resident memory.
    pub fn memory(&self) -> Memory {
        let status = self.proc_file("status");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            let kilobytes = line
                .split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap();
            kilobytes * 1024
        };
        Memory {
            bytes: field("VmRSS:"),
            peak_bytes: field("VmHWM:"),
        }
    }

    /// Resident memory, of which the peak counts from now on.
    pub fn forget_peak(&self) -> Memory {
        // Resets VmHWM: `clear_refs` of proc(5).
        fs::write(format!("/proc/{}/clear_refs", self.id()), "5").unwrap();
        self.memory()
    }

    /// The time that its threads have run, in user and system mode, to a hundredth of a second.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // Behind the name in brackets, which may hold spaces: fields 14 and 15 of proc(5), in units of USER_HZ.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let times = fields.split_whitespace().skip(11).take(2);
        times
            .map(|ticks| Duration::from_millis(10) * ticks.parse().unwrap())
            .sum()
    }

    /// How many files and sockets it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id()))
            .unwrap()
            .count()
    }

    /// Waits until it has no more than `most` files and sockets open.
    pub async fn wait_descriptors(&self, most: usize) {
        let what = format!("{} to have at most {most} descriptors", self.name);
        let ask = async || (self.descriptors() <= most).then_some(());
        eventually(SOON, &what, ask).await;
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }

    /// Waits until it has ended by itself or by a signal.
    ///
    /// # Panics
    /// When it is still there after `limit`.
    pub async fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} to end", self.name);
        // Both of its outputs are closed by its end, so what follows does not block for long.
        self.log.wait_closed(&what, limit).await;
        self.child.wait().unwrap()
    }

    /// As [`Program::wait_exit`], of a program that has started another one, which writes to the same outputs.
    ///
    /// # Panics
    /// When it is still there after `limit`.
    pub async fn wait_exit_alone(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} to end", self.name);
        eventually(limit, &what, async || self.child.try_wait().unwrap()).await
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    fn proc_file(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.id());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        let name = &self.name;
        if thread::panicking() {
            eprintln!("--- {name} wrote {}", self.log.tail());
        } else if is_ours(name) {
            let lines = self.log.all();
            let lines: Vec<_> = lines.iter().map(OutputLine::text).collect();
            secrets::assert_hidden(name, &lines.join("\n"));
        }
    }
}

/// Whether a program with this name is one of this project, which must keep secrets.
fn is_ours(name: &str) -> bool {
    name.starts_with("tunnel-") || name == "demo"
}

/// Removes environment variables that would change a test: the machine's proxies and tracing, and a developer's settings of the
/// programs. Variables that the test itself has set stay.
fn forget_settings(command: &mut Command) {
    let set_by_test: Vec<_> = command
        .get_envs()
        .map(|(name, _)| name.to_owned())
        .collect();
    for (variable, _) in env::vars_os() {
        let text = variable.to_string_lossy().to_ascii_lowercase();
        let matters = text.ends_with("_proxy")
            || ["tunnel_", "otel_"]
                .iter()
                .any(|start| text.starts_with(start));
        if matters && !set_by_test.contains(&variable) {
            command.env_remove(&variable);
        }
    }
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started, or has not ended after `limit`.
pub async fn run(name: &str, mut command: Command, limit: Duration) -> Ended {
    forget_settings(&mut command);
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = within(limit, &format!("{name} to end"), command.output()).await;
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if is_ours(name) {
            secrets::assert_hidden(name, &text);
        }
        text
    };
    Ended {
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

fn listen(
    output: impl Read + Send + 'static,
    line: impl Fn(String) -> OutputLine + Send + 'static,
    log: Arc<Record<OutputLine>>,
    open: Arc<AtomicUsize>,
) {
    thread::spawn(move || {
        for text in BufReader::new(output).split(b'\n') {
            let Ok(text) = text else { break };
            log.push(line(String::from_utf8_lossy(&text).into_owned()));
        }
        if open.fetch_sub(1, Ordering::AcqRel) == 1 {
            log.close();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shell(script: &str) -> Program {
        Program::start("sh", Command::new("sh").args(["-c", script]))
    }

    #[tokio::test]
    async fn records_both_outputs_and_the_end() {
        let mut program = shell("echo out; echo err >&2; exit 3");
        program.wait_for_line("out", SOON).await;
        program.wait_for_line("err", SOON).await;
        assert_eq!(program.wait_exit(SOON).await.code(), Some(3));
        assert!(
            program
                .log()
                .all()
                .contains(&OutputLine::Err("err".to_owned()))
        );
    }

    #[tokio::test]
    #[should_panic(expected = "ended without it")]
    async fn does_not_wait_for_a_line_of_a_program_that_is_gone() {
        shell("exit 0").wait_for_line("ready", SOON).await;
    }

    #[tokio::test]
    async fn is_gone_when_dropped() {
        let program = shell("echo ready; exec sleep 1000");
        program.wait_for_line("ready", SOON).await;
        let directory = format!("/proc/{}", program.id());
        assert!(program.memory().peak_bytes > 0 && program.descriptors() >= 3);
        drop(program);
        assert!(!Path::new(&directory).exists());
    }

    #[tokio::test]
    async fn obeys_signals() {
        let mut program =
            shell("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
        program.wait_for_line("ready", SOON).await;
        program.signal(Signal::TERM);
        program.wait_for_line("asked", SOON).await;
        assert!(program.wait_exit(SOON).await.success());
    }
}
