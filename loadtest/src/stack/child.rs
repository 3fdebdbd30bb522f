//! A child process: started, listened to, and in any case ended.

use std::{
    collections::VecDeque,
    env, fmt,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{self, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};

/// Lines of a program's output that are kept, for its addresses and for messages about its end.
const KEPT: usize = 200;

/// Bytes read at once. Programs under load write their access log in pieces of this size, and reading it must cost
/// little beside them.
const READ_BYTES: usize = 64 * 1024;

/// The end of an access log line of ours, in JSON. There may be many thousands a second, and none is kept.
const ACCESS_LOG_END: &[u8] = br#""target":"access"}"#;

/// Lines that a message shows.
const SHOWN: usize = 12;

/// Between two questions whether a program is ready.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The flag that this program is given when it starts itself.
pub const END_WITH_INPUT: &str = "end-with-input";

/// This program's own file, even when another has taken its place since it was started.
const OWN: &str = "/proc/self/exe";

/// A running program. It is killed and waited for when this is dropped.
pub struct Child {
    role: String,
    child: process::Child,
    log: watch::Sender<Log>,
}

/// The last lines of both outputs.
#[derive(Default)]
struct Log {
    lines: VecDeque<String>,
    /// Outputs that are not closed yet.
    open: usize,
}

impl fmt::Debug for Child {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.role, self.child.id())
    }
}

