//! A name server that says what a test tells it to, on raw packets (RFC 1035).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tunnel_ops::task::Owned;

const A: u16 = 1;
const AAAA: u16 = 28;
const EDNS: u16 = 41;

/// What is said of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// These addresses, and for how many seconds.
    Addresses(Vec<IpAddr>, u32),
    /// Those of IPv6 among these; for IPv4 the server cannot tell.
    OnlyIpv6(Vec<IpAddr>, u32),
    /// Those of IPv4 among these; questions for IPv6 are dropped.
    SilentOnIpv6(Vec<IpAddr>, u32),
    /// The server cannot tell.
    Failure,
    /// Nothing at all.
    Silence,
}

/// The server. Names it was not told of do not exist.
pub(crate) struct NameServer {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    _serving: Owned<()>,
}

#[derive(Default)]
struct Shared {
    names: HashMap<String, Reply>,
    /// Every name that was asked for, with its type.
    asked: Vec<(String, u16)>,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let told = Arc::clone(&shared);
        let serving = Owned::spawn("name server", async move {
            let mut packet = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut packet).await.unwrap();
                if let Some(answer) = answer(&packet[..length], &mut told.lock()) {
                    // Whoever asked may have gone.
                    let _ = socket.try_send_to(&answer, from);
                }
            }
        });
        Self {
            address,
            shared,
            _serving: serving,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on this is said of a whole name, which is written without its last dot.
    pub(crate) fn say(&self, name: &str, said: Reply) {
        self.shared.lock().names.insert(name.to_owned(), said);
    }

    /// These addresses, for so many seconds.
    pub(crate) fn say_addresses(&self, name: &str, addresses: &[&str], ttl: u32) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        self.say(name, Reply::Addresses(addresses.collect(), ttl));
    }

    /// The name is no more.
    pub(crate) fn forget(&self, name: &str) {
        self.shared.lock().names.remove(name);
    }

    /// How often it was asked for a name's IPv4 addresses.
    pub(crate) fn asked(&self, name: &str) -> usize {
        let shared = self.shared.lock();
        let asked = shared.asked.iter();
        asked
            .filter(|(asked, kind)| asked == name && *kind == A)
            .count()
    }
}

fn answer(packet: &[u8], shared: &mut Shared) -> Option<Vec<u8>> {
    let (name, end) = name(packet, 12)?;
    let kind = u16::from_be_bytes(packet.get(end..end + 2)?.try_into().ok()?);
    shared.asked.push((name.clone(), kind));
    let said = shared.names.get(&name);
    let (code, addresses, ttl) = match said {
        None => (3, Vec::new(), 0),
        Some(Reply::Failure) => (2, Vec::new(), 0),
        Some(Reply::Silence) => return None,
        Some(Reply::SilentOnIpv6(..)) if kind == AAAA => return None,
        Some(Reply::OnlyIpv6(..)) if kind == A => (2, Vec::new(), 0),
        Some(
            Reply::Addresses(addresses, ttl)
            | Reply::OnlyIpv6(addresses, ttl)
            | Reply::SilentOnIpv6(addresses, ttl),
        ) => (0, addresses.clone(), *ttl),
    };
    let of_kind =
        |address: &&IpAddr| matches!((kind, address), (A, IpAddr::V4(_)) | (AAAA, IpAddr::V6(_)));
    let addresses: Vec<_> = addresses.iter().filter(of_kind).collect();
    let mut out = packet[..2].to_vec();
    // A response, recursion asked for and there.
    out.extend([0x81, 0x80 | code]);
    for count in [1, u16::try_from(addresses.len()).unwrap(), 0, 0] {
        out.extend(count.to_be_bytes());
    }
    out.extend(&packet[12..end + 4]);
    for address in addresses {
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(ttl.to_be_bytes());
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        out.extend(u16::try_from(octets.len()).unwrap().to_be_bytes());
        out.extend(octets);
    }
    assert_ne!(kind, EDNS, "no type of a question");
    Some(out)
}

/// A name in lower case without its last dot, and where it ends.
fn name(packet: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = packet.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}
