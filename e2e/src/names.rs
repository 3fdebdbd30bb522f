//! A name server that knows what a test tells it, and can be told otherwise while it runs.
//!
//! It answers questions for `A` and `AAAA` over UDP. A name that it does not know does not exist;
//! one that was silenced gets no answer. Every question is in its record.

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

/// A running name server.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    zone: Zone,
    asked: Arc<Record<String>>,
    _serving: JoinSet<()>,
}

/// What is known, by name; under the empty name, what is said of all others.
type Zone = Arc<Mutex<HashMap<String, Entry>>>;

/// What, put before a program and its arguments, has the system's own look-ups ask a name server at
/// this address, port 53, and nobody else. It needs root.
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

/// What a name leads to.
#[derive(Clone, Debug)]
enum Entry {
    /// These addresses, for so many seconds.
    Addresses(Vec<IpAddr>, u32),
    /// The answer that there is no such name.
    Absent,
    /// Nothing, not even an answer.
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
        let (zone, asked) = (Zone::default(), Arc::new(Record::default()));
        let mut serving = JoinSet::new();
        serving.spawn(serve(socket, zone.clone(), asked.clone()));
        Self {
            address,
            zone,
            asked,
            _serving: serving,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A name leads to these addresses from now on; who hears it may believe it for so many seconds.
    pub fn set(&self, name: &str, addresses: &[IpAddr], seconds: u32) {
        let entry = Entry::Addresses(addresses.to_vec(), seconds);
        self.zone.lock().insert(name.to_owned(), entry);
    }

    /// Every name that nothing else is known of leads to these addresses from now on.
    pub fn set_others(&self, addresses: &[IpAddr]) {
        self.set("", addresses, 60);
    }

    /// A name does not exist from now on.
    pub fn forget(&self, name: &str) {
        self.zone.lock().insert(name.to_owned(), Entry::Absent);
    }

    /// Questions for a name get no answer from now on.
    pub fn silence(&self, name: &str) {
        self.zone.lock().insert(name.to_owned(), Entry::Silence);
    }

    /// The names that were asked for, in lower case without the last dot, in order.
    pub fn asked(&self) -> &Record<String> {
        &self.asked
    }
}

async fn serve(socket: UdpSocket, zone: Zone, asked: Arc<Record<String>>) {
    let mut buffer = [0; 1500];
    // An error here is word of an answer that nobody took.
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let Some(question) = Question::read(&buffer[..length]) else {
            continue;
        };
        asked.push(question.name.clone());
        let entry = {
            let zone = zone.lock();
            zone.get(&question.name).or_else(|| zone.get("")).cloned()
        };
        if let Some(answer) = question.answer(entry.unwrap_or(Entry::Absent)) {
            drop(socket.send_to(&answer, from).await);
        }
    }
}

/// The one question of a message.
struct Question<'a> {
    message: &'a [u8],
    name: String,
    /// Where the question ends.
    end: usize,
    /// What is asked for: 1 is `A`, 28 is `AAAA`.
    kind: u16,
}

impl<'a> Question<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
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
            message,
            name: labels.join("."),
            end: at + 4,
            kind: u16::from_be_bytes([kind[0], kind[1]]),
        })
    }

    fn answer(&self, entry: Entry) -> Option<Vec<u8>> {
        let (addresses, seconds, code) = match entry {
            Entry::Silence => return None,
            Entry::Addresses(addresses, seconds) => (addresses, seconds, 0),
            Entry::Absent => (Vec::new(), 0, 3),
        };
        let data = addresses
            .iter()
            .filter_map(|address| match (self.kind, address) {
                (1, IpAddr::V4(address)) => Some(address.octets().to_vec()),
                (28, IpAddr::V6(address)) => Some(address.octets().to_vec()),
                _ => None,
            });
        let data: Vec<_> = data.collect();
        let question = self.message.get(QUESTION..self.end)?;
        let mut answer = self.message[..2].to_vec();
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
