//! What readers that stall can make the two programs hold, with default settings, stays within what the
//! operator's guide states.

use std::{net::Ipv4Addr, time::Duration};

use e2e::{
    deadline::eventually,
    entry::Entry,
    program::{Memory, Program},
    system::System,
    upstream::Upstream,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream, UnixListener},
    task::JoinSet,
    time::Instant,
};

const MIB: u64 = 1024 * 1024;

/// The most that one runtime whose answers nobody reads costs the server, in bytes.
const SERVER: u64 = 416 * MIB;

/// The most that requests which no upstream reads cost the client, in bytes.
const CLIENT: u64 = 192 * MIB;

/// Time for the limits to be reached, with programs built for debugging.
const FULL_LIMIT: Duration = Duration::from_secs(120);

/// A program's memory when it holds at least this much, and has not grown for two seconds.
async fn full(program: &Program, least: u64) -> Memory {
    let mut last = (0, Instant::now());
    eventually(FULL_LIMIT, "the program holds what it may", async || {
        let memory = program.memory();
        if memory.peak_bytes != last.0 {
            last = (memory.peak_bytes, Instant::now());
        }
        let is_full = memory.peak_bytes > least && last.1.elapsed() > Duration::from_secs(2);
        is_full.then_some(memory)
    })
    .await
}

/// The addresses that ask, each in a network of its own: one address gets no more than a share.
const ADDRESSES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(127, 1, 0, 1),
    Ipv4Addr::new(127, 2, 0, 1),
    Ipv4Addr::new(127, 3, 0, 1),
];

/// An HTTP/2 connection that announces windows without end, asks for `count` answers of `bytes` each, and
/// reads nothing.
async fn ask_and_read_nothing(from: Ipv4Addr, entry: Entry, count: u32, bytes: u64) -> TcpStream {
    const WINDOW: u32 = (1 << 31) - 1;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    // Literal fields without indexing, RFC 7541, 6.2.2: `:path` is entry 4 of the static table, `:authority` 1.
    let literal = |index: u8, value: &str| {
        let length = u8::try_from(value.len()).unwrap();
        [&[index, length], value.as_bytes()].concat()
    };
    let settings = [&[0, 4], &WINDOW.to_be_bytes()[..]].concat();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &settings));
    sent.extend(frame(8, 0, 0, &(WINDOW - 65_535).to_be_bytes()));
    for number in 0..count {
        // `:method: GET`, `:scheme: http`.
        let mut fields = vec![0x82, 0x86];
        fields.extend(literal(4, &format!("/download?bytes={bytes}")));
        fields.extend(literal(1, entry.host()));
        sent.extend(frame(1, 0x5, 2 * number + 1, &fields));
    }
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut connection = socket.connect(entry.address()).await.unwrap();
    connection.write_all(&sent).await.unwrap();
    connection
}

/// A request with content, which is sent as far as it is taken.
async fn upload(entry: Entry) -> TcpStream {
    let mut connection = entry.connect().await;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {}\r\ncontent-length: {MIB}\r\n\r\n",
        entry.host()
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    // A failure is the end of a request that was cut to keep the limit.
    let _ = connection.write_all(&vec![b'x'; MIB as usize]).await;
    connection
}

#[tokio::test]
async fn answers_that_nobody_reads_cost_the_server_what_the_guide_says() {
    let upstream = Upstream::start().await;
    let system = System::start(&upstream.url()).await;
    let mut connections = Vec::new();
    for from in ADDRESSES {
        for _ in 0..8 {
            connections.push(ask_and_read_nothing(from, system.entry(), 128, 4 * MIB).await);
        }
    }
    let memory = full(system.server().program(), 256 * MIB).await;
    assert!(memory.peak_bytes < SERVER, "{memory:?}");
}

#[tokio::test]
async fn contents_that_no_upstream_reads_cost_the_client_what_the_guide_says() {
    // A Unix socket, whose buffers are small: so the programs hold the contents and not the kernel.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("upstream");
    let upstream = UnixListener::bind(&path).unwrap();
    let mut accepting = JoinSet::new();
    accepting.spawn(async move {
        let mut accepted = Vec::new();
        while let Ok((connection, _)) = upstream.accept().await {
            accepted.push(connection);
        }
    });
    let system = System::start(&format!("unix:{}", path.display())).await;
    let mut uploads = JoinSet::new();
    for _ in 0..512 {
        uploads.spawn(upload(system.entry()));
    }
    let memory = full(system.client().program(), 64 * MIB).await;
    assert!(memory.peak_bytes < CLIENT, "{memory:?}");
}
