//! A child process: started, listened to, and in any case ended.

use std::{
    collections::VecDeque,
    env, fmt,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{self, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout},
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
    log: Arc<Log>,
}

struct Log {
    lines: Mutex<VecDeque<String>>,
    written: watch::Sender<usize>,
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
    pub fn start(role: impl Into<String>, command: Command) -> anyhow::Result<Self> {
        Self::launch(role.into(), command, Stdio::null())
    }

    /// Starts this program again with this role and these arguments. However this process ends,
    /// the child sees the end of its input then, and ends too.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_own(
        role: impl Into<String>,
        arguments: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(OWN);
        command.arg(format!("--{END_WITH_INPUT}")).args(arguments);
        Self::launch(role.into(), command, Stdio::piped())
    }

    fn launch(role: String, mut command: Command, input: Stdio) -> anyhow::Result<Self> {
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
        let log = Arc::new(Log {
            lines: Mutex::default(),
            written: watch::Sender::new(0),
        });
        if let Some(output) = child.stdout.take() {
            listen(output, log.clone());
        }
        if let Some(output) = child.stderr.take() {
            listen(output, log.clone());
        }
        Ok(Self { role, child, log })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
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
        let mut written = self.log.written.subscribe();
        let found = timeout(limit, async {
            loop {
                let found = self.log.lines.lock().iter().find_map(|line| find(line));
                if found.is_some() || written.changed().await.is_err() {
                    return found;
                }
                if self.is_gone() {
                    return self.log.lines.lock().iter().find_map(|line| find(line));
                }
            }
        })
        .await;
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) => bail!("{} ended without saying {what}{}", self.role, self.tail()),
            Err(_) => bail!("{} did not say {what} in time{}", self.role, self.tail()),
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
        let until = Instant::now() + limit;
        loop {
            if matches!(timeout(limit, is_ready(admin)).await, Ok(Ok(true))) {
                return Ok(());
            }
            if self.is_gone() || Instant::now() >= until {
                bail!("{} did not get ready{}", self.role, self.tail());
            }
            sleep(ASK_AGAIN).await;
        }
    }

    /// The end of what it wrote, for messages.
    pub fn tail(&self) -> String {
        let lines = self.log.lines.lock();
        if lines.is_empty() {
            return "; it wrote nothing".to_owned();
        }
        let skip = lines.len().saturating_sub(SHOWN);
        let shown: Vec<_> = lines.iter().skip(skip).map(String::as_str).collect();
        format!("; it wrote:\n  {}", shown.join("\n  "))
    }

    /// Whether both its outputs are closed, which its end does.
    pub fn is_gone(&self) -> bool {
        Arc::strong_count(&self.log) == 1
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn is_ready(admin: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}

fn listen(output: impl Read + Send + 'static, log: Arc<Log>) {
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
                let mut lines = log.lines.lock();
                if lines.len() == KEPT {
                    lines.pop_front();
                }
                lines.push_back(String::from_utf8_lossy(text).into_owned());
                drop(lines);
                log.written.send_modify(|count| *count += 1);
            }
            line.clear();
        }
        let written = log.written.clone();
        drop(log);
        // Wakes the waiting tasks, to see that this was the end.
        written.send_modify(|count| *count += 1);
    });
}

fn listening(line: &str, listener: &str) -> Option<SocketAddr> {
    let event: Value = serde_json::from_str(line).ok()?;
    let fields = event.get("fields").unwrap_or(&event);
    let is_it = fields.get("message")?.as_str()?.contains("listening")
        && fields.get("listener")?.as_str()? == listener;
    if is_it {
        fields.get("address")?.as_str()?.parse().ok()
    } else {
        None
    }
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
