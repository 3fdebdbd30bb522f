//! Tests of the table of streams against itself, and against the `yamux` crate as an independent
//! implementation.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures_util::{AsyncRead, AsyncWrite, task::noop_waker_ref};
use parking_lot::Mutex as PipeLock;
use proptest::prelude::*;

use super::{
    frame::{FrameKind, Header},
    streams::Streams,
    *,
};

fn context() -> Context<'static> {
    Context::from_waker(noop_waker_ref())
}

/// Two ends whose bytes the test moves by hand.
struct Two {
    server: Arc<Mux>,
    client: Arc<Mux>,
    accepted: Vec<MuxStream>,
}

impl Two {
    fn new() -> Self {
        Self {
            server: Mux::new(Side::Server),
            client: Mux::new(Side::Client),
            accepted: Vec::new(),
        }
    }

    fn open(&self) -> MuxStream {
        match self.server.open().unwrap() {
            Opening::Open(stream) => stream,
            Opening::Waiting(_) => panic!("there is room"),
        }
    }

    /// Moves all waiting bytes, until there are none.
    fn settle(&mut self) {
        loop {
            let (up, down) = (self.server.take(), self.client.take());
            if up.is_none() && down.is_none() {
                return;
            }
            if let Some(up) = up {
                self.client
                    .receive(up, |stream| self.accepted.push(stream))
                    .unwrap();
            }
            if let Some(down) = down {
                self.server.receive(down, |_| panic!("a stream")).unwrap();
            }
        }
    }
}

fn write(stream: &mut MuxStream, bytes: &mut Bytes) -> bool {
    while !bytes.is_empty() {
        match stream.poll_write(&mut context(), bytes) {
            Poll::Ready(written) => written.unwrap(),
            Poll::Pending => return false,
        }
    }
    true
}

fn read(stream: &mut MuxStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Poll::Ready(Some(bytes)) = stream.poll_read(&mut context()) {
        all.extend_from_slice(&bytes);
    }
    all
}

#[test]
fn a_writer_waits_for_the_reader_and_no_byte_is_lost() {
    let mut two = Two::new();
    let mut ours = two.open();
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut left = Bytes::from(content.clone());
    let mut got = Vec::new();
    while !write(&mut ours, &mut left) || got.len() < content.len() {
        two.settle();
        let before = got.len();
        got.extend(read(&mut two.accepted[0]));
        assert!(got.len() - before <= 2 * limits::STREAM_WINDOW_BYTES);
        two.settle();
    }
    assert_eq!(got, content);
}

#[test]
fn streams_that_wait_for_the_output_take_turns() {
    let two = Two::new();
    let mut streams: Vec<_> = (0..20).map(|_| two.open()).collect();
    let mut left = vec![Bytes::from(vec![0; 200_000]); 20];
    let mut sent = [0; 20];
    while left.iter().any(|left| !left.is_empty()) {
        for ((stream, left), sent) in streams.iter_mut().zip(&mut left).zip(&mut sent) {
            let before = left.len();
            write(stream, left);
            *sent += before - left.len();
        }
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        // The first few fill the output, which is empty at the start.
        assert!(most - least <= 5 * limits::FRAME_BYTES, "{sent:?}");
        two.server.take();
    }
}

#[test]
fn a_short_message_does_not_wait_for_long_ones() {
    let two = Two::new();
    let (mut long, mut short) = (two.open(), two.open());
    assert!(!write(&mut long, &mut Bytes::from(vec![0; 250_000])));
    assert!(write(&mut short, &mut Bytes::from(vec![0; 500])));
    // Many short writes of a long message have to wait too.
    let all = (0..10_000).filter(|_| write(&mut two.open(), &mut Bytes::from(vec![0; 500])));
    assert!(all.count() < 1_000);
}

#[test]
fn a_dropped_stream_with_a_granted_turn_blocks_no_other() {
    let two = Two::new();
    let mut streams: Vec<_> = (0..30).map(|_| two.open()).collect();
    for stream in &mut streams {
        write(stream, &mut Bytes::from(vec![0; 100_000]));
    }
    let mut last = streams.pop().unwrap();
    while two.server.take().is_some() {}
    drop(streams);
    while two.server.take().is_some() {}
    assert!(write(&mut last, &mut Bytes::from(vec![0; 30_000])));
}

