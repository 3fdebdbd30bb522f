//! A link between two programs: bytes through it are late by a set time, and no faster than a set
//! rate, in each direction. It understands nothing of what it carries.
//!
//! ```text
//!   client ══▶ read ─▶ [ buffer: waits for the link, then travels ] ─▶ write ══▶ server
//!   client ◀══ write ◀─ [ likewise, with a rate of its own         ] ◀─ read ◀══ server
//! ```
//!
//! All connections share the link: its rate and its buffer are theirs together. When the buffer is
//! full nothing more is read, so the sender is held back as by a real link, but nothing is lost.

use std::{
    cell::Cell, future::Future, io, net::SocketAddr, pin::Pin, rc::Rc, str::FromStr, sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::AsyncWriteExt as _,
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep_until},
};

use crate::serve::{self, FREE_PORT};

/// What kind of link it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// How late each byte is, one way.
    pub delay: Duration,
    /// How much passes in each direction; none: as much as comes.
    pub rate: Option<BitRate>,
}

/// Flags of `loadtest relay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to carry the connections to
    #[arg(long, value_name = "IP:PORT")]
    pub to: SocketAddr,
    /// How late each byte is, one way
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub delay: Duration,
    /// How much passes in each direction, such as 200Mbit
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
}

/// Relays until the process ends. Says where it listens in one line on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn run(args: Args) -> anyhow::Result<()> {
    let link = Link {
        delay: args.delay,
        rate: args.rate,
    };
    serve::run(FREE_PORT, connections(args.to, link))
}

/// Carries each connection over one link to `to`.
fn connections(
    to: SocketAddr,
    link: Link,
) -> impl Fn(TcpStream) -> Pin<Box<dyn Future<Output = ()>>> {
    let up = Rc::new(Direction::new(link));
    let down = Rc::new(Direction::new(link));
    move |stream| Box::pin(carry(stream, to, up.clone(), down.clone()))
}

/// One connection, until both directions have ended. Where the server cannot be reached, the
/// client sees its connection closed.
async fn carry(client: TcpStream, to: SocketAddr, up: Rc<Direction>, down: Rc<Direction>) {
    let Ok(server) = TcpStream::connect(to).await else {
        return;
    };
    // It fails only on a socket that is already dead, which the first read tells.
    drop(server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        up.carry(from_client, to_server),
        down.carry(from_server, to_client)
    );
}

/// Names of the units, and their size in bits. The longer ones come first, as `bit` ends them all.
const UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

/// So many bits a second, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(u64);

impl BitRate {
    /// Bits a second.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Bytes a second.
    pub fn bytes(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// How long so many bytes take.
    pub fn time(self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes())
    }
}

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a rate is written as 200Mbit (kbit, Mbit or Gbit a second)".to_owned();
        let lower = text.trim().to_ascii_lowercase();
        let lower = lower.strip_suffix("/s").unwrap_or(&lower);
        let unit = |(name, size): &(&str, f64)| Some((lower.strip_suffix(name)?, *size));
        let (number, size) = UNITS.iter().find_map(unit).ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let bits = number * size;
        if (1.0..=1e15).contains(&bits) {
            Ok(Self(bits.round() as u64))
        } else {
            Err(wrong())
        }
    }
}

/// Buffer, in products of rate and delay: one is under way, the others may wait.
const PRODUCTS: f64 = 4.0;

/// The least buffer: a link that is slow or near still takes a few pieces.
const LEAST_BUFFER: usize = 256 * 1024;

/// The buffer where rate or delay do not bound it, and the most that they may ask for.
const MOST_BUFFER: usize = 256 * 1024 * 1024;

/// What is read at once is what the link sends in this time, since timers tick in milliseconds.
const PIECE_TIME: Duration = Duration::from_millis(1);

/// Bounds of what is read at once. The larger is below the least buffer.
const PIECES: (usize, usize) = (2 * 1024, 128 * 1024);

/// Pieces of one connection under way; the buffer bounds their bytes, this bounds tiny ones.
const UNDER_WAY: usize = 16 * 1024;

/// A direction of a link, shared by all connections.
///
/// A piece that was read waits until the link has sent what came before it, takes its own time at the link's rate, and is
/// then under way for the delay. That is a token bucket without tokens to save: a link that was idle may not send faster
/// afterwards.
#[derive(Debug)]
struct Direction {
    link: Link,
    piece: usize,
    room: Arc<Semaphore>,
    free: Cell<Option<Instant>>,
}

