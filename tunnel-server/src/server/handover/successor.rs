//! The running process' end of the hand-over.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{sleep, timeout},
};
use tunnel_ops::inherited;

use super::{DETACH, LINE_BYTES, PredecessorOrder, REPORTS, SuccessorReport, VARIABLE, WORDS};
use crate::{
    registry::HandedRuntimes,
    server::reload::{ApplyError, EmptyList},
};

/// Time in which the new process must be ready: far more than it needs to read the files of a large installation.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Time in which it must report that it serves: much more than it needs, and less than most wait for a connection.
const REPORT_LIMIT: Duration = Duration::from_secs(5);

/// Time between two checks whether the process between the two has ended, which it is about to.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Time in which it must take a line.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// How the program was started, to start it again.
#[derive(Debug)]
pub(crate) struct Program {
    /// As given: a path, or a name that is looked up, so that a replaced file is used.
    pub(super) path: OsString,
    pub(super) arguments: Vec<OsString>,
}

/// Why a server is not replaced by a new process. It goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    /// The server shares a directory.
    #[error(
        "this server is one of several nodes: restart one node after the other, their clients move to the other nodes meanwhile"
    )]
    SeveralNodes,
    /// It is the first process of a container, which ends with it.
    #[error(
        "this server is process 1 of its container, which would end with it: replace the container instead"
    )]
    FirstProcess,
    /// The sockets cannot be passed on.
    #[error("cannot pass the listeners' sockets on: {0}")]
    Sockets(#[source] io::Error),
    /// The new process cannot be started.
    #[error("cannot start {}: {source}", place(.program))]
    Spawn {
        /// The program.
        program: OsString,
        /// The error of the system.
        source: io::Error,
    },
    /// It has found a list empty that has entries here.
    #[error(transparent)]
    Emptied(#[from] ApplyError),
    /// It reported why it cannot serve.
    #[error("the new process cannot serve: {0}")]
    Failed(String),
    /// It ended without a word.
    #[error("the new process ended before it was ready{0}: see its lines in the log")]
    Ended(String),
    /// Its report is not one of this version.
    #[error(
        "the new process reports what this version does not know ({0}): restart the server instead"
    )]
    Unclear(#[source] io::Error),
    /// It ended while it took over.
    #[error("the new process ended while it took over: see its lines in the log")]
    Lost,
    /// It stood still while it took over.
    #[error("the new process did not report within {REPORT_LIMIT:?} that it serves: it was ended")]
    Stuck,
    /// It was not ready in time.
    #[error("the new process was not ready within {READY_LIMIT:?}: see its lines in the log")]
    Late,
}

/// Where the system looks for a program that is given by this name or path.
fn place(program: &OsStr) -> String {
    let path = Path::new(program);
    let is_name = !path.as_os_str().as_encoded_bytes().contains(&b'/');
    match (is_name, env::var("PATH"), env::current_dir()) {
        (true, Ok(folders), _) => format!("{}, looked for in PATH ({folders})", path.display()),
        (false, _, Ok(folder)) => folder.join(path).display().to_string(),
        _ => path.display().to_string(),
    }
}

/// The new process.
#[derive(Debug)]
pub(in crate::server) struct Successor {
    process: NewProcess,
    channel: BufReader<UnixStream>,
    /// The lists that it has found empty.
    empty: Vec<EmptyList>,
    /// Whether it reports when it serves.
    reports: bool,
    /// Whether it has the tunnel listener; if not, it is ended when this is dropped.
    is_serving: bool,
    /// Whether it has reported that it serves everything.
    is_confirmed: bool,
}

#[derive(Debug)]
enum NewProcess {
    /// One of an earlier version, or that has not started the program once more yet.
    Child(Child),
    /// One that is no child of this one.
    Detached(u32),
    /// One that is known to have ended.
    Ended,
}

