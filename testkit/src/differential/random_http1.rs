//! Bytes of HTTP/1.1 clients: whole requests, one after another, most of them with something odd in one place.

use crate::random::Random;

/// What a client writes on one connection.
#[derive(Clone, Debug)]
pub struct ClientBytes {
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Where one write ends and the next begins, in order.
    pub cuts: Vec<usize>,
}

const METHODS: [&str; 22] = [
    "GET", "GET", "GET", "POST", "POST", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS",
    "get", "PROPFIND", "PURGE", "M-SEARCH", "G!T", "TRACE", "CONNECT", "PRI", "QUERY", "GE\tT", "",
];

/// Targets, of which `{h}` is the host.
const TARGETS: [&str; 44] = [
    "/",
    "/a",
    "/a/b?c=d",
    "/a//b",
    "//a",
    "/a/../b",
    "/a/./b",
    "/%2e%2e/a",
    "/a%00b",
    "/a%0d%0ab",
    "/a;b=c",
    "/a?",
    "/?",
    "/?a?b",
    "/a?b=http://c/",
    "/a\\b",
    "/{a}",
    "/a|b",
    "/a^b",
    "/a[b]",
    "/a\"b",
    "/a'b",
    "/a,b",
    "/~a",
    "/a@b",
    "/a:80",
    "/%zz",
    "/a%",
    "*",
    "http://{h}",
    "http://{h}/a",
    "HTTP://{h}/a?b",
    "http://{h}?a",
    "https://{h}/a",
    "http://{h}:80/a",
    "http://other.{h}/a",
    "http://u@{h}/a",
    "http:/{h}/a",
    "ws://{h}/a",
    "/a#b",
    "/a b",
    "/\u{e4}",
    "a",
    "",
];

/// Values of `Host`, of which `{h}` is the host.
const HOSTS: [&str; 14] = [
    "{h}",
    "{h}",
    "{h}",
    "{h}",
    "{h}",
    "{h}",
    "{h}:80",
    "{h}.",
    "other.{h}",
    "",
    "{h}, {h}",
    "{h}/a",
    "u@{h}",
    "{h} ",
];

const LENGTHS: [&str; 22] = [
    "{n}",
    "{n}",
    "{n}",
    "0{n}",
    "+{n}",
    "-{n}",
    "{n} ",
    "\t{n}",
    "{n}, {n}",
    "{n},0",
    "0x{n}",
    "{n}.0",
    "{n}_0",
    "{n}\u{b}",
    "",
    "0",
    "1",
    "99",
    "18446744073709551616",
    "9223372036854775808",
    "{n};a",
    "\"{n}\"",
];

const CODINGS: [&str; 24] = [
    "chunked",
    "chunked",
    "chunked",
    "Chunked",
    "CHUNKED",
    " chunked",
    "chunked ",
    "\tchunked",
    "\u{b}chunked",
    "chunked\u{c}",
    "chunked,",
    ",chunked",
    "chunked, chunked",
    "identity",
    "identity, chunked",
    "chunked, identity",
    "gzip, chunked",
    "gzip",
    "xchunked",
    "chunked;a=b",
    "\"chunked\"",
    "chunk",
    "",
    "c\u{2028}hunked",
];

/// Names of the two fields of framing, good and less so.
const LENGTH_NAMES: [&str; 12] = [
    "Content-Length",
    "Content-Length",
    "content-length",
    "CONTENT-LENGTH",
    "Content-Length ",
    "Content_Length",
    " Content-Length",
    "Content-Length\t",
    "Content-Length\u{b}",
    "\"Content-Length\"",
    "Content-Lengt\u{212a}",
    "Content\u{0}-Length",
];

const CODING_NAMES: [&str; 11] = [
    "Transfer-Encoding",
    "Transfer-Encoding",
    "transfer-encoding",
    "Transfer-Encoding ",
    "Transfer_Encoding",
    " Transfer-Encoding",
    "Transfer-Encoding\t",
    "Transfer\u{2010}Encoding",
    "X\r\nTransfer-Encoding",
    "X: y\nTransfer-Encoding",
    "Transfer-Encoding:\r\n",
];

