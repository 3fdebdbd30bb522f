//! Real origins, asked what they read of a forwarded request.
//!
//! An origin answers with the field `x-read`: method, target, and the content in hexadecimal. The programs are in
//! `e2e/peers`; nginx stands before one of them, and forwards what it reads. `E2E_ORIGINS` names more that are running
//! already, as `name=address` with commas between: `e2e/run-differential` starts them.

use std::{any::Any, env, net::SocketAddr, process::Command, time::Duration};

use testkit::{
    differential::strict::Message,
    http1::{Head, RawConnection},
};

use super::Recorded;
use crate::{
    peers::nginx::Nginx,
    program::{Program, root},
};

/// How long an origin may take to start; Go compiles its program first.
const START: Duration = Duration::from_secs(120);

/// A running origin.
pub struct Origin {
    name: String,
    address: SocketAddr,
    /// What ends with it.
    _running: Option<Box<dyn Any + Send + Sync>>,
}

/// What an origin made of the requests.
#[derive(Debug, Default)]
pub struct Opinion {
    /// How many it read as they are.
    pub same: usize,
    /// How many it refused.
    pub refused: usize,
    /// What it read otherwise.
    pub faults: Vec<String>,
}

impl Origin {
    /// Starts those of `e2e/install-peers`, and finds those of the environment.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn all() -> Vec<Self> {
        let peers = root().join("e2e/peers");
        let mut node = Command::new("node");
        node.arg(peers.join("origin.js"));
        let mut go = Command::new("go");
        go.arg("run").arg(peers.join("origin/main.go"));
        let mut python = Command::new("python3");
        python.arg(peers.join("origin.py"));
        let node = Self::start("node", node).await;
        let nginx = Nginx::upstream(Some(node.address)).await;
        let nginx = Self {
            name: "nginx before node".to_owned(),
            address: nginx.address(),
            _running: Some(Box::new(nginx)),
        };
        let (go, python) = (
            Self::start("go", go).await,
            Self::start("http.server", python).await,
        );
        let mut origins = vec![node, nginx, go, python];
        let others = env::var("E2E_ORIGINS").unwrap_or_default();
        origins.extend(others.split(',').filter_map(|other| {
            let (name, address) = other.split_once('=')?;
            Some(Self {
                name: name.to_owned(),
                address: address.parse().unwrap(),
                _running: None,
            })
        }));
        origins
    }

    async fn start(name: &str, mut command: Command) -> Self {
        let program = Program::start(name, &mut command);
        let line = program.wait_for_line("listening on", START).await;
        let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
        Self {
            name: name.to_owned(),
            address: ([127, 0, 0, 1], port).into(),
            _running: Some(Box::new(program)),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends it the requests, one after another on one connection for as long as it keeps that.
    pub async fn ask(&self, requests: &[Recorded]) -> Opinion {
        let mut opinion = Opinion::default();
        let mut connection = None;
        for Recorded { message, bytes } in requests {
            let mut raw: RawConnection = match connection.take() {
                Some(raw) => raw,
                None => RawConnection::connect(self.address).await,
            };
            raw.send(bytes).await;
            let Some(head) = final_head(&mut raw).await else {
                opinion.refused += 1;
                continue;
            };
            let framing = head.response_framing(&message.method);
            raw.content(framing).await;
            match head.value("x-read") {
                None => opinion.refused += 1,
                Some(read) if usual(read) == usual(&expected(message)) => {
                    opinion.same += 1;
                    let closes = head.value("connection") == Some("close");
                    connection = (!closes).then_some(raw);
                }
                Some(read) => opinion.faults.push(format!(
                    "{}: {read} of {}",
                    self.name,
                    bytes.escape_ascii()
                )),
            }
        }
        opinion
    }
}

/// What was read without that which interfaces between servers and applications lose, such as ASGI: small letters in the
/// method, and a query that is empty.
fn usual(read: &str) -> String {
    let (method, rest) = read.split_once(' ').unwrap_or((read, ""));
    let (target, content) = rest.split_once(' ').unwrap_or((rest, ""));
    let target = target.strip_suffix('?').unwrap_or(target);
    format!("{} {target} {content}", method.to_ascii_uppercase())
}

async fn final_head(raw: &mut RawConnection) -> Option<Head> {
    loop {
        let head = raw.head().await.ok()?;
        if head.status() >= 200 {
            return Some(head);
        }
    }
}

/// What an origin answers that reads what the strict reader does.
fn expected(message: &Message) -> String {
    let content: String = message
        .content
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{} {} {content}", message.method, message.target)
        .trim_end()
        .to_owned()
}
