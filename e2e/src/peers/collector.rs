//! An OpenTelemetry collector: `collector.py`, by the messages that OpenTelemetry publishes for Python; or OpenTelemetry's own
//! collector, which sends what it has understood on to the former.

use std::{net::SocketAddr, path::Path, process::Command};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    port::on_free_port,
    python::{python, script},
};
use crate::{
    deadline::SOON,
    program::{OutputLine, Program},
};

/// A collector that takes spans.
#[derive(Debug)]
pub struct Collector {
    program: Program,
    address: SocketAddr,
}

/// A span that a collector has taken.
#[derive(Clone, Debug, Deserialize)]
pub struct CollectedSpan {
    /// The attributes of the program that sent it, and the `authorization` that came along.
    pub resource: Map<String, Value>,
    /// The trace id in hexadecimal.
    pub trace: String,
    /// The span's id.
    pub id: String,
    /// The id of the span above it; empty at the root.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// `SERVER` or `CLIENT`.
    pub kind: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds since 1970.
    pub end: u64,
    /// Its attributes.
    pub attributes: Map<String, Value>,
    /// The names of its events.
    pub events: Vec<String>,
    /// `UNSET`, `OK` or `ERROR`.
    pub status: String,
}

impl CollectedSpan {
    /// The program that sent it.
    pub fn service(&self) -> &str {
        self.resource["service.name"].as_str().unwrap()
    }

    /// An attribute that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attributes.get(name)?.as_str()
    }
}

impl Collector {
    /// Starts one on a free port.
    pub async fn start() -> Self {
        Self::answering(200).await
    }

    /// Starts one that answers with this status; only with 200 it takes anything.
    pub async fn answering(status: u16) -> Self {
        let mut command = Command::new(python());
        command
            .arg(script("collector.py"))
            .env("FAIL_WITH", status.to_string());
        let program = Program::start("collector.py", &mut command);
        let line = program.wait_for_line("listening", SOON).await;
        let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
        Self {
            program,
            address: ([127, 0, 0, 1], port).into(),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, as a value of `--otlp-endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next span of a trace that `pick` wants, waiting for it if need be.
    pub async fn span(
        &self,
        trace: &str,
        what: &str,
        pick: impl Fn(&CollectedSpan) -> bool,
    ) -> CollectedSpan {
        let wanted = |line: &OutputLine| {
            let span = span_of(line)?;
            (span.trace == trace && pick(&span)).then_some(span)
        };
        self.program.log().wait_for(what, SOON, wanted).await
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.program
            .log()
            .all()
            .iter()
            .filter_map(span_of)
            .collect()
    }
}

fn span_of(line: &OutputLine) -> Option<CollectedSpan> {
    let OutputLine::Out(text) = line else {
        return None;
    };
    serde_json::from_str(text).ok()
}

/// OpenTelemetry's own collector.
#[derive(Debug)]
pub struct OtelCollector {
    _program: Program,
    address: SocketAddr,
}

impl OtelCollector {
    /// Starts one that sends to `next`. Its configuration is put into this directory.
    ///
    /// # Panics
    /// When `E2E_OTELCOL` does not name the program that `e2e/build-otelcol` builds.
    pub async fn before(next: &Collector, directory: &Path) -> Self {
        let program = std::env::var_os("E2E_OTELCOL").expect("E2E_OTELCOL=$(e2e/build-otelcol)");
        on_free_port("otelcol", async |address| {
            let file = directory.join("otelcol.yaml");
            std::fs::write(&file, configuration(address, &next.url())).unwrap();
            let mut command = Command::new(&program);
            command.arg("--config").arg(&file);
            let program = Program::start("otelcol", &mut command);
            let started = |line: &OutputLine| {
                let text = line.text();
                let is_ready = text.contains("Everything is ready");
                (is_ready || text.contains("address already in use")).then_some(is_ready)
            };
            let is_ready = program
                .log()
                .wait_for("otelcol to start", 3 * SOON, started);
            is_ready.await.then_some(Self {
                _program: program,
                address,
            })
        })
        .await
    }

    /// Its URL, as a value of `--otlp-endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn configuration(address: SocketAddr, next: &str) -> String {
    let template = std::fs::read_to_string(script("otelcol/config.yaml")).unwrap();
    let filled = template.replace("ADDRESS", &address.to_string());
    filled.replace("NEXT", next)
}
