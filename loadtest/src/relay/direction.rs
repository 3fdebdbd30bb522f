//! One direction of a link.
//!
//! A piece that was read waits until the link has sent what came before it, takes its own time at
//! the link's rate, and is then under way for the delay. That is a token bucket without tokens to
//! save: a link that was idle may not send faster afterwards.

use std::{cell::Cell, io, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    io::AsyncWriteExt as _,
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep_until},
};

use crate::relay::Link;

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
#[derive(Debug)]
pub(super) struct Direction {
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
    pub(super) fn new(link: Link) -> Self {
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
    pub(super) async fn carry(self: Rc<Self>, from: OwnedReadHalf, to: OwnedWriteHalf) {
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
    use crate::{relay, serve};

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

    /// A server that echoes, behind a relay; gives the relay's address.
    async fn echo_behind(link: Link) -> std::net::SocketAddr {
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
        let connections = relay::connections(to, link);
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
