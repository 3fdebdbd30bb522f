//! Starts the program, sample upstreams, and servers that break HTTP on purpose.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Lines, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    sync::OnceLock,
    thread,
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// What one call of the program gave.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Its exit code.
    pub(crate) code: i32,
    /// What it wrote for people.
    pub(crate) text: String,
    /// What it complained about.
    pub(crate) complaint: String,
    /// Its JSON; null when it wrote none.
    pub(crate) report: Value,
}

impl Measured {
    /// The only run.
    pub(crate) fn run(&self) -> &Value {
        let runs = self.report["runs"].as_array();
        let runs = runs.unwrap_or_else(|| panic!("no runs: {self:#?}"));
        assert_eq!(runs.len(), 1, "{self:#?}");
        &runs[0]
    }

    /// How many requests ended well.
    pub(crate) fn completed(&self) -> u64 {
        self.run()["completed"].as_u64().unwrap()
    }

    /// How many failed in this way.
    pub(crate) fn errors(&self, kind: &str) -> u64 {
        self.run()["errors"][kind].as_u64().unwrap_or(0)
    }

    /// A figure of the latency, seconds.
    pub(crate) fn latency(&self, name: &str) -> f64 {
        let value = self.run()["latency"][name].as_f64();
        value.unwrap_or_else(|| panic!("no latency: {self:#?}"))
    }

    /// Asserts that so many requests were due in open loop, and that all which were sent ended well. On a machine that
    /// is busy the last ones may come to their turn after the window.
    #[track_caller]
    pub(crate) fn assert_sent(&self, due: u64) {
        let (completed, not_sent) = (self.completed(), self.errors("not_sent"));
        assert_eq!(completed + not_sent, due, "{self:#?}");
        assert!(completed > due / 2, "{self:#?}");
        let errors = self.run()["errors"].as_object().unwrap();
        assert!(errors.keys().all(|kind| kind == "not_sent"), "{self:#?}");
    }

    /// Asserts that this kind of failure came, and no other, and nothing ended well.
    #[track_caller]
    pub(crate) fn assert_only(&self, kind: &str) {
        let errors = self.run()["errors"].as_object().unwrap();
        let kinds: Vec<_> = errors.keys().collect();
        assert_eq!(kinds, [kind], "{self:#?}");
        assert_eq!((self.completed(), self.code), (0, 1), "{self:#?}");
    }
}

/// Most tests wait more than they compute, and may measure at once. One whose figures depend on the whole machine is
/// alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// Waits until no other test measures; none does while the guard is held.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write()
}

/// Waits while a test is alone; none is while the guard is held.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read()
}

/// Runs the program with these arguments, one after the other between blanks, beside those of other tests.
pub(crate) fn loadtest(arguments: &str) -> Measured {
    let _beside_others = beside_others();
    run(arguments)
}

fn run(arguments: &str) -> Measured {
    let directory = TempDir::new().unwrap();
    let json = directory.path().join("report.json");
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments.split_ascii_whitespace())
        .arg("--json")
        .arg(&json);
    let output = command.output().unwrap();
    let report = std::fs::read(&json).unwrap_or_default();
    Measured {
        code: output.status.code().unwrap_or(-1),
        text: String::from_utf8(output.stdout).unwrap(),
        complaint: String::from_utf8(output.stderr).unwrap(),
        report: serde_json::from_slice(&report).unwrap_or_default(),
    }
}

/// Measures `url` with `loadtest http`, for half a second, without warm-up.
pub(crate) fn http(url: &str, arguments: &str) -> Measured {
    loadtest(&http_arguments(url, arguments))
}

/// As [`http`], while no other test measures: each request that is due is sent in time.
pub(crate) fn http_alone(url: &str, arguments: &str) -> Measured {
    let _alone = alone();
    run(&http_arguments(url, arguments))
}

fn http_arguments(url: &str, arguments: &str) -> String {
    format!("http --url {url} --warm-up 0s --duration 500ms {arguments}")
}

/// The program as a process that goes on; ends when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// What is found in the first line in which something is.
    pub(crate) fn line<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> T {
        self.lines.find_map(|line| find(&line.unwrap())).unwrap()
    }

    /// Where a server listens: a URL without a slash at the end.
    pub(crate) fn url(&mut self) -> String {
        self.line(|line| line.strip_prefix("listening on ").map(str::to_owned))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The sample upstream as a process of its own; ends when dropped.
pub(crate) struct Upstream {
    process: Process,
    /// Its URL, without a slash at the end.
    pub(crate) url: String,
}

impl Upstream {
    /// Starts it with these arguments.
    pub(crate) fn start(arguments: &str) -> Self {
        let listen = ["upstream", "--listen", "127.0.0.1:0"];
        let arguments = arguments.split_ascii_whitespace();
        let mut process = Process::start(listen.into_iter().chain(arguments));
        let url = process.url();
        Self { process, url }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.child.id()
    }
}

/// A server that reads a request's head on each connection, writes `answer`, and closes it. Ends
/// with the test.
pub(crate) fn scripted(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || drop(answer_once(stream, answer)));
        }
    });
    address
}

fn answer_once(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    stream.write_all(answer)
}

/// Names a directory that holds the tunnel's programs, instead of building them.
const PROGRAMS: &str = "E2E_PROGRAMS";

/// The directory of the tunnel's programs, built if need be.
pub(crate) fn programs() -> PathBuf {
    if let Some(directory) = env::var_os(PROGRAMS) {
        return directory.into();
    }
    static BUILT: OnceLock<bool> = OnceLock::new();
    let program = PathBuf::from(PROGRAM);
    let directory = program.parent().unwrap();
    let built = BUILT.get_or_init(|| {
        let profile = match directory.file_name().and_then(OsStr::to_str).unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["build", "--quiet", "--bins", "--profile", profile]);
        command.args(["--package", "tunnel-server", "--package", "tunnel-client"]);
        command.arg("--target-dir").arg(directory.parent().unwrap());
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap()
            .success()
    });
    assert!(built, "the programs do not build");
    directory.to_owned()
}