#[test]
fn dropped_streams_leave_nothing_behind() {
    let mut two = Two::new();
    for round in 0..3_000 {
        let mut stream = two.open();
        assert!(write(&mut stream, &mut Bytes::from_static(b"hello")));
        two.settle();
        let mut theirs = two.accepted.pop().unwrap();
        assert_eq!(read(&mut theirs), b"hello");
        match round % 3 {
            0 => drop(stream),
            1 => stream.finish(),
            _ => drop(theirs),
        }
        two.settle();
    }
    for mux in [&two.server, &two.client] {
        let mut streams = mux.streams.lock();
        assert_eq!(streams.counts(), (0, 0, 0));
        streams.trim();
        assert_eq!(streams.output_bytes(), 0);
    }
}

#[test]
fn a_stream_that_is_reset_while_it_waits_keeps_no_turn() {
    let mut two = Two::new();
    let mut streams: Vec<_> = (0..30).map(|_| two.open()).collect();
    for stream in &mut streams {
        assert!(write(stream, &mut Bytes::from_static(b"hello")));
    }
    two.settle();
    for stream in &mut streams {
        write(stream, &mut Bytes::from(vec![0; 200_000]));
    }
    // All but the last are reset by the other end, and not dropped here.
    let mut last = streams.pop().unwrap();
    let _theirs = two.accepted.pop().unwrap();
    two.accepted.clear();
    while let Some(down) = two.client.take() {
        two.server.receive(down, |_| {}).unwrap();
    }
    while two.server.take().is_some() {}
    assert!(write(&mut last, &mut Bytes::from(vec![0; 30_000])));
    assert_eq!(two.server.streams.lock().counts().2, 0);
    drop(streams);
}

#[test]
fn data_beyond_the_window_is_never_stored() {
    use frame::{FrameKind, Header, RST, SYN};
    let header = |flags, stream, value| {
        Header {
            kind: FrameKind::Data,
            flags,
            stream,
            value,
        }
        .encode()
    };
    let flood = vec![0; 4 * limits::STREAM_WINDOW_BYTES];
    // After a reset.
    let mut streams = Streams::new(Side::Client);
    streams
        .receive(Bytes::copy_from_slice(&header(SYN, 1, 0)))
        .unwrap();
    let fits = [&header(RST, 1, 100)[..], &[0; 100]].concat();
    streams.receive(fits.into()).unwrap();
    assert_eq!(streams.poll_read(1, &context(), None), Poll::Ready(None));
    let again = Bytes::copy_from_slice(&header(RST, 1, 100));
    assert!(matches!(streams.receive(again), Err(MuxError::Protocol(_))));
    // With a reset.
    let mut streams = Streams::new(Side::Client);
    let opened = Bytes::copy_from_slice(&header(SYN, 1, 0));
    streams.receive(opened).unwrap();
    let reset = Bytes::copy_from_slice(&header(RST, 1, flood.len() as u32));
    assert!(matches!(streams.receive(reset), Err(MuxError::Protocol(_))));
    // For a stream that does not exist, but could be opened while the frame is being received.
    let mut streams = Streams::new(Side::Server);
    let early = Bytes::copy_from_slice(&header(0, 1, flood.len() as u32));
    assert!(matches!(streams.receive(early), Err(MuxError::Protocol(_))));
}

#[test]
fn no_output_is_longer_than_a_batch() {
    let two = Two::new();
    let mut long = two.open();
    write(&mut long, &mut Bytes::from(vec![0; 200_000]));
    for _ in 0..200 {
        let _ = write(&mut two.open(), &mut Bytes::from(vec![0; 1_500]));
    }
    while let Some(piece) = two.server.take() {
        assert!(piece.len() <= limits::BATCH_BYTES);
        write(&mut long, &mut Bytes::from(vec![0; 20_000]));
        if two.server.streams.lock().output_bytes() == 0 {
            break;
        }
    }
}

