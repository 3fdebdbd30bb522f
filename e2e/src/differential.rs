//! Ambiguous requests through a gateway, to an upstream that records them.
//!
//! ```text
//!   random requests ──▶ gateway ──▶ recorder
//!         │                            │
//!         └──▶ strict reader ──▶ compared ──▶ lenient readers, and origins
//! ```
//!
//! What is forwarded has to be among what the strict reader finds in the client's bytes, nothing may be forwarded twice, and
//! each lenient reader has to find the same in the forwarded bytes. What is refused gets one answer and ends the connection.

mod conversation;
pub mod origins;
mod recorder;

use std::{collections::BTreeMap, fmt, net::SocketAddr};

use futures_util::{StreamExt, stream};
use testkit::{
    differential::{
        Meaning, lenient, random_http1, random_http2,
        strict::{self, Ending, Message},
        strict_http2,
    },
    http2::Frame,
};

use self::conversation::Answers;
pub use self::recorder::{Recorded, Recorder};
use crate::random::Random;

/// How many connections are open at once.
const CONNECTIONS: usize = 16;

/// How many clients there are before their requests are compared. Each has a port of its own in its host.
const BATCH: usize = 2_000;

/// The protocol that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS.
    Http2,
}

/// A gateway before a [`Recorder`].
#[derive(Clone, Debug)]
pub struct Gateway {
    /// What it is.
    pub name: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// The host that it serves.
    pub host: String,
}

/// What came of many random clients.
#[derive(Default)]
pub struct Report {
    /// How many clients there were.
    pub clients: usize,
    /// How many requests the strict reader found.
    pub found: usize,
    /// How many of them were forwarded.
    pub forwarded: Vec<Recorded>,
    /// What differs.
    pub faults: Vec<Fault>,
}

/// A difference between two readers.
#[derive(Clone, Debug)]
pub struct Fault {
    seed: u64,
    what: String,
    input: Vec<u8>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, input } = self;
        write!(f, "client {seed}: {what}\n  {}", input.escape_ascii())
    }
}

impl Report {
    /// One of the forwarded requests for each way to write one: all that differ in more than names of this connection.
    pub fn distinct(&self) -> Vec<Recorded> {
        let own = ["host", "forwarded", "tunnel-via", "x-request-id"];
        let is_own = |name: &str| own.contains(&name) || name.starts_with("x-forwarded-");
        let mut distinct = BTreeMap::new();
        for recorded in &self.forwarded {
            let Message {
                method,
                target,
                fields,
                content,
                trailers,
            } = &recorded.message;
            let fields: Vec<_> = fields.iter().filter(|(name, _)| !is_own(name)).collect();
            let key = (method, target, fields, content.len(), trailers);
            distinct.entry(key).or_insert(recorded);
        }
        distinct.into_values().cloned().collect()
    }

    /// Asserts that nothing differs, and that so many of a hundred valid requests were forwarded.
    ///
    /// # Panics
    /// When it is otherwise.
    pub fn assert_good(&self, percent: usize) {
        let shown: Vec<_> = self
            .faults
            .iter()
            .take(8)
            .map(ToString::to_string)
            .collect();
        let count = self.faults.len();
        assert!(shown.is_empty(), "{count} faults:\n{}", shown.join("\n"));
        let (forwarded, found) = (self.forwarded.len(), self.found);
        assert!(100 * forwarded >= percent * found, "{forwarded} of {found}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (clients, found, forwarded) = (self.clients, self.found, self.forwarded.len());
        let faults = self.faults.len();
        write!(
            f,
            "{clients} clients, {found} valid requests, {forwarded} forwarded, {faults} faults"
        )
    }
}

/// A client, and what it should come to.
struct Client {
    seed: u64,
    host: String,
    input: Vec<u8>,
    /// What the strict reader finds.
    expected: Vec<Meaning>,
    /// How many of these came to the upstream.
    forwarded: usize,
    version: Version,
    answers: Answers,
    /// Whether requests that are whole may be lost.
    is_disturbed: bool,
    ending: Ending,
}

/// Sends random clients through a gateway.
///
/// # Panics
/// When the gateway takes no connections.
pub async fn run(
    gateway: &Gateway,
    recorder: &Recorder,
    version: Version,
    clients: usize,
    random: &mut Random,
) -> Report {
    let mut report = Report::default();
    let seeds: Vec<_> = (0..clients).map(|_| random.next_number()).collect();
    for seeds in seeds.chunks(BATCH) {
        batch(gateway, recorder, version, seeds, &mut report).await;
    }
    report
}

async fn batch(
    gateway: &Gateway,
    recorder: &Recorder,
    version: Version,
    seeds: &[u64],
    report: &mut Report,
) {
    let talk = |(port, seed)| async move {
        let host = format!("{}:{port}", gateway.host);
        match version {
            Version::Http1 => Client::http1(gateway, &host, seed).await,
            Version::Http2 => Client::http2(gateway, &host, seed).await,
        }
    };
    let ports = (10_000u16..).zip(seeds.iter().copied());
    let talks = stream::iter(ports).map(talk);
    let mut clients: Vec<_> = talks.buffer_unordered(CONNECTIONS).collect().await;
    report.clients += clients.len();
    report.found += clients
        .iter()
        .map(|client| client.expected.len())
        .sum::<usize>();
    for recorded in recorder.take().await {
        report.assign(&recorded, &mut clients);
        report.forwarded.push(recorded);
    }
    for bytes in recorder.take_violations() {
        report.fault(0, "no request is forwarded", &bytes);
    }
    for client in clients {
        client.judge(report);
    }
}

impl Client {
    async fn http1(gateway: &Gateway, host: &str, seed: u64) -> Self {
        let client = random_http1::draw(&mut Random::new(seed), host);
        let reading = strict::read(&client.bytes);
        let is_whole = reading.ending != Ending::Incomplete;
        let answers = conversation::http1(gateway.address, &client, &reading.messages, is_whole);
        Self {
            seed,
            host: host.to_owned(),
            answers: answers.await.unwrap(),
            input: client.bytes,
            expected: reading.messages.iter().map(Meaning::of).collect(),
            forwarded: 0,
            version: Version::Http1,
            is_disturbed: false,
            ending: reading.ending,
        }
    }

