//! Benchmarks of the exchange codec: encoding and decoding of heads, content and trailers.
//!
//! In: typical messages. Out: time, allocations and throughput of each part. No stream and no session is
//! involved; the `session` benchmark measures those.
//!
//! Counting the allocations adds some nanoseconds to each of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark fails by panicking"
)]

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use divan::{AllocProfiler, Bencher, counter::BytesCount};
use http::{HeaderMap, HeaderName, HeaderValue};
use tunnel_proto::bhttp::{Decoder, Event, Limits, encode};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

/// Samples of each benchmark, and runs in each. Fixed, because otherwise a slow first run (a cold cache)
/// would make every sample too short to time.
const SAMPLES: u32 = 200;
const SAMPLE_SIZE: u32 = 32;

/// Initial capacity for a head, as at the two ends of an exchange.
const HEAD_CAPACITY: usize = 1024;

/// One byte of a slow stream, a small response, and a large read from a socket.
const CONTENT_BYTES: [usize; 3] = [1, 1024, 64 * 1024];

const REQUESTS: [Request; 2] = [Request::Small, Request::Browser];

const RESPONSES: [Response; 3] = [Response::Small, Response::Website, Response::EarlyHints];

/// A GET from a program, and one from a browser, with the fields that the tunnel server adds.
#[derive(Debug, Clone, Copy)]
enum Request {
    Small,
    Browser,
}

/// A response of a program, one of a website, and one with early hints.
#[derive(Debug, Clone, Copy)]
enum Response {
    Small,
    Website,
    EarlyHints,
}

type Lines = &'static [(&'static str, &'static str)];

const SMALL_REQUEST: Lines = &[
    ("accept", "*/*"),
    ("user-agent", "curl/8.5.0"),
    ("x-forwarded-for", "203.0.113.7"),
    ("x-request-id", "0190d6a1-7c3e-7b52-9a57-2f1c9f0b6d11"),
];

const BROWSER_REQUEST: Lines = &[
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    ),
    (
        "accept",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    ),
    ("accept-language", "en-GB,en;q=0.7,de;q=0.3"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://acme-prod.tunnel.example/app/projects"),
    (
        "cookie",
        "session=Zr8sQ1vWk0m3xJ5tYpLbNcHd; theme=dark; csrf=9f1c2e7ab4",
    ),
    ("cache-control", "no-cache"),
    ("dnt", "1"),
    ("upgrade-insecure-requests", "1"),
    ("sec-fetch-dest", "document"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-site", "same-origin"),
    ("priority", "u=0, i"),
    ("x-forwarded-for", "203.0.113.7"),
    ("x-forwarded-host", "acme-prod.tunnel.example"),
    ("x-forwarded-proto", "https"),
    (
        "forwarded",
        "for=203.0.113.7;host=acme-prod.tunnel.example;proto=https",
    ),
    ("tunnel-via", "tunnel-6f1d2c"),
    ("x-request-id", "0190d6a1-7c3e-7b52-9a57-2f1c9f0b6d11"),
];

const SMALL_RESPONSE: Lines = &[
    ("content-type", "application/json"),
    ("content-length", "2"),
    ("date", "Tue, 15 Nov 1994 08:12:31 GMT"),
];

const WEBSITE_RESPONSE: Lines = &[
    ("content-type", "text/html; charset=utf-8"),
    ("content-encoding", "br"),
    ("date", "Tue, 15 Nov 1994 08:12:31 GMT"),
    ("server", "nginx"),
    ("etag", "W/\"5e8c3f1b-2a9d\""),
    ("last-modified", "Mon, 14 Nov 1994 12:45:26 GMT"),
    ("cache-control", "private, max-age=0, must-revalidate"),
    ("vary", "Accept-Encoding, Cookie"),
    (
        "strict-transport-security",
        "max-age=31536000; includeSubDomains",
    ),
    (
        "content-security-policy",
        "default-src 'self'; img-src 'self' data:",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "strict-origin-when-cross-origin"),
    (
        "set-cookie",
        "session=Zr8sQ1vWk0m3xJ5tYpLbNcHd; Path=/; Secure; HttpOnly",
    ),
    ("set-cookie", "theme=dark; Path=/; Max-Age=31536000"),
];

const HINTS: Lines = &[
    ("link", "</style.css>; rel=preload; as=style"),
    ("link", "</app.js>; rel=preload; as=script"),
];

/// The trailers of every gRPC response.
const TRAILERS: Lines = &[("grpc-status", "0"), ("grpc-message", "")];

fn main() {
    divan::main();
}

fn map(lines: Lines) -> HeaderMap {
    let line = |&(name, value)| {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_static(value))
    };
    lines.iter().map(line).collect()
}

// === Requests ===

impl Request {
    fn fields(self) -> HeaderMap {
        map(match self {
            Self::Small => SMALL_REQUEST,
            Self::Browser => BROWSER_REQUEST,
        })
    }
}

fn write_request_head(fields: &HeaderMap) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEAD_CAPACITY);
    let authority = b"acme-prod.tunnel.example";
    encode::request_head(&mut out, "GET", "https", authority, b"/app/projects?page=2");
    encode::fields(&mut out, fields);
    encode::end_fields(&mut out);
    out
}

#[divan::bench(args = REQUESTS, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn encode_request_head(bencher: Bencher<'_, '_>, request: Request) {
    let fields = request.fields();
    bencher.bench_local(|| write_request_head(black_box(&fields)));
}