#[test]
fn a_stream_is_unanswered_from_its_announcement_until_anything_is_received() {
    let mut two = Two::new();
    let mut streams = [two.open(), two.open(), two.open()];
    assert_eq!(two.server.waiting_since(), None, "not announced yet");
    for stream in &streams {
        stream.announce();
        stream.announce();
    }
    two.settle();
    assert_eq!(two.accepted.len(), streams.len());
    assert!(two.server.waiting_since().is_some());
    for theirs in &mut two.accepted {
        assert!(theirs.is_quiet());
    }
    // One is accepted, one reset, one dropped.
    let mut theirs = two.accepted.remove(0);
    assert!(write(&mut theirs, &mut Bytes::from_static(&[1])));
    two.accepted.remove(0);
    two.settle();
    assert!(two.server.waiting_since().is_some());
    assert_eq!(read(&mut streams[0]), [1]);
    let [_accepted, _reset, dropped] = streams;
    drop(dropped);
    assert_eq!(two.server.waiting_since(), None);
}

/// Streams on each of which the client has sent a whole window, all of it unread.
fn unread(two: &mut Two, count: usize) -> Vec<MuxStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = two.open();
        stream.announce();
        two.settle();
        let mut theirs = two.accepted.pop().unwrap();
        let mut content = Bytes::from(vec![7; limits::STREAM_WINDOW_BYTES]);
        while !content.is_empty() && !theirs.is_reset() {
            write(&mut theirs, &mut content);
            two.settle();
        }
        two.accepted.insert(0, theirs);
        streams.push(stream);
    }
    streams
}

#[test]
fn above_an_accounts_limit_unread_streams_are_reset_and_marked() {
    const LIMIT: usize = 4 * limits::STREAM_WINDOW_BYTES;
    let mut two = Two::new();
    let account = MemoryAccount::new(LIMIT);
    two.server.set_account(&account);
    let mut streams = unread(&mut two, 20);
    let held = account.held();
    assert!(held <= LIMIT && held > LIMIT / 2, "{held}");
    let shed = streams.iter().filter(|stream| stream.is_shed()).count();
    assert!(shed >= 16, "{shed}");
    // The other end has received the resets, and the other streams are whole.
    let reset = two.accepted.iter().filter(|stream| stream.is_reset());
    assert_eq!(reset.count(), shed);
    for stream in &mut streams {
        let read = read(stream).len();
        assert!(stream.is_shed() || read == limits::STREAM_WINDOW_BYTES);
    }
    drop(streams);
    drop(two);
    assert_eq!(account.held(), 0);
}

#[test]
fn bytes_held_before_the_account_was_set_count_from_then_on() {
    let mut two = Two::new();
    let before = unread(&mut two, 2);
    let account = MemoryAccount::new(usize::MAX);
    two.server.set_account(&account);
    drop(before);
    let held = account.held();
    assert_eq!(held, 0);
    let streams = unread(&mut two, 2);
    assert!(account.held() > limits::STREAM_WINDOW_BYTES);
    drop((streams, two));
    assert_eq!(account.held(), 0);
}