/// Bytes under way; none of them is the end.
struct Piece {
    due: Instant,
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Direction {
    /// An idle one.
    fn new(link: Link) -> Self {
        let room = link.rate.map_or(MOST_BUFFER, |rate| {
            let product = rate.bytes() * link.delay.as_secs_f64();
            ((product * PRODUCTS) as usize).clamp(LEAST_BUFFER, MOST_BUFFER)
        });
        let piece = link.rate.map_or(PIECES.1, |rate| {
            let sent = rate.bytes() * PIECE_TIME.as_secs_f64();
            (sent as usize).clamp(PIECES.0, PIECES.1)
        });
        Self {
            link,
            piece,
            room: Arc::new(Semaphore::new(room)),
            free: Cell::new(None),
        }
    }

    /// When so many bytes that are there `now` arrive at the other end.
    fn arrival(&self, now: Instant, bytes: usize) -> Instant {
        let begin = self.free.get().map_or(now, |free| free.max(now));
        let sent = begin
            + self
                .link
                .rate
                .map_or(Duration::ZERO, |rate| rate.time(bytes));
        self.free.set(Some(sent));
        sent + self.link.delay
    }

    /// Carries one connection's bytes until they end, and then their end.
    async fn carry(self: Rc<Self>, from: OwnedReadHalf, to: OwnedWriteHalf) {
        let (sender, receiver) = mpsc::channel(UNDER_WAY);
        tokio::join!(self.read(from, sender), write(receiver, to));
    }

    async fn read(&self, from: OwnedReadHalf, sender: mpsc::Sender<Piece>) {
        let mut buffer = vec![0; self.piece];
        loop {
            // Room is taken only when there is something to read: idle connections hold none.
            if from.readable().await.is_err() {
                return;
            }
            let Some(mut room) = self.take_room().await else {
                return;
            };
            let length = match from.try_read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                // A broken connection: what is under way still arrives.
                Err(_) => 0,
            };
            let piece = Piece {
                due: self.arrival(Instant::now(), length),
                bytes: Bytes::copy_from_slice(&buffer[..length]),
                _room: room.split(length),
            };
            drop(room);
            if sender.send(piece).await.is_err() || length == 0 {
                return;
            }
        }
    }

    async fn take_room(&self) -> Option<OwnedSemaphorePermit> {
        let wanted = u32::try_from(self.piece).ok()?;
        self.room.clone().acquire_many_owned(wanted).await.ok()
    }
}

/// Hands over each piece when it is due. The direction's room is given back when it was taken.
async fn write(mut pieces: mpsc::Receiver<Piece>, mut to: OwnedWriteHalf) {
    while let Some(piece) = pieces.recv().await {
        if piece.due > Instant::now() {
            sleep_until(piece.due).await;
        }
        if to.write_all(&piece.bytes).await.is_err() {
            return;
        }
    }
    // The peer that is gone already needs no end.
    drop(to.shutdown().await);
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::AsyncReadExt as _,
        net::{TcpListener, TcpStream},
        task::LocalSet,
    };

    use super::*;
    use crate::serve;

    #[test]
    fn is_read_as_people_write_it() {
        for (text, bits) in [
            ("200Mbit", 200_000_000),
            ("1.5 gbit/s", 1_500_000_000),
            ("64kbit", 64_000),
            ("9bit", 9),
        ] {
            assert_eq!(text.parse::<BitRate>().unwrap().bits(), bits, "{text}");
        }
        for text in [
            "", "200", "200MB", "-1Mbit", "0Mbit", "NaNbit", "infMbit", "bit",
        ] {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
    }

    fn link(delay: u64, rate: &str) -> Link {
        Link {
            delay: Duration::from_millis(delay),
            rate: Some(rate.parse().unwrap()),
        }
    }

    #[test]
    fn pieces_wait_for_one_another_and_then_travel() {
        let direction = Direction::new(link(20, "8Mbit"));
        let now = Instant::now();
        let after = |milliseconds| now + Duration::from_millis(milliseconds);
        assert_eq!(direction.arrival(now, 1_000), after(1 + 20));
        assert_eq!(direction.arrival(now, 2_000), after(3 + 20));
        // A pause saves nothing up.
        assert_eq!(direction.arrival(after(100), 1_000), after(101 + 20));
    }

    #[test]
    fn the_buffer_is_a_few_times_what_is_under_way() {
        let direction = Direction::new(link(50, "200Mbit"));
        assert_eq!(direction.room.available_permits(), 5_000_000);
        assert_eq!(direction.piece, 25_000);
        assert_eq!(
            Direction::new(link(1, "1kbit")).room.available_permits(),
            LEAST_BUFFER
        );
    }

    /// A server that echoes, behind a relay; returns the relay's address.
    async fn echo_behind(link: Link) -> SocketAddr {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = server.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                tokio::task::spawn_local(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await.unwrap();
                    to.shutdown().await.unwrap();
                });
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = connections(to, link);
        tokio::task::spawn_local(serve::each(listener, connections));
        address
    }

    #[tokio::test]
    async fn takes_at_least_the_computed_time_and_loses_nothing() {
        let test = async {
            let address = echo_behind(link(20, "8Mbit")).await;
            let begun = Instant::now();
            let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
            let sent: Vec<u8> = (0..300_000_u32)
                .map(|number| (number % 251) as u8)
                .collect();
            let mut got = Vec::new();
            let send = async {
                to.write_all(&sent).await.unwrap();
                to.shutdown().await.unwrap();
            };
            let (_, read) = tokio::join!(send, from.read_to_end(&mut got));
            read.unwrap();
            assert!(
                got == sent,
                "{} of {} bytes came back",
                got.len(),
                sent.len()
            );
            // 300,000 bytes at a million a second, and the delay there and back.
            let least = Duration::from_millis(300 + 40);
            assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn connections_share_the_rate() {
        let test = async {
            let address = echo_behind(link(0, "8Mbit")).await;
            let begun = Instant::now();
            let one = || async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(&[1; 100_000]).await.unwrap();
                let mut back = vec![0; 100_000];
                stream.read_exact(&mut back).await.unwrap();
            };
            tokio::join!(one(), one());
            assert!(
                begun.elapsed() >= Duration::from_millis(200),
                "{:?}",
                begun.elapsed()
            );
        };
        LocalSet::new().run_until(test).await;
    }
}