/// Other lines, of which `{h}` is the host.
const LINES: [&str; 62] = [
    "X-A: b",
    "X-A: c",
    "x-a: d",
    "X-B:",
    "X-C:\t a\tb \t",
    "X-D: a:b",
    "X-E: \u{e4}\u{ff}",
    "X-F: a\r\n b",
    "X-F: a\r\n\tContent-Length: 5",
    "X-G: a\rb",
    "X-G: a\nb",
    "X-G: a\u{0}b",
    "X-G: a\u{7f}b",
    "X-H : a",
    "X_I: a",
    "X-J",
    ": a",
    " X-K: a",
    "X-L: \"a, b",
    "X!#$%&'*+-.^`|~: a",
    "X(: a",
    "X-\u{e4}: a",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: x-a",
    "Connection: x-a, close",
    "Connection: content-length",
    "Connection: transfer-encoding",
    "Connection: host",
    "Connection: te, trailer",
    "Connection: ,",
    "Connection: close\u{b}",
    "Connection: \"close\"",
    "Connection: upgrade",
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "Upgrade: foo/1",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
    "Proxy-Connection: keep-alive",
    "Keep-Alive: timeout=5",
    "Expect: 100-continue",
    "Expect: 100-Continue",
    "Expect: 200-ok",
    "Expect: 100-continue, a",
    "Expect:",
    "TE: trailers",
    "TE: gzip",
    "TE: trailers, chunked",
    "Trailer: X-T",
    "Trailer: X-T, X-U",
    "Trailer: Content-Length",
    "Cookie: a=b",
    "Cookie: c=d",
    "Cookie: ",
    "Authorization: a",
    "Max-Forwards: 1",
    "X-Http-Method-Override: DELETE",
    "Forwarded: for=1.2.3.4",
    "X-Forwarded-For: 1.2.3.4",
    "X-Forwarded-Host: other.{h}",
    "Host: {h}",
];

const VERSIONS: [&str; 16] = [
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/1.0",
    "HTTP/1.2",
    "HTTP/2.0",
    "HTTP/0.9",
    "http/1.1",
    "HTTP/1.1 ",
    "HTTP/01.1",
    "HTTP/1.1\t",
    "",
];

/// Contents, of which `{h}` is the host: some look like what follows a request.
const CONTENTS: [&str; 10] = [
    "",
    "a",
    "hello",
    "0\r\n\r\n",
    "\r\n",
    "\r\n\r\n",
    "GET /smuggled HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {h}\r\n\r\n",
    "5\r\nabcde\r\n0\r\n\r\n",
    "POST /smuggled HTTP/1.1\r\nHost: {h}\r\nContent-Length: 9\r\n\r\n",
];

/// Ways to write the size of a chunk, of which `{n}` is the number in hexadecimal.
const SIZES: [&str; 30] = [
    "{n}",
    "{n}",
    "{n}",
    "{n}",
    "0{n}",
    "0000000{n}",
    "000000000000000000{n}",
    "0x{n}",
    "+{n}",
    "-{n}",
    " {n}",
    "{n} ",
    "{n}\t",
    "\t{n}",
    "{n};a",
    "{n};a=b",
    "{n};a=\"b\"",
    "{n};a=\"b\r\n\"",
    "{n};",
    "{n} ;a",
    "{n}; a",
    "{n};a\nb",
    "{n};a\rb",
    "{n}\u{b}",
    "{n}_0",
    "{n}g",
    "",
    "10000000000000000{n}",
    "{n},{n}",
    "{n};\u{0}",
];

const LINE_ENDS: [&str; 8] = ["\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n", "", "\n\r"];

const TRAILERS: [&str; 14] = [
    "",
    "",
    "",
    "X-T: a\r\n",
    "X-T: a\r\nX-U: b\r\n",
    "X-V: c\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: other.test\r\n",
    "X-T: a\r\n b\r\n",
    "X-T\r\n",
    "X-T: a\n",
    "X_T: a\r\n",
    "Content-Digest: a\r\n",
];

/// Bytes that mean something to one reader or another.
const SPECIAL: [u8; 24] = [
    b'\r', b'\n', 0, b' ', b'\t', 0x0b, 0x0c, 0x1c, 0x7f, 0x85, 0xa0, 0xff, b':', b',', b';', b'0',
    b'1', b'x', b'_', b'"', b'\\', b'#', b'+', b'-',
];

