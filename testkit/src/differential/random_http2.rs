//! Frames of HTTP/2 clients: some requests whose frames are interleaved, most of them with something odd in one place.

use super::random_http1::{is_rare, latin1, mostly};
use crate::{http2::Frame, random::Random};

#[rustfmt::skip]
const METHODS: [&str; 12] = [
    "GET", "GET", "GET", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "G T",
];

/// Paths, of which `{h}` is the host. None has a fragment, which the `http` crate removes without a word.
#[rustfmt::skip]
const PATHS: [&str; 24] = [
    "/a", "/", "/a//b", "//a", "/a/../b", "/%2e%2e", "/a?b?c", "/?", "/a\\b", "/a\"b", "/a%0d%0ab", "/a b", "/a\r\nX: y", "/a<b",
    "*", "", "a", "?a", "http://{h}/a", "/\u{e4}", "/a HTTP/1.1\r\nHost: x\r\n\r\nGET /", "/a\0", "/a\tb", "/{a}",
];

#[rustfmt::skip]
const AUTHORITIES: [&str; 12] = [
    "{h}", "{h}:80", "{h}.", "other.{h}", "", "u@{h}", "{h}/a", "{h} ", "{h},{h}", "{h}\r\n", "{h}?a", "{h}#a",
];

const SCHEMES: [&str; 8] = [
    "http",
    "https",
    "http",
    "HTTP",
    "ftp",
    "",
    "http://{h}/?",
    "ht tp",
];

/// Fields, of which `{h}` is the host and `{n}` the length of the content.
#[rustfmt::skip]
const FIELDS: [(&str, &str); 52] = [
    ("x-a", "b"), ("x-a", "c"), ("x-b", ""), ("x-c", "a\tb"), ("x-d", " a"), ("x-d", "a "), ("x-e", "a\r\nX: y"), ("x-e", "a\nb"),
    ("x-e", "a\rb"), ("x-f", "a\0b"), ("x-g", "\u{e4}"), ("x-h", "a\u{7f}b"), ("X-I", "a"), ("x_j", "a"), ("x k", "a"), ("x:l", "a"),
    ("x-m:", "a"), ("x;o", "a"), ("x-n\r\n", "a"), ("x\"o", "a"), ("x-p\0", "a"), ("connection", "close"), ("connection", "x-a"),
    ("transfer-encoding", "chunked"), ("transfer-encoding", "identity"), ("upgrade", "h2c"), ("keep-alive", "timeout=5"),
    ("proxy-connection", "close"), ("te", "trailers"), ("te", "gzip"), ("te", "trailers, gzip"), ("host", "{h}"),
    ("host", "other.{h}"), ("host", ""), ("content-length", "{n}"), ("content-length", "0"), ("content-length", "1"),
    ("content-length", "+{n}"), ("content-length", "{n}, {n}"), ("content-length", " {n}"), ("content-length", ""),
    ("content_length", "9"), ("Content-Length", "9"), ("content-length", "18446744073709551616"), ("expect", "100-continue"),
    ("expect", "a"), ("cookie", "a=b"), ("cookie", "c=d"), ("trailer", "x-t"), ("trailer", "x-t, content-length"),
    ("content-length\0", "5"), ("transfer-encoding ", "chunked"),
];

#[rustfmt::skip]
const PSEUDO_FIELDS: [(&str, &str); 9] = [
    (":method", "POST"), (":path", "/b"), (":authority", "other.{h}"), (":authority", "{h}"), (":scheme", "http"), (":status", "200"),
    (":protocol", "foo"), (":", "a"), (":Path", "/b"),
];

#[rustfmt::skip]
const TRAILERS: [(&str, &str); 12] = [
    ("x-t", "a"), ("x-t", "b"), ("x-u", "a"), (":path", "/b"), ("content-length", "5"), ("transfer-encoding", "chunked"), ("X-T", "a"),
    ("x-t", "a\r\nb"), ("host", "other.{h}"), ("x-t", " a"), ("x_t", "a"), ("connection", "x-t"),
];

#[rustfmt::skip]
const CONTENTS: [&str; 7] = [
    "", "a", "hello", "0\r\n\r\n", "GET /smuggled HTTP/1.1\r\nHost: {h}\r\n\r\n", "\r\n",
    "5\r\nabcde\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {h}\r\n\r\n",
];

type Fields = Vec<(String, Vec<u8>)>;