/// Decodes a whole message without content, whose end arrives with the head.
#[divan::bench(args = REQUESTS, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn decode_request_head(bencher: Bencher<'_, '_>, request: Request) {
    let message = end_message(write_request_head(&request.fields()), &[]);
    let mut decoder = Decoder::request(Limits::default());
    bencher.bench_local(|| {
        decoder.push(message.clone());
        read_message(&mut decoder)
    });
}

/// Decodes a head that arrives in two pieces, cut within a field.
#[divan::bench(args = REQUESTS, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn decode_request_head_in_two(bencher: Bencher<'_, '_>, request: Request) {
    let mut front = end_message(write_request_head(&request.fields()), &[]);
    let back = front.split_off(front.len() / 2);
    let mut decoder = Decoder::request(Limits::default());
    bencher.bench_local(|| {
        decoder.push(front.clone());
        assert_eq!(decoder.next(), Ok(None));
        decoder.push(back.clone());
        read_message(&mut decoder)
    });
}

// === Responses ===

impl Response {
    fn hints(self) -> Option<HeaderMap> {
        matches!(self, Self::EarlyHints).then(|| map(HINTS))
    }

    fn fields(self) -> HeaderMap {
        map(match self {
            Self::Small => SMALL_RESPONSE,
            Self::Website | Self::EarlyHints => WEBSITE_RESPONSE,
        })
    }
}

fn write_response_head(hints: Option<&HeaderMap>, fields: &HeaderMap) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEAD_CAPACITY);
    encode::response_start(&mut out);
    if let Some(hints) = hints {
        encode::informational(&mut out, 103);
        encode::fields(&mut out, hints);
        encode::end_fields(&mut out);
    }
    encode::final_status(&mut out, 200);
    encode::fields(&mut out, fields);
    encode::end_fields(&mut out);
    out
}

#[divan::bench(args = RESPONSES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn encode_response_head(bencher: Bencher<'_, '_>, response: Response) {
    let (hints, fields) = (response.hints(), response.fields());
    bencher.bench_local(|| write_response_head(black_box(hints.as_ref()), black_box(&fields)));
}

/// Decodes a whole message without content, whose end arrives with the head.
#[divan::bench(args = RESPONSES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn decode_response_head(bencher: Bencher<'_, '_>, response: Response) {
    let head = write_response_head(response.hints().as_ref(), &response.fields());
    let message = end_message(head, &[]);
    let mut decoder = Decoder::response(Limits::default());
    bencher.bench_local(|| {
        decoder.push(message.clone());
        read_message(&mut decoder)
    });
}

// === Content and trailers ===

/// Appends content to the output buffer, as is done with small pieces; large ones are not copied.
#[divan::bench(args = CONTENT_BYTES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn encode_content(bencher: Bencher<'_, '_>, length: usize) {
    let content = vec![b'x'; length];
    let mut out = BytesMut::with_capacity(length + 16);
    bencher.counter(BytesCount::new(length)).bench_local(|| {
        out.clear();
        encode::chunk(&mut out, black_box(&content));
        black_box(out.len())
    });
}

/// Decodes content in the middle of an endless message.
#[divan::bench(args = CONTENT_BYTES, sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn decode_content(bencher: Bencher<'_, '_>, length: usize) {
    let mut chunk = BytesMut::new();
    encode::chunk(&mut chunk, &vec![b'x'; length]);
    let chunk = chunk.freeze();
    let mut decoder = decoder_in_content();
    bencher.counter(BytesCount::new(length)).bench_local(|| {
        decoder.push(chunk.clone());
        let Ok(Some(Event::Content(content))) = decoder.next() else {
            panic!("no content");
        };
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(content.len(), length);
    });
}

/// Encodes the end of the content and the trailers.
#[divan::bench(sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn encode_trailers(bencher: Bencher<'_, '_>) {
    let trailers = map(TRAILERS);
    bencher.bench_local(|| {
        let mut out = BytesMut::with_capacity(64);
        encode::end_content(&mut out);
        encode::fields(&mut out, black_box(&trailers));
        encode::end_fields(&mut out);
        out
    });
}

/// Decodes the end of the content and the trailers.
#[divan::bench(sample_size = SAMPLE_SIZE, sample_count = SAMPLES)]
fn decode_trailers(bencher: Bencher<'_, '_>) {
    let end = end_message(BytesMut::new(), TRAILERS);
    bencher
        .with_inputs(decoder_in_content)
        .bench_local_refs(|decoder| {
            decoder.push(end.clone());
            decoder.next().unwrap().expect("the message's end")
        });
}

fn end_message(mut head: BytesMut, trailers: Lines) -> Bytes {
    encode::end_content(&mut head);
    encode::fields(&mut head, &map(trailers));
    encode::end_fields(&mut head);
    head.freeze()
}

/// Decodes a whole message and returns its head.
fn read_message(decoder: &mut Decoder) -> Event {
    let head = decoder.next().unwrap().expect("a head");
    while !decoder.is_ended() {
        black_box(decoder.next().unwrap().expect("the rest of the message"));
    }
    decoder.reset();
    head
}

fn decoder_in_content() -> Decoder {
    let mut decoder = Decoder::response(Limits::default());
    decoder.push(write_response_head(None, &HeaderMap::new()).freeze());
    let head = decoder.next();
    assert!(matches!(head, Ok(Some(Event::Response(_)))));
    decoder
}