impl NewProcess {
    /// Ends the process. Returns how it has ended, for a child.
    fn end(&mut self) -> Option<String> {
        match std::mem::replace(self, Self::Ended) {
            Self::Child(mut child) => {
                let _ = child.kill();
                let ended = child.wait();
                Some(ended.map_or_else(|error| error.to_string(), |status| status.to_string()))
            }
            Self::Detached(process) => {
                let process = i32::try_from(process).ok().and_then(Pid::from_raw);
                // One that has ended just now is no matter.
                let _ = process.map(|process| kill_process(process, Signal::KILL));
                None
            }
            Self::Ended => None,
        }
    }
}

impl Program {
    /// The program that runs, with its arguments.
    pub(crate) fn this() -> Self {
        let mut arguments = env::args_os();
        Self {
            path: arguments.next().unwrap_or_default(),
            arguments: arguments.collect(),
        }
    }

    /// Starts the program again with these sockets, each with the name of its listener, and waits until it is ready.
    pub(in crate::server) async fn start(
        &self,
        sockets: Vec<(&'static str, TcpListener)>,
    ) -> Result<Successor, UpgradeError> {
        if std::process::id() == 1 {
            return Err(UpgradeError::FirstProcess);
        }
        let mut successor = self.spawn(sockets).map_err(|source| UpgradeError::Spawn {
            program: self.path.clone(),
            source,
        })?;
        match timeout(READY_LIMIT, successor.ready()).await {
            Ok(ready) => ready.map(|()| successor),
            Err(_) => Err(UpgradeError::Late),
        }
    }

    fn spawn(&self, sockets: Vec<(&'static str, TcpListener)>) -> io::Result<Successor> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .env(VARIABLE, std::process::id().to_string())
            .env(WORDS, format!("{} {DETACH} {REPORTS}", std::process::id()));
        let names = sockets.iter().map(|(name, _)| *name);
        inherited::announce(&mut command, names);
        let mappings = sockets.into_iter().zip(inherited::FIRST_DESCRIPTOR..);
        let mappings = mappings.map(|((_, socket), child_fd)| FdMapping {
            parent_fd: socket.into(),
            child_fd,
        });
        command
            .fd_mappings(mappings.collect())
            .map_err(io::Error::other)?;
        let child = command.spawn()?;
        // Closes the other end here, so that the end of the new process is the end of the channel.
        drop(command);
        Ok(Successor {
            process: NewProcess::Child(child),
            channel: BufReader::new(UnixStream::from_std(ours)?),
            empty: Vec::new(),
            reports: false,
            is_serving: false,
            is_confirmed: false,
        })
    }
}

impl Successor {
    /// Its process id; 0 once it has ended.
    pub(in crate::server) fn id(&self) -> u32 {
        match &self.process {
            NewProcess::Child(child) => child.id(),
            NewProcess::Detached(process) => *process,
            NewProcess::Ended => 0,
        }
    }

    /// Waits until it is ready.
    async fn ready(&mut self) -> Result<(), UpgradeError> {
        loop {
            match self.report().await.map_err(UpgradeError::Unclear)? {
                Some(SuccessorReport::Started { process }) => self.on_started(process).await,
                Some(SuccessorReport::Ready {
                    version,
                    empty,
                    reports,
                }) => {
                    self.reports = reports;
                    let process = self.id();
                    tracing::info!(version, process, "the new process is ready");
                    self.empty = empty;
                    return Ok(());
                }
                Some(SuccessorReport::Failed { reason }) => {
                    return Err(UpgradeError::Failed(reason));
                }
                Some(SuccessorReport::Tunnels | SuccessorReport::Serving) => {}
                None => {
                    let how = self.process.end();
                    let how = how.map_or_else(String::new, |how| format!(" ({how})"));
                    return Err(UpgradeError::Ended(how));
                }
            }
        }
    }

    /// The child has started the program once more, and ends. Only then what supervises is the parent of the new process.
    async fn on_started(&mut self, process: u32) {
        let started = NewProcess::Detached(process);
        if let NewProcess::Child(mut child) = std::mem::replace(&mut self.process, started) {
            while matches!(child.try_wait(), Ok(None)) {
                sleep(CHECK_INTERVAL).await;
            }
        }
    }

    /// Takes the lists that it has found empty.
    pub(in crate::server) fn empty_lists(&mut self) -> Vec<EmptyList> {
        std::mem::take(&mut self.empty)
    }

    /// Whether it reports when it serves; one of an earlier version does not.
    pub(super) fn reports(&self) -> bool {
        self.reports
    }

    /// Whether it has reported that it serves everything.
    pub(in crate::server) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Has it accept tunnel clients. From now on it serves everything if this process ends.
    pub(in crate::server) async fn serve_tunnels(&mut self, runtimes: HandedRuntimes) {
        self.is_serving = true;
        self.order(&PredecessorOrder::Tunnels(runtimes)).await;
    }

    /// Has it accept platform clients.
    pub(in crate::server) async fn serve_public(&mut self) {
        self.order(&PredecessorOrder::Public).await;
    }

    /// Has it report again.
    pub(super) async fn ask(&mut self) {
        self.order(&PredecessorOrder::Report).await;
    }

    /// Has it answer at the admin listener. From now on it is on its own.
    pub(in crate::server) async fn confirm(&mut self) {
        self.order(&PredecessorOrder::Confirmed).await;
    }

    /// Waits until it reports that it accepts tunnel clients.
    pub(super) async fn tunnels(&mut self) -> Result<(), UpgradeError> {
        let wanted = |report: &SuccessorReport| matches!(report, SuccessorReport::Tunnels);
        self.reported(wanted).await
    }

    /// Waits until it reports that it serves everything.
    pub(super) async fn serving(&mut self) -> Result<(), UpgradeError> {
        let wanted = |report: &SuccessorReport| matches!(report, SuccessorReport::Serving);
        self.reported(wanted).await?;
        self.is_confirmed = true;
        Ok(())
    }

    async fn reported(
        &mut self,
        wanted: impl Fn(&SuccessorReport) -> bool,
    ) -> Result<(), UpgradeError> {
        let report = async {
            loop {
                match self.report().await {
                    Ok(Some(report)) if wanted(&report) => return Ok(()),
                    Ok(Some(_)) => {}
                    Ok(None) => return Err(UpgradeError::Lost),
                    Err(error) => return Err(UpgradeError::Unclear(error)),
                }
            }
        };
        let report = timeout(REPORT_LIMIT, report).await;
        report.unwrap_or(Err(UpgradeError::Stuck))
    }

    /// Resolves when it has ended; it reports nothing meanwhile.
    pub(super) async fn ended(&mut self) -> UpgradeError {
        loop {
            match self.report().await {
                Ok(Some(_)) => {}
                Ok(None) => return UpgradeError::Lost,
                Err(error) => return UpgradeError::Unclear(error),
            }
        }
    }

    /// Ends it although it has the listeners.
    pub(super) fn kill(&mut self) {
        self.is_serving = false;
        self.is_confirmed = false;
        self.process.end();
    }

    /// A new process that has died serves nothing, and is started again by what supervises it.
    async fn order(&mut self, order: &PredecessorOrder) {
        // Plain values, which can always be written.
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        match timeout(WRITE_LIMIT, self.channel.write_all(&line)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the new process has ended"),
            Err(_) => tracing::error!("the new process does not take over"),
        }
    }

    /// The next report; `None` if it has ended.
    async fn report(&mut self) -> io::Result<Option<SuccessorReport>> {
        let mut line = Vec::new();
        let mut channel = (&mut self.channel).take(LINE_BYTES);
        let read = match channel.read_until(b'\n', &mut line).await {
            // It has not read the last order.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            read => read?,
        };
        match read {
            0 => {
                // Its id may be another process' soon.
                if let NewProcess::Detached(_) = self.process {
                    self.process = NewProcess::Ended;
                }
                Ok(None)
            }
            _ => Ok(Some(serde_json::from_slice(&line)?)),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.is_serving {
            self.process.end();
        }
    }
}