/// Draws what a client of `host` writes. The last request asks the gateway to close the connection, unless the ones
/// before have spoilt it.
pub fn draw(random: &mut Random, host: &str) -> ClientBytes {
    let mut bytes = Vec::new();
    for number in 0..1 + random.below(3) {
        if is_rare(random, 12) {
            bytes.extend_from_slice(
                random
                    .pick(&["\r\n", "\r\n\r\n", "\n", " ", "\0"])
                    .as_bytes(),
            );
        }
        bytes.extend(request(random, host, number));
    }
    if is_rare(random, 4) {
        spoil(random, &mut bytes);
    }
    let last = format!("GET /last HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    bytes.extend_from_slice(last.as_bytes());
    let mut cuts = Vec::new();
    if is_rare(random, 3) {
        cuts = (0..1 + random.below(3))
            .map(|_| random.below(bytes.len()))
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
    }
    ClientBytes { bytes, cuts }
}

/// One time in so many.
pub(super) fn is_rare(random: &mut Random, times: usize) -> bool {
    random.below(times) == 0
}

/// The usual one, and one time in so many another one.
pub(super) fn mostly(random: &mut Random, times: usize, all: &[&'static str]) -> &'static str {
    if is_rare(random, times) {
        random.pick(all)
    } else {
        all[0]
    }
}

/// Changes a byte or two.
fn spoil(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(2) {
        let (at, byte) = (random.below(bytes.len()), random.pick(&SPECIAL));
        match random.below(3) {
            0 => bytes[at] = byte,
            1 => bytes.insert(at, byte),
            _ => {
                bytes.remove(at);
            }
        }
    }
}

fn request(random: &mut Random, host: &str, number: usize) -> Vec<u8> {
    let method = if is_rare(random, 6) {
        random.pick(&METHODS)
    } else {
        random.pick(&METHODS[..11])
    };
    let target = mostly(random, 4, &TARGETS).replace("{h}", host);
    // So that two requests of one connection differ.
    let target = if target.starts_with("/") {
        format!("/{number}{target}")
    } else {
        target
    };
    let version = mostly(random, 8, &VERSIONS);
    let content = random.pick(&CONTENTS).replace("{h}", host);
    let mut lines: Vec<Vec<u8>> = vec![line(
        "Host",
        &mostly(random, 6, &HOSTS).replace("{h}", host),
    )];
    for _ in 0..random.below(4) {
        lines.push(latin1(&random.pick(&LINES).replace("{h}", host)));
    }
    let body = body(random, &mut lines, method, content.as_bytes());
    if is_rare(random, 6) {
        let (from, to) = (random.below(lines.len()), random.below(lines.len()));
        lines.swap(from, to);
    }
    let mut bytes = format!("{method} {target} {version}").into_bytes();
    if is_rare(random, 40) {
        bytes = String::from_utf8_lossy(&bytes)
            .replacen(' ', random.pick(&["  ", "\t", "\r ", "\u{b}"]), 1)
            .into_bytes();
    }
    bytes.extend_from_slice(line_end(random));
    for line in lines {
        bytes.extend_from_slice(&line);
        bytes.extend_from_slice(line_end(random));
    }
    bytes.extend_from_slice(line_end(random));
    bytes.extend(body);
    bytes
}

/// Adds the lines that say how long the content is, and returns the content as they say, or nearly so.
fn body(random: &mut Random, lines: &mut Vec<Vec<u8>>, method: &str, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_string();
    let by_length = |random: &mut Random, often| {
        let name = mostly(random, often, &LENGTH_NAMES);
        line(
            name,
            &mostly(random, often, &LENGTHS).replace("{n}", &length),
        )
    };
    let by_coding = |random: &mut Random, often| {
        line(
            mostly(random, often, &CODING_NAMES),
            mostly(random, often, &CODINGS),
        )
    };
    match random.below(12) {
        0..=2 if method == "GET" || method == "HEAD" => Vec::new(),
        0..=4 => {
            lines.push(by_length(random, 4));
            content.to_vec()
        }
        5..=8 => {
            lines.push(by_coding(random, 5));
            chunks(random, content)
        }
        // Two that contradict each other.
        9 => {
            lines.push(by_length(random, 2));
            lines.push(by_coding(random, 2));
            if is_rare(random, 2) {
                content.to_vec()
            } else {
                chunks(random, content)
            }
        }
        10 => {
            lines.push(by_length(random, 2));
            lines.push(by_length(random, 2));
            content.to_vec()
        }
        _ => {
            lines.push(by_coding(random, 2));
            lines.push(by_coding(random, 2));
            chunks(random, content)
        }
    }
}

fn chunks(random: &mut Random, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let (chunk, others) = rest.split_at(1 + random.below(rest.len()));
        rest = others;
        bytes.extend(latin1(&size(random, chunk.len())));
        bytes.extend_from_slice(line_end(random));
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(line_end(random));
    }
    bytes.extend(latin1(&size(random, 0)));
    bytes.extend_from_slice(line_end(random));
    bytes.extend_from_slice(mostly(random, 3, &TRAILERS).as_bytes());
    bytes.extend_from_slice(line_end(random));
    bytes
}

fn size(random: &mut Random, length: usize) -> String {
    mostly(random, 16, &SIZES).replace("{n}", &format!("{length:x}"))
}

fn line_end(random: &mut Random) -> &'static [u8] {
    mostly(random, 250, &LINE_ENDS).as_bytes()
}

fn line(name: &str, value: &str) -> Vec<u8> {
    latin1(&format!("{name}: {value}"))
}

/// The characters up to U+00FF as one byte each, others as UTF-8.
pub(super) fn latin1(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for character in text.chars() {
        match u8::try_from(character) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend_from_slice(character.to_string().as_bytes()),
        }
    }
    bytes
}
