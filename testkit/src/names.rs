//! A name server whose answers a test sets, and can change while it runs.
//!
//! It answers questions for `A` and `AAAA` over UDP. A name that it does not know does not exist;
//! what else it says of a name is a [`Reply`]. Every question is in its record.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{net::UdpSocket, task::JoinSet};

use crate::record::Record;

/// Where the questions begin in a message.
const QUESTION: usize = 12;

/// Types of questions.
const A: u16 = 1;
const AAAA: u16 = 28;

/// A running name server.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    zone: Zone,
    questions: Arc<Record<Question>>,
    _serving: JoinSet<()>,
}

/// The reply for each name; under the empty name, the reply for all others.
type Zone = Arc<Mutex<HashMap<String, Reply>>>;

/// The start of a command line that runs the program after it with `server`, port 53, as the only name server of the
/// system's resolver. Needs root.
pub fn looked_up_at(server: IpAddr, directory: &Path) -> Vec<String> {
    let file = directory.join("resolv.conf");
    let text = format!("nameserver {server}\noptions attempts:1 timeout:2\n");
    std::fs::write(&file, text).unwrap();
    let script = format!(
        "mount --bind {} /etc/resolv.conf && exec \"$@\"",
        file.display()
    );
    let before = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        "sh",
    ];
    before.map(str::to_owned).to_vec()
}

/// What is answered to the questions for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// These addresses, with a TTL in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// The IPv6 addresses among these; a failure to questions for IPv4.
    OnlyIpv6(Vec<IpAddr>, u32),
    /// The IPv4 addresses among these; nothing to questions for IPv6.
    SilentOnIpv6(Vec<IpAddr>, u32),
    /// That the server failed.
    Failure,
    /// That there is no such name.
    Absent,
    /// No answer.
    Silence,
}

impl NameServer {
    /// Starts one at a free port of loopback.
    pub async fn start() -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into()).await
    }

    /// Starts one at this address.
    ///
    /// # Panics
    /// When the address is not to be had.
    pub async fn start_at(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).await;
        let socket = socket.unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = socket.local_addr().unwrap();
        let (zone, questions) = (Zone::default(), Arc::new(Record::default()));
        let mut serving = JoinSet::new();
        serving.spawn(serve(socket, zone.clone(), questions.clone()));
        Self {
            address,
            zone,
            questions,
            _serving: serving,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the addresses of a name, with a TTL in seconds.
    ///
    /// # Panics
    /// When one is no address.
    pub fn set(&self, name: &str, addresses: &[impl ToString], seconds: u32) {
        let addresses = addresses
            .iter()
            .map(|text| text.to_string().parse().unwrap());
        self.set_reply(name, Reply::Addresses(addresses.collect(), seconds));
    }

    /// Sets the reply to questions for a name, written without its last dot.
    pub fn set_reply(&self, name: &str, reply: Reply) {
        self.zone.lock().insert(name.to_owned(), reply);
    }

    /// Sets the addresses of all names that have no reply of their own.
    pub fn set_others(&self, addresses: &[IpAddr]) {
        self.set("", addresses, 60);
    }

    /// A name does not exist from now on.
    pub fn forget(&self, name: &str) {
        self.set_reply(name, Reply::Absent);
    }

    /// Every question, in order.
    pub fn questions(&self) -> &Record<Question> {
        &self.questions
    }

    /// The number of queries for the IPv4 addresses of a name.
    pub fn asked(&self, name: &str) -> usize {
        let questions = self.questions.all();
        let wanted = |question: &&Question| question.name == name && question.kind == A;
        questions.iter().filter(wanted).count()
    }
}

async fn serve(socket: UdpSocket, zone: Zone, questions: Arc<Record<Question>>) {
    let mut buffer = [0; 1500];
    // An error here reports an answer that was not received.
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let message = &buffer[..length];
        let Some(question) = Question::read(message) else {
            continue;
        };
        questions.push(question.clone());
        let reply = {
            let zone = zone.lock();
            zone.get(&question.name).or_else(|| zone.get("")).cloned()
        };
        if let Some(answer) = question.answer(message, reply.unwrap_or(Reply::Absent)) {
            drop(socket.send_to(&answer, from).await);
        }
    }
}

/// The one question of a message.
#[derive(Clone, Debug)]
pub struct Question {
    /// The name, in lower case without the last dot.
    pub name: String,
    /// The queried type: 1 is `A`, 28 is `AAAA`.
    pub kind: u16,
    /// Where the question ends in its message.
    end: usize,
}

impl Question {
    fn read(message: &[u8]) -> Option<Self> {
        let mut labels = Vec::new();
        let mut at = QUESTION;
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            let label = message.get(at..at + length)?;
            labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
            at += length;
        }
        let kind = message.get(at..at + 2)?;
        Some(Self {
            name: labels.join("."),
            end: at + 4,
            kind: u16::from_be_bytes([kind[0], kind[1]]),
        })
    }

    /// The message that answers this question of `message`, unless there is none.
    fn answer(&self, message: &[u8], reply: Reply) -> Option<Vec<u8>> {
        let (addresses, seconds, code) = match reply {
            Reply::Silence => return None,
            Reply::SilentOnIpv6(..) if self.kind == AAAA => return None,
            Reply::OnlyIpv6(..) if self.kind == A => (Vec::new(), 0, 2),
            Reply::Addresses(addresses, seconds)
            | Reply::OnlyIpv6(addresses, seconds)
            | Reply::SilentOnIpv6(addresses, seconds) => (addresses, seconds, 0),
            Reply::Failure => (Vec::new(), 0, 2),
            Reply::Absent => (Vec::new(), 0, 3),
        };
        let data = addresses
            .iter()
            .filter_map(|address| match (self.kind, address) {
                (A, IpAddr::V4(address)) => Some(address.octets().to_vec()),
                (AAAA, IpAddr::V6(address)) => Some(address.octets().to_vec()),
                _ => None,
            });
        let data: Vec<_> = data.collect();
        let question = message.get(QUESTION..self.end)?;
        let mut answer = message[..2].to_vec();
        // An answer with authority to a question that wanted recursion, one question, no more.
        answer.extend([0x85, 0x80 | code, 0, 1]);
        answer.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        answer.extend([0; 4]);
        answer.extend(question);
        for data in data {
            // The name is the question's.
            answer.extend([0xc0, 0x0c]);
            answer.extend(self.kind.to_be_bytes());
            answer.extend([0, 1]);
            answer.extend(seconds.to_be_bytes());
            answer.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            answer.extend(data);
        }
        Some(answer)
    }
}