    async fn http2(gateway: &Gateway, host: &str, seed: u64) -> Self {
        let frames = random_http2::draw(&mut Random::new(seed), host);
        let reading = strict_http2::read(&frames);
        let answers = conversation::http2(gateway.address, &frames, &reading.ended);
        Self {
            seed,
            host: host.to_owned(),
            answers: answers.await.unwrap(),
            input: frames.iter().flat_map(shown).collect(),
            expected: reading.messages.iter().map(Meaning::of).collect(),
            forwarded: 0,
            version: Version::Http2,
            is_disturbed: reading.is_disturbed,
            ending: Ending::Whole,
        }
    }

    /// Compares how many were forwarded with the answers.
    fn judge(&self, report: &mut Report) {
        if let Some(fault) = &self.answers.fault {
            report.fault(self.seed, fault, &self.input);
        }
        let (statuses, forwarded) = (&self.answers.statuses, self.forwarded);
        let count = forwarded + self.expected.len();
        let passed = statuses.iter().filter(|status| **status == 204).count();
        let is_refusal = |status: &u16| (400..500).contains(status) || [501, 505].contains(status);
        let is_refused = statuses.iter().any(is_refusal);
        let is_answer = |status: &u16| *status == 204 || is_refusal(status);
        let is_unanswered = match self.ending {
            Ending::Whole => !is_refused && statuses.len() < count,
            Ending::Violation => !is_refused,
            Ending::Incomplete => false,
        };
        let is_repeated = statuses.len() > count + usize::from(self.ending != Ending::Whole);
        let rule = if self.is_disturbed {
            return;
        } else if passed != forwarded {
            "as many are answered as forwarded"
        } else if self.version == Version::Http1 && (is_unanswered || is_repeated) {
            "each request is answered once, and a refusal"
        } else if self.version == Version::Http1 && !statuses.iter().all(is_answer) {
            "nothing fails"
        } else {
            return;
        };
        let what = format!("not {rule}: {statuses:?}, {count} found, {forwarded} forwarded");
        report.fault(self.seed, &what, &self.input);
    }
}

impl Report {
    fn fault(&mut self, seed: u64, what: &str, input: &[u8]) {
        let (what, input) = (what.to_owned(), input.to_vec());
        self.faults.push(Fault { seed, what, input });
    }

    /// Finds the client that has sent this, of which it is then no longer expected.
    fn assign(&mut self, recorded: &Recorded, clients: &mut [Client]) {
        let meaning = Meaning::of(&recorded.message);
        let find = |client: &mut Client| {
            let is_it = |one: &Meaning| one.is_forwarded_as(&meaning);
            let found = client.expected.iter().position(is_it)?;
            client.expected.remove(found);
            client.forwarded += 1;
            Some(())
        };
        if clients.iter_mut().find_map(find).is_none() {
            let shown = recorded.bytes.escape_ascii();
            let sender = clients
                .iter()
                .find(|client| Some(&client.host) == meaning.authority.as_ref());
            let (seed, input) = sender.map_or((0, &[][..]), |sender| (sender.seed, &sender.input));
            self.fault(
                seed,
                &format!("forwarded, but not asked for: {shown}"),
                input,
            );
        }
        if let Some(model) = disagreeing(recorded) {
            let what = format!("read otherwise by \"{model}\"");
            self.fault(0, &what, &recorded.bytes);
        }
    }
}

/// A frame for those who read of a fault: its head in numbers, then the payload.
fn shown(frame: &Frame) -> Vec<u8> {
    let Frame {
        kind,
        flags,
        stream,
        payload,
    } = frame;
    let head = format!("[{kind} {flags:#x} {stream}: ");
    [head.as_bytes(), payload, b"] "].concat()
}

/// The name of a lenient reader that reads something else.
fn disagreeing(recorded: &Recorded) -> Option<&'static str> {
    let Message {
        method,
        target,
        fields,
        content,
        ..
    } = &recorded.message;
    let mut models = lenient::models().into_iter();
    let disagrees = |model: &(&str, lenient::Leniency)| {
        let read = lenient::read(&recorded.bytes, model.1);
        let [only] = &read[..] else { return true };
        let host = strict::values(fields, "host").next().unwrap_or_default();
        (&only.method, &only.target, &only.content) != (method, target, content)
            || only.host != host
    };
    models.find(disagrees).map(|(name, _)| name)
}