/// Draws the frames of a client of `host`, after the connection preface.
pub fn draw(random: &mut Random, host: &str) -> Vec<Frame> {
    let mut frames = vec![Frame::new(Frame::SETTINGS, 0, 0, &[])];
    let count = 1 + random.below(3);
    let mut streams: Vec<_> = (0..count)
        .map(|number| request(random, host, number))
        .collect();
    // One after another, or interleaved in the order in which they begin. A field section is never taken apart.
    let is_interleaved = is_rare(random, 2);
    let mut begun = 0;
    while let Some(first) = streams.iter().position(|stream| !stream.is_empty()) {
        let number = if is_interleaved {
            random.below(count.min(begun + 1))
        } else {
            first
        };
        begun = begun.max(number + 1);
        if streams[number].is_empty() {
            continue;
        }
        frames.extend(streams[number].remove(0));
        if is_rare(random, 40) {
            frames.push(odd_frame(random));
        }
    }
    if is_rare(random, 12) {
        spoil(random, &mut frames);
    }
    frames
}

/// The steps of one request: frames that stay together.
fn request(random: &mut Random, host: &str, number: usize) -> Vec<Vec<Frame>> {
    let stream = u32::try_from(2 * number + 1).unwrap();
    let content = random.pick(&CONTENTS).replace("{h}", host);
    let fields = head(random, host, number, content.len());
    let has_trailers = is_rare(random, 5);
    let has_data = !content.is_empty() || is_rare(random, 4);
    let mut steps = vec![section(random, stream, &fields, !has_data && !has_trailers)];
    let mut rest = content.as_bytes();
    while has_data && (!rest.is_empty() || steps.len() == 1) {
        let length = rest.len().min(1 + random.below(rest.len() + 1));
        let (piece, others) = rest.split_at(length);
        rest = others;
        let is_last = rest.is_empty() && !has_trailers && !is_rare(random, 20);
        steps.push(vec![data(random, stream, piece, is_last)]);
        if is_rare(random, 8) {
            steps.push(vec![data(random, stream, b"", false)]);
        }
    }
    if has_trailers {
        let mut trailers = Vec::new();
        for _ in 0..1 + random.below(2) {
            let (name, value) = if is_rare(random, 3) {
                random.pick(&TRAILERS)
            } else {
                TRAILERS[0]
            };
            trailers.push((name.to_owned(), latin1(value)));
        }
        let is_last = !is_rare(random, 15);
        steps.push(section(random, stream, &trailers, is_last));
    }
    if is_rare(random, 12) {
        let code = random.pick(&[0u32, 7, 8]).to_be_bytes();
        let at = 1 + random.below(steps.len());
        let reset = Frame::new(Frame::RST_STREAM, 0, stream, &code);
        steps.insert(at, vec![reset]);
    }
    steps
}

fn head(random: &mut Random, host: &str, number: usize, length: usize) -> Fields {
    let fill = |text: &str| {
        latin1(
            &text
                .replace("{h}", host)
                .replace("{n}", &length.to_string()),
        )
    };
    let path = fill(mostly(random, 4, &PATHS));
    let path = if path.starts_with(b"/") {
        [format!("/{number}").as_bytes(), &path].concat()
    } else {
        path
    };
    let mut fields: Fields = vec![
        (":method".to_owned(), fill(mostly(random, 2, &METHODS))),
        (":scheme".to_owned(), fill(mostly(random, 8, &SCHEMES))),
        (":path".to_owned(), path),
        (
            ":authority".to_owned(),
            fill(mostly(random, 8, &AUTHORITIES)),
        ),
    ];
    if is_rare(random, 12) {
        fields.remove(random.below(4));
    }
    for _ in 0..random.below(4) {
        // The first ones are good.
        let among = if is_rare(random, 3) { FIELDS.len() } else { 4 };
        let (name, value) = random.pick(&FIELDS[..among]);
        fields.push((name.to_owned(), fill(value)));
    }
    if is_rare(random, 3) {
        fields.push(("content-length".to_owned(), fill("{n}")));
    }
    if is_rare(random, 12) {
        let (name, value) = random.pick(&PSEUDO_FIELDS);
        let at = random.below(fields.len() + 1);
        fields.insert(at, (name.to_owned(), fill(value)));
    }
    if is_rare(random, 20) {
        let (from, to) = (random.below(fields.len()), random.below(fields.len()));
        fields.swap(from, to);
    }
    fields
}

/// The frames of a field section, perhaps in several, perhaps with padding or a priority. No field is split: the `h2` crate
/// forgets what is malformed in a frame that ends inside a field. Nor is a name empty, for which it does that, too.
fn section(random: &mut Random, stream: u32, fields: &Fields, is_last: bool) -> Vec<Frame> {
    let (mut block, mut ends) = (Vec::new(), vec![0]);
    if is_rare(random, 20) {
        block.push(0x20);
    }
    for (name, value) in fields {
        field(random, &mut block, name, value);
        ends.push(block.len());
    }
    let is_split = is_rare(random, 5);
    let pieces = 1 + if is_split { random.below(4) } else { 0 };
    let mut cuts: Vec<_> = (1..pieces).map(|_| random.pick(&ends)).collect();
    cuts.sort_unstable();
    cuts.push(block.len());
    let mut frames = Vec::new();
    let mut begin = 0;
    for (number, end) in (1..).zip(cuts) {
        let piece = &block[begin..end];
        begin = end;
        let mut flags = 0;
        if number == pieces {
            flags |= Frame::END_HEADERS;
        }
        if number > 1 {
            frames.push(Frame::new(Frame::CONTINUATION, flags, stream, piece));
            continue;
        }
        if is_last {
            flags |= Frame::END_STREAM;
        }
        frames.push(headers(random, stream, flags, piece));
    }
    frames
}