#[test]
fn a_release_reported_before_its_hold_resets_no_stream() {
    const LIMIT: usize = 4 * limits::STREAM_WINDOW_BYTES;
    let mut two = Two::new();
    let account = MemoryAccount::new(LIMIT);
    two.server.set_account(&account);
    // As when the reader's thread reports before the receiver's thread has.
    account.release(LIMIT);
    assert_eq!(account.held(), 0);
    assert!(!account.is_scarce());
    let streams = unread(&mut two, 1);
    assert!(!streams[0].is_shed());
    account.hold(LIMIT);
    assert!(account.held() >= limits::STREAM_WINDOW_BYTES);
    drop((streams, two));
    assert_eq!(account.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn streams_with_stalled_readers_are_reset_first() {
    let mut two = Two::new();
    let [mut came_late, mut stalled, large] = [two.open(), two.open(), two.open()];
    for stream in [&came_late, &stalled, &large] {
        stream.announce();
    }
    two.settle();
    let send = |two: &mut Two, stream: usize, bytes| {
        let mut bytes = Bytes::from(vec![7; bytes]);
        assert!(write(&mut two.accepted[stream], &mut bytes));
        two.settle();
    };
    for stream in [0, 0, 1] {
        send(&mut two, stream, 8 * 1024);
    }
    assert_eq!(read(&mut came_late).len(), 16 * 1024);
    assert_eq!(read(&mut stalled).len(), 8 * 1024);
    send(&mut two, 1, 8 * 1024);
    tokio::time::advance(2 * streams::STALLED_AFTER).await;
    send(&mut two, 0, 16 * 1024);
    send(&mut two, 2, 64 * 1024);
    assert!(two.server.shed());
    assert!(stalled.is_shed() && !came_late.is_shed() && !large.is_shed());
    // Among readers that are not stalled, the largest.
    assert!(two.server.shed());
    assert!(large.is_shed() && !came_late.is_shed());
}

#[test]
fn one_accounts_bytes_reset_no_stream_of_another() {
    const LIMIT: usize = 8 * limits::STREAM_WINDOW_BYTES;
    let node = MemoryAccount::new(LIMIT);
    let accounts = [(); 2].map(|()| MemoryAccount::within(&node, LIMIT / 2));
    let [mut greedy, mut modest] = accounts.each_ref().map(|account| {
        let two = Two::new();
        two.server.set_account(account);
        two
    });
    let kept = unread(&mut modest, 1);
    let _streams = unread(&mut greedy, 40);
    assert!(kept.iter().all(|stream| !stream.is_shed()));
    assert!(node.held() <= LIMIT && node.is_scarce());
    // Of two accounts that exceed the limit together, the one that holds more has to release.
    node.set_limit(LIMIT / 2);
    let _more = unread(&mut greedy, 1);
    assert!(node.held() <= LIMIT / 2);
    assert!(kept.iter().all(|stream| !stream.is_shed()));
}

#[test]
fn data_for_ended_streams_beyond_their_windows_is_a_protocol_error() {
    let mut two = Two::new();
    let stream = two.open();
    stream.announce();
    two.settle();
    let frame = |stream, length| Header {
        kind: FrameKind::Data,
        flags: 0,
        stream,
        value: u32::try_from(length).unwrap(),
    };
    let send = |header: Header| {
        let body = vec![0; header.value as usize];
        let bytes = [&header.encode()[..], &body].concat();
        two.server.receive(bytes.into(), |_| {})
    };
    send(frame(1, 1_000)).unwrap();
    drop(stream);
    let allowed = limits::STREAM_WINDOW_BYTES - 1_000;
    send(frame(1, allowed)).unwrap();
    assert!(matches!(send(frame(1, 1)), Err(MuxError::Protocol(_))));
}

#[test]
fn a_reader_learns_why_the_session_ended() {
    let two = Two::new();
    let stream = two.open();
    assert_eq!(stream.close_reason(), None);
    two.server.end(CloseReason::Drained);
    two.server.end(CloseReason::Dead);
    assert_eq!(stream.close_reason(), Some(CloseReason::Drained));
    assert!(stream.is_reset());
}

/// The byte stream below the crate's connection.
#[derive(Clone, Default)]
struct Pipe(Arc<PipeLock<(BytesMut, BytesMut)>>);

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        space: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.lock();
        let length = pipe.0.len().min(space.len());
        if length == 0 {
            return Poll::Pending;
        }
        space[..length].copy_from_slice(&pipe.0.split_to(length));
        Poll::Ready(Ok(length))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().1.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Our table, with the crate at the other end echoing every stream.
struct Crate {
    ours: Arc<Mux>,
    theirs: yamux::Connection<Pipe>,
    pipe: Pipe,
    streams: Vec<(yamux::Stream, BytesMut)>,
}

impl Crate {
    fn new() -> Self {
        let pipe = Pipe::default();
        Self {
            ours: Mux::new(Side::Server),
            theirs: yamux::Connection::new(
                pipe.clone(),
                yamux::Config::default(),
                yamux::Mode::Server,
            ),
            pipe,
            streams: Vec::new(),
        }
    }

    /// Moves all waiting bytes, in pieces of this length, until there are none.
    fn settle(&mut self, piece: usize) {
        loop {
            let mut moved = false;
            while let Some(bytes) = self.ours.take() {
                self.pipe.0.lock().0.extend_from_slice(&bytes);
                moved = true;
            }
            while let Poll::Ready(Some(stream)) = self.theirs.poll_next_inbound(&mut context()) {
                self.streams.push((stream.unwrap(), BytesMut::new()));
                moved = true;
            }
            for (stream, held) in &mut self.streams {
                moved |= echo(stream, held);
            }
            let _ = self.theirs.poll_next_inbound(&mut context());
            let said = self.pipe.0.lock().1.split();
            moved |= !said.is_empty();
            for piece in said.chunks(piece) {
                let received = self.ours.receive(Bytes::copy_from_slice(piece), |_| {});
                received.unwrap();
            }
            if !moved {
                return;
            }
        }
    }
}

/// Reads what there is and writes it back.
fn echo(stream: &mut yamux::Stream, held: &mut BytesMut) -> bool {
    let mut moved = false;
    let mut space = [0; 4_096];
    while let Poll::Ready(Ok(read @ 1..)) =
        Pin::new(&mut *stream).poll_read(&mut context(), &mut space)
    {
        held.extend_from_slice(&space[..read]);
        moved = true;
    }
    while !held.is_empty()
        && let Poll::Ready(Ok(written)) = Pin::new(&mut *stream).poll_write(&mut context(), held)
    {
        let _ = held.split_to(written);
        moved = true;
    }
    moved
}

#[test]
fn the_crate_accepts_a_stream_on_which_nothing_was_written() {
    let mut pair = Crate::new();
    let Ok(Opening::Open(mut stream)) = pair.ours.open() else {
        panic!("there is room")
    };
    stream.announce();
    pair.settle(1_000);
    assert_eq!(pair.streams.len(), 1);
    // The crate accepts, and from then on the stream is like any other.
    pair.streams[0].1.extend_from_slice(&[1]);
    pair.settle(1_000);
    assert_eq!(read(&mut stream), [1]);
    assert_eq!(pair.ours.streams.lock().counts(), (1, 0, 0));
    assert!(write(&mut stream, &mut Bytes::from_static(b"hello")));
    pair.settle(1_000);
    assert_eq!(read(&mut stream), b"hello");
    stream.finish();
    pair.settle(1_000);
    assert_eq!(pair.ours.streams.lock().counts(), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn streams_to_the_crate_and_back_are_unchanged(
        lengths in proptest::collection::vec(1_usize..400_000, 1..8),
        piece in 1_usize..5_000,
    ) {
        let mut pair = Crate::new();
        let mut streams: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(number, length)| {
                let Ok(Opening::Open(stream)) = pair.ours.open() else { panic!("there is room") };
                let content: Vec<u8> = (0..*length).map(|at| (at * 7 + number) as u8).collect();
                (stream, Bytes::from(content.clone()), content, Vec::new())
            })
            .collect();
        for _ in 0..10_000 {
            for (stream, left, _, got) in &mut streams {
                write(stream, left);
                got.extend(read(stream));
            }
            pair.settle(piece);
            if streams.iter().all(|(_, _, content, got)| got.len() == content.len()) {
                break;
            }
        }
        for (_, _, content, got) in streams {
            prop_assert!(got == content, "{} of {}", got.len(), content.len());
        }
    }

    #[test]
    fn no_input_causes_a_panic_or_unbounded_memory(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        for side in [Side::Server, Side::Client] {
            let mut streams = Streams::new(side);
            let _ = streams.open();
            let _ = streams.receive(Bytes::from(bytes.clone()));
            prop_assert!(streams.output_bytes() <= 2 * limits::OUTPUT_BYTES + 12);
        }
    }
}
