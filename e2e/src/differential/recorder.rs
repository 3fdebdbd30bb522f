//! An upstream that records each request as the strict reader reads it, and answers `204`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use testkit::{
    differential::strict::{self, Message, Missing},
    listener::Listener,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::deadline::{SOON, eventually};

const NO_CONTENT: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A request that came.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What it says.
    pub message: Message,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A running upstream.
pub struct Recorder {
    listener: Listener,
    record: Arc<Record>,
}

#[derive(Default)]
struct Record {
    requests: Mutex<Vec<Recorded>>,
    /// What came that is no request.
    violations: Mutex<Vec<Vec<u8>>>,
    /// Connections in the middle of a request.
    busy: AtomicUsize,
}

/// Counts a connection that is in the middle of a request, while it is.
struct Busy<'a>(&'a AtomicUsize);

impl Recorder {
    /// Starts one.
    pub async fn start() -> Self {
        let record = Arc::new(Record::default());
        let shared = Arc::clone(&record);
        let listener = Listener::plain(move |socket| serve(socket, Arc::clone(&shared))).await;
        Self { listener, record }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Takes the requests, once no connection is in the middle of one.
    pub async fn take(&self) -> Vec<Recorded> {
        let what = "the upstream's connections to be at rest";
        let busy = || self.record.busy.load(Ordering::Acquire);
        eventually(SOON, what, async || (busy() == 0).then_some(())).await;
        std::mem::take(&mut self.record.requests.lock())
    }

    /// Takes what came that is no request.
    pub fn take_violations(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.record.violations.lock())
    }
}

async fn serve(mut socket: TcpStream, record: Arc<Record>) {
    let mut unread = Vec::new();
    let mut busy = None;
    let mut has_continued = false;
    loop {
        match strict::next(&unread) {
            Ok((message, length, _)) => {
                let bytes: Vec<_> = unread.drain(..length).collect();
                record.requests.lock().push(Recorded { message, bytes });
                (busy, has_continued) = (None, false);
                if socket.write_all(NO_CONTENT).await.is_err() {
                    return;
                }
                continue;
            }
            Err(Missing::More { expects_continue }) => {
                if expects_continue && !has_continued {
                    has_continued = true;
                    drop(socket.write_all(CONTINUE).await);
                }
            }
            Err(Missing::Violation) => {
                record.violations.lock().push(unread);
                return;
            }
        }
        if busy.is_none() && !unread.is_empty() {
            busy = Some(Busy::begin(&record.busy));
        }
        match socket.read_buf(&mut unread).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

impl<'a> Busy<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
