//! A path between two sessions with a long delay and a low rate, without loss.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// The properties of each direction of a path.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// The one-way delay.
    pub(crate) delay: Duration,
    pub(crate) bytes_each_second: u32,
    /// Bytes that an end can write before it blocks.
    pub(crate) buffer: usize,
}

/// Bytes that are forwarded at once.
const PIECE: usize = 512;

impl Path {
    /// Starts the path, which runs until the tasks are dropped; returns its ends for the server and the
    /// client.
    pub(crate) fn start(self) -> (JoinSet<()>, DuplexStream, DuplexStream) {
        let (server, server_side) = duplex(self.buffer);
        let (client, client_side) = duplex(self.buffer);
        let (server_read, server_write) = tokio::io::split(server_side);
        let (client_read, client_write) = tokio::io::split(client_side);
        let mut tasks = JoinSet::new();
        self.carry(&mut tasks, server_read, client_write);
        self.carry(&mut tasks, client_read, server_write);
        (tasks, server, client)
    }

    fn carry(
        self,
        tasks: &mut JoinSet<()>,
        mut from: impl AsyncRead + Unpin + Send + 'static,
        mut to: impl AsyncWrite + Unpin + Send + 'static,
    ) {
        let (set_out, mut on_the_way) = mpsc::channel::<(Instant, Bytes)>(100_000);
        tasks.spawn(async move {
            let mut piece = [0; PIECE];
            while let Ok(length @ 1..) = from.read(&mut piece).await {
                let bytes = Bytes::copy_from_slice(&piece[..length]);
                let length = u32::try_from(length).unwrap();
                sleep(Duration::from_secs(1) * length / self.bytes_each_second).await;
                if set_out.send((Instant::now(), bytes)).await.is_err() {
                    return;
                }
            }
        });
        tasks.spawn(async move {
            while let Some((set_out, bytes)) = on_the_way.recv().await {
                sleep_until(set_out + self.delay).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
    }
}