impl Child {
    /// Starts a program with this role. Its input is empty, its output is read.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(role: &str, command: Command) -> anyhow::Result<Self> {
        Self::launch(role, command, Stdio::null())
    }

    /// Starts this program again with this role and these arguments. However this process ends,
    /// the child sees the end of its input then, and ends too.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_own(
        role: &str,
        arguments: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(OWN);
        command.arg(format!("--{END_WITH_INPUT}")).args(arguments);
        Self::launch(role, command, Stdio::piped())
    }

    fn launch(role: &str, mut command: Command, input: Stdio) -> anyhow::Result<Self> {
        for (variable, _) in env::vars_os() {
            // Neither proxies nor the settings of another tunnel may change what is measured.
            let text = variable.to_string_lossy().to_ascii_lowercase();
            if text.ends_with("_proxy") || text.starts_with("tunnel_") {
                command.env_remove(&variable);
            }
        }
        command.stdin(input);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = command.get_program().to_owned();
        let child = command.spawn();
        let mut child =
            child.with_context(|| format!("cannot start {role}: {}", name.display()))?;
        let log = watch::Sender::default();
        if let Some(output) = child.stdout.take() {
            listen(output, log.clone());
        }
        if let Some(output) = child.stderr.take() {
            listen(output, log.clone());
        }
        let role = role.to_owned();
        Ok(Self { role, child, log })
    }

    /// What it is to the measurement.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        let id = id.with_context(|| format!("{} has no process id", self.role))?;
        kill_process(id, signal).with_context(|| format!("{} takes no signal", self.role))
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// It has not within the limit.
    pub async fn wait_end(&mut self, limit: Duration) -> anyhow::Result<()> {
        let mut log = self.log.subscribe();
        let ended = log.wait_for(|log| log.open == 0);
        if timeout(limit, ended).await.is_err() {
            bail!("{} does not end{}", self.role, self.tail());
        }
        // It closes its outputs with its end.
        self.child
            .wait()
            .map(drop)
            .context("cannot wait for its end")
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only when it is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Waits until it has written a line in which `find` finds something. `what` is for messages.
    ///
    /// # Errors
    /// It ended, or wrote no such line within the limit.
    pub async fn wait_line<T>(
        &self,
        what: &str,
        limit: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut found = None;
        let has_found = |log: &Log| {
            found = log.lines.iter().find_map(|line| find(line));
            found.is_some() || log.open == 0
        };
        let is_late = timeout(limit, self.log.subscribe().wait_for(has_found))
            .await
            .is_err();
        match found {
            Some(found) => Ok(found),
            None if is_late => bail!("{} did not say {what} in time{}", self.role, self.tail()),
            None => bail!("{} ended without saying {what}{}", self.role, self.tail()),
        }
    }

    /// Waits for the log line (JSON) that says where the program's listener of this name is.
    ///
    /// # Errors
    /// As [`Self::wait_line`].
    pub async fn wait_listening(&self, name: &str, limit: Duration) -> anyhow::Result<SocketAddr> {
        let what = format!("where its {name} listener is");
        self.wait_line(&what, limit, |line| listening(line, name))
            .await
    }

    /// Waits until `/readyz` on the admin listener at `admin` answers 200.
    ///
    /// # Errors
    /// It is not ready within the limit.
    pub async fn wait_ready(&self, admin: SocketAddr, limit: Duration) -> anyhow::Result<()> {
        let is_ready = async || is_ready(admin).await.unwrap_or(false);
        self.wait_until("did not get ready", limit, is_ready).await
    }

    /// Asks until the answer is yes. `otherwise` is for the message if it never is.
    ///
    /// # Errors
    /// It ended, or the limit is over.
    pub async fn wait_until(
        &self,
        otherwise: &str,
        limit: Duration,
        ask: impl AsyncFn() -> bool,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        while !timeout_at(until, ask()).await.unwrap_or(false) {
            if self.log.borrow().open == 0 || Instant::now() >= until {
                bail!("{} {otherwise}{}", self.role, self.tail());
            }
            sleep(ASK_AGAIN).await;
        }
        Ok(())
    }

    /// The end of what it wrote, for messages.
    pub fn tail(&self) -> String {
        let lines = &self.log.borrow().lines;
        if lines.is_empty() {
            return "; it wrote nothing".to_owned();
        }
        let skip = lines.len().saturating_sub(SHOWN);
        let shown: Vec<_> = lines.iter().skip(skip).map(String::as_str).collect();
        format!("; it wrote:\n  {}", shown.join("\n  "))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether `/readyz` on the admin listener at `admin` answers 200.
///
/// # Errors
/// It cannot be asked.
pub async fn is_ready(admin: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}

fn listen(output: impl Read + Send + 'static, log: watch::Sender<Log>) {
    log.send_modify(|log| log.open += 1);
    // Ends with the program, whose output this is.
    thread::spawn(move || {
        let mut output = BufReader::with_capacity(READ_BYTES, output);
        let mut line = Vec::new();
        while output
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = line.trim_ascii_end();
            if !text.ends_with(ACCESS_LOG_END) {
                log.send_modify(|log| {
                    if log.lines.len() == KEPT {
                        log.lines.pop_front();
                    }
                    log.lines
                        .push_back(String::from_utf8_lossy(text).into_owned());
                });
            }
            line.clear();
        }
        log.send_modify(|log| log.open -= 1);
    });
}

fn listening(line: &str, listener: &str) -> Option<SocketAddr> {
    let event: Value = serde_json::from_str(line).ok()?;
    let fields = event.get("fields").unwrap_or(&event);
    let is_it = fields.get("message")?.as_str()?.contains("listening")
        && fields.get("listener")?.as_str()? == listener;
    is_it.then(|| fields.get("address")?.as_str()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::start("shell", command).unwrap()
    }

    #[tokio::test]
    async fn finds_a_line_of_either_output() {
        let child = shell("echo one; echo two >&2; exec sleep 100");
        for wanted in ["one", "two"] {
            let find = |line: &str| (line == wanted).then_some(());
            child.wait_line("it", SOON, find).await.unwrap();
        }
    }

    #[tokio::test]
    async fn tells_what_a_program_wrote_before_it_ended() {
        let child = shell("echo no port left >&2; exit 1");
        let error = child.wait_listening("public", SOON).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("ended") && text.contains("no port left"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn is_gone_when_dropped() {
        let child = shell("echo ready; exec sleep 100");
        let find = |line: &str| (line == "ready").then_some(());
        child.wait_line("ready", SOON, find).await.unwrap();
        let directory = format!("/proc/{}", child.id());
        assert!(Path::new(&directory).exists());
        drop(child);
        assert!(!Path::new(&directory).exists());
    }
}