fn headers(random: &mut Random, stream: u32, flags: u8, piece: &[u8]) -> Frame {
    if !is_rare(random, 8) {
        return padded(random, Frame::HEADERS, flags, stream, piece);
    }
    let on = if is_rare(random, 8) { stream } else { 0 };
    let payload = [&on.to_be_bytes()[..], &[15], piece].concat();
    Frame::new(
        Frame::HEADERS,
        flags | Frame::HAS_PRIORITY,
        stream,
        &payload,
    )
}

fn data(random: &mut Random, stream: u32, piece: &[u8], is_last: bool) -> Frame {
    let flags = if is_last { Frame::END_STREAM } else { 0 };
    padded(random, Frame::DATA, flags, stream, piece)
}

fn padded(random: &mut Random, kind: u8, flags: u8, stream: u32, piece: &[u8]) -> Frame {
    if !is_rare(random, 8) {
        return Frame::new(kind, flags, stream, piece);
    }
    let length = random.pick(&[0u8, 1, 9, 255]);
    let padding = vec![0; usize::from(length)];
    let mut payload = [&[length], piece, &padding].concat();
    if is_rare(random, 20) {
        payload.truncate(usize::from(length));
    }
    Frame::new(kind, flags | Frame::PADDED, stream, &payload)
}

/// A frame that belongs to no request.
fn odd_frame(random: &mut Random) -> Frame {
    let stream = random.pick(&[0u32, 1, 3, 5, 2, 99]);
    match random.below(9) {
        0 | 1 => Frame::new(Frame::PRIORITY, 0, stream.max(1), &[0, 0, 0, 0, 15]),
        2 => Frame::new(Frame::PRIORITY, 0, stream, &[0, 0, 0, 1]),
        3 => Frame::new(Frame::PING, 0, stream % 2, &[0; 8]),
        4 => {
            let more = random.pick(&[0, 1, 9]);
            Frame::new(Frame::WINDOW_UPDATE, 0, stream, &[0, 0, 0, more])
        }
        5 => Frame::new(Frame::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]),
        6 => Frame::new(random.pick(&[11, 77]), 5, stream, b"unknown"),
        7 => Frame::new(Frame::PUSH_PROMISE, 4, stream, &[0, 0, 0, 2]),
        _ => Frame::new(Frame::CONTINUATION, Frame::END_HEADERS, stream, &[0x82]),
    }
}

/// Repeats, removes, moves or changes a frame.
fn spoil(random: &mut Random, frames: &mut Vec<Frame>) {
    const FLAGS: [u8; 4] = [
        Frame::END_STREAM,
        Frame::END_HEADERS,
        Frame::PADDED,
        Frame::HAS_PRIORITY,
    ];
    let at = 1 + random.below(frames.len() - 1);
    match random.below(5) {
        0 => frames.insert(at, frames[at].clone()),
        1 if frames.len() > 2 => drop(frames.remove(at)),
        2 => frames[at].stream = random.pick(&[0, 1, 2, 3, 5, 7]),
        3 => frames[at].flags ^= random.pick(&FLAGS),
        _ => {
            let to = 1 + random.below(frames.len() - 1);
            frames.swap(at, to);
        }
    }
}

/// Writes a field as a literal, or as an entry of the static table.
fn field(random: &mut Random, block: &mut Vec<u8>, name: &str, value: &[u8]) {
    let entry = match (name, value) {
        (":method", b"GET") => Some(0x82),
        (":method", b"POST") => Some(0x83),
        (":path", b"/") => Some(0x84),
        (":scheme", b"http") => Some(0x86),
        (":scheme", b"https") => Some(0x87),
        _ => None,
    };
    if let Some(entry) = entry.filter(|_| is_rare(random, 2)) {
        block.push(entry);
        return;
    }
    block.push(random.pick(&[0x00, 0x10, 0x40]));
    for text in [name.as_bytes(), value] {
        match text.len().checked_sub(127) {
            None => block.push(u8::try_from(text.len()).unwrap()),
            Some(more) => block.extend([
                127,
                u8::try_from(more % 128).unwrap() | 0x80,
                u8::try_from(more / 128).unwrap(),
            ]),
        }
        block.extend_from_slice(text);
    }
}
