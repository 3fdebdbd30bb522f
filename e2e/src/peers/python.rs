//! Python's `websockets` and `h2`, each in a small script under `e2e/peers`.
//!
//! The scripts perform the steps in their standard input or arguments, and report the results as lines of JSON.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::{
    deadline::{SOON, within},
    entry::Entry,
    program::{Program, root},
};

/// A WebSocket server by `websockets`: echoes, speaks subprotocols `chat.v2` and `chat.v1`.
#[derive(Debug)]
pub struct WebSocketServer {
    program: Program,
    address: SocketAddr,
}

impl WebSocketServer {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// When the peers are not installed.
    pub async fn start() -> Self {
        let mut command = Command::new(python());
        command.arg(script("websocket_server.py"));
        let program = Program::start("websocket_server.py", &mut command);
        let line = program.wait_for_line("listening", SOON).await;
        let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
        Self {
            program,
            address: ([127, 0, 0, 1], port).into(),
        }
    }

    /// The address as a value of `--upstream`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The server, without a tunnel before it.
    pub fn entry(&self) -> Entry {
        Entry::direct(self.address)
    }

    /// The process: it writes a line for each connection that opens and closes.
    pub fn program(&self) -> &Program {
        &self.program
    }
}

/// One step of a conversation that `websocket_client.py` has.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Sends a text and reports the answer.
    Text(&'a str),
    /// Sends this many bytes and reports whether they came back unchanged.
    Binary(usize),
    /// Sends a ping and reports whether the pong came.
    Ping,
    /// Does nothing for this many milliseconds.
    Rest(u64),
    /// Closes with this code and reports the code that came back.
    Close(u16),
    /// Waits for the other side to close and reports its code.
    AwaitClose,
}

/// Has a conversation by `websockets` and gives the report of each step, the handshake's first:
/// `{"opened": subprotocol}` or `{"refused": status}`.
///
/// # Panics
/// When the script fails for another reason than the other side's refusal.
pub async fn websocket_client(
    entry: &Entry,
    path: &str,
    offer: &[&str],
    steps: &[Step<'_>],
) -> Vec<Value> {
    let steps = steps.iter().map(|step| match step {
        Step::Text(text) => format!("text {text}"),
        Step::Binary(length) => format!("binary {length}"),
        Step::Ping => "ping".to_owned(),
        Step::Rest(milliseconds) => format!("rest {milliseconds}"),
        Step::Close(code) => format!("close {code}"),
        Step::AwaitClose => "await-close".to_owned(),
    });
    let mut arguments = vec![
        entry.websocket_url(path),
        entry.address().to_string(),
        offer.join(","),
    ];
    arguments.extend(steps);
    run("websocket_client.py", &arguments, "").await
}

/// An event on an HTTP/2 connection, as `h2_client.py` reports it.
#[derive(Clone, Debug, Deserialize)]
pub struct H2Event {
    /// The library's name of the event, such as `ResponseReceived`; `Closed` for the end.
    pub event: String,
    /// The stream, 0 for the connection.
    #[serde(default)]
    pub stream: u32,
    /// Fields, in order, of those events that have some.
    #[serde(default)]
    pub fields: Vec<(String, String)>,
    /// Data, as text, of a `DataReceived`.
    #[serde(default)]
    pub data: String,
    /// The data in hexadecimal.
    #[serde(default)]
    pub hex: String,
    /// The error code of a reset or of the connection's end.
    #[serde(default)]
    pub code: Option<u32>,
}

/// Runs steps on one HTTP/2 connection by `h2`, which checks nothing that it sends, and gives all
/// events. A step is a JSON object, for instance
/// `{"do": "headers", "stream": 1, "fields": [[":method", "GET"]], "end": true}`,
/// `{"do": "data", "stream": 1, "text": "x", "end": false}`, `{"do": "reset", "stream": 1}`,
/// `{"do": "raw", "hex": "00"}`, or `{"do": "await", "event": "StreamEnded", "stream": 1}`.
///
/// # Panics
/// When the script fails, or an awaited event does not come.
pub async fn h2_client(entry: &Entry, steps: &[Value]) -> Vec<H2Event> {
    let input: String = steps.iter().map(|step| format!("{step}\n")).collect();
    let events = run("h2_client.py", &[entry.address().to_string()], &input).await;
    events
        .into_iter()
        .map(|event| serde_json::from_value(event).unwrap())
        .collect()
}

async fn run(name: &str, arguments: &[String], input: &str) -> Vec<Value> {
    let mut command = tokio::process::Command::new(python());
    command.arg(script(name)).args(arguments).kill_on_drop(true);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = within(3 * SOON, name, child.wait_with_output())
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name} {arguments:?}\n{text}{complaint}"
    );
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(super) fn script(name: &str) -> PathBuf {
    root().join("e2e/peers").join(name)
}

/// The interpreter of the environment that `e2e/install-peers` makes.
pub(super) fn python() -> PathBuf {
    environment().join("bin/python")
}

/// The directory of that environment.
pub(super) fn environment() -> PathBuf {
    let directory = std::env::var_os("E2E_PEERS");
    let directory = directory.map_or_else(|| root().join("target/e2e-peers"), PathBuf::from);
    assert!(
        directory.join("bin/python").exists(),
        "there is no Python in {}: run e2e/install-peers",
        directory.display()
    );
    directory
}
