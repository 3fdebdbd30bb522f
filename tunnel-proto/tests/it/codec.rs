//! The codec of binary HTTP messages through its public interface: the examples of RFC 9292, properties
//! that hold for every message and for damaged ones, and the `bhttp` crate as an independent decoder and
//! encoder.

use std::{collections::BTreeMap, io::Cursor};

use bytes::{Bytes, BytesMut};
use proptest::{collection::vec, option, prelude::*, sample::Index};
use tunnel_proto::bhttp::{DecodeError, Decoder, Event, Fields, Limits, encode};

type Lines = Vec<(String, Vec<u8>)>;

/// A message to be written.
#[derive(Clone, Debug)]
struct Message {
    control: Control,
    fields: Lines,
    chunks: Vec<Vec<u8>>,
    trailers: Lines,
}

#[derive(Clone, Debug)]
enum Control {
    Request {
        method: String,
        scheme: &'static str,
        authority: String,
        path: String,
    },
    Response {
        informational: Vec<(u16, Lines)>,
        status: u16,
    },
}

/// A decoded message in a form that both codecs share: the values of a name in order, names in any order,
/// all lines of `cookie` joined (as the other codec does).
#[derive(Debug, Default, PartialEq)]
struct Read {
    control: Vec<Vec<u8>>,
    informational: Vec<(u16, Section)>,
    fields: Section,
    content: Vec<u8>,
    trailers: Section,
}

type Section = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

#[derive(Clone, Copy, Debug)]
enum MessageKind {
    Request,
    Response,
}

// === the two codecs ===

fn write_lines(out: &mut BytesMut, lines: &Lines) {
    for (name, value) in lines {
        encode::field(out, name.as_bytes(), value);
    }
    encode::end_fields(out);
}

fn write(message: &Message) -> Bytes {
    let mut out = BytesMut::new();
    match &message.control {
        Control::Request {
            method,
            scheme,
            authority,
            path,
        } => {
            encode::request_head(
                &mut out,
                method,
                scheme,
                authority.as_bytes(),
                path.as_bytes(),
            );
        }
        Control::Response {
            informational,
            status,
        } => {
            encode::response_start(&mut out);
            for (status, lines) in informational {
                encode::informational(&mut out, *status);
                write_lines(&mut out, lines);
            }
            encode::final_status(&mut out, *status);
        }
    }
    write_lines(&mut out, &message.fields);
    for data in &message.chunks {
        encode::chunk(&mut out, data);
    }
    encode::end_content(&mut out);
    write_lines(&mut out, &message.trailers);
    out.freeze()
}

/// Encodes the events of a message.
fn write_events(events: &[Event]) -> Bytes {
    let mut out = BytesMut::new();
    let section = |out: &mut BytesMut, fields: &Fields| {
        for (name, value) in fields.pseudo_fields() {
            encode::field(out, name, value);
        }
        encode::fields(out, &fields.map);
        encode::end_fields(out);
    };
    if !matches!(events.first(), Some(Event::Request(_))) {
        encode::response_start(&mut out);
    }
    for event in events {
        match event {
            Event::Request(head) => {
                let scheme = std::str::from_utf8(&head.scheme).unwrap();
                let method = head.method.as_str();
                encode::request_head(&mut out, method, scheme, &head.authority, &head.path);
                section(&mut out, &head.fields);
            }
            Event::Informational(head) => {
                encode::informational(&mut out, head.status.as_u16());
                section(&mut out, &head.fields);
            }
            Event::Response(head) => {
                encode::final_status(&mut out, head.status.as_u16());
                section(&mut out, &head.fields);
            }
            Event::Content(data) => encode::chunk(&mut out, data),
            Event::End(trailers) => {
                encode::end_content(&mut out);
                section(&mut out, trailers);
            }
        }
    }
    out.freeze()
}

/// The result of decoding: the events, the error if there was one, and the number of bytes pushed before
/// the message ended.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<Event>,
    error: Option<DecodeError>,
    ended_after: Option<usize>,
}

/// Pushes the pieces one after another. Adjacent pieces of content are joined, since their boundaries have
/// no meaning.
fn read_pieces<'a>(
    kind: MessageKind,
    limits: Limits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Outcome {
    let mut decoder = match kind {
        MessageKind::Request => Decoder::request(limits),
        MessageKind::Response => Decoder::response(limits),
    };
    let mut outcome = Outcome {
        events: Vec::new(),
        error: None,
        ended_after: None,
    };
    let mut pushed = 0;
    for piece in pieces {
        decoder.push(Bytes::copy_from_slice(piece));
        pushed += piece.len();
        loop {
            match decoder.next() {
                Ok(None) => break,
                Ok(Some(Event::Content(data))) => {
                    assert!(!data.is_empty());
                    match outcome.events.last_mut() {
                        Some(Event::Content(all)) => *all = [&all[..], &data].concat().into(),
                        _ => outcome.events.push(Event::Content(data)),
                    }
                }
                Ok(Some(event)) => outcome.events.push(event),
                Err(error) => {
                    assert_eq!(decoder.next(), Err(error), "an error is final");
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
        if decoder.is_ended() {
            outcome.ended_after.get_or_insert(pushed);
        }
    }
    outcome
}

fn read_whole(kind: MessageKind, limits: Limits, bytes: &[u8]) -> Outcome {
    read_pieces(kind, limits, [bytes])
}

fn read_with_other(bytes: &[u8]) -> (bhttp::Message, usize) {
    let mut cursor = Cursor::new(bytes);
    let message = bhttp::Message::read_bhttp(&mut cursor).unwrap();
    let read = usize::try_from(cursor.position()).unwrap();
    (message, read)
}

fn write_with_other(message: &bhttp::Message) -> Vec<u8> {
    let mut out = Vec::new();
    message
        .write_bhttp(bhttp::Mode::IndeterminateLength, &mut out)
        .unwrap();
    out
}

// === decoded messages ===

fn section<'a>(lines: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Section {
    let mut section = Section::new();
    for (name, value) in lines {
        section
            .entry(name.to_vec())
            .or_default()
            .push(value.to_vec());
    }
    if let Some(cookies) = section.get_mut(&b"cookie"[..]) {
        *cookies = vec![cookies.join(&b"; "[..])];
    }
    section
}

fn of_lines(lines: &Lines) -> Section {
    section(
        lines
            .iter()
            .map(|(name, value)| (name.as_bytes(), &value[..])),
    )
}

fn of_fields(fields: &Fields) -> Section {
    let pseudo = fields
        .pseudo_fields()
        .iter()
        .map(|(name, value)| (&name[..], &value[..]));
    let regular = fields
        .map
        .iter()
        .map(|(name, value)| (name.as_ref(), value.as_bytes()));
    section(pseudo.chain(regular))
}

fn of_other_fields(fields: &bhttp::FieldSection) -> Section {
    section(fields.iter().map(|field| (field.name(), field.value())))
}

fn status(status: u16) -> Vec<Vec<u8>> {
    vec![status.to_string().into_bytes()]
}

fn of_message(message: &Message) -> Read {
    let mut read = Read {
        fields: of_lines(&message.fields),
        content: message.chunks.concat(),
        trailers: of_lines(&message.trailers),
        ..Read::default()
    };
    match &message.control {
        Control::Request {
            method,
            scheme,
            authority,
            path,
        } => {
            let parts = [method, *scheme, authority, path];
            read.control = parts.map(|part: &str| part.as_bytes().to_vec()).to_vec();
        }
        Control::Response {
            informational,
            status: last,
        } => {
            let lines = informational
                .iter()
                .map(|(status, lines)| (*status, of_lines(lines)));
            read.informational = lines.collect();
            read.control = status(*last);
        }
    }
    read
}

fn of_events(events: &[Event]) -> Read {
    let mut read = Read::default();
    for event in events {
        match event {
            Event::Request(head) => {
                let method = head.method.as_str().as_bytes();
                let parts = [method, &head.scheme, &head.authority, &head.path];
                read.control = parts.map(<[u8]>::to_vec).to_vec();
                read.fields = of_fields(&head.fields);
            }
            Event::Informational(head) => {
                read.informational
                    .push((head.status.as_u16(), of_fields(&head.fields)));
            }
            Event::Response(head) => {
                read.control = status(head.status.as_u16());
                read.fields = of_fields(&head.fields);
            }
            Event::Content(data) => read.content.extend_from_slice(data),
            Event::End(trailers) => read.trailers = of_fields(trailers),
        }
    }
    read
}

fn of_other(message: &bhttp::Message) -> Read {
    let control = match message.control() {
        bhttp::ControlData::Request {
            method,
            scheme,
            authority,
            path,
        } => {
            vec![
                method.clone(),
                scheme.clone(),
                authority.clone(),
                path.clone(),
            ]
        }
        bhttp::ControlData::Response(code) => status(code.code()),
    };
    let informational = message.informational().iter();
    Read {
        control,
        informational: informational
            .map(|response| (response.status().code(), of_other_fields(response.fields())))
            .collect(),
        fields: of_other_fields(message.header()),
        content: message.content().to_vec(),
        trailers: of_other_fields(message.trailer()),
    }
}

// === the examples of RFC 9292 section 5 in indeterminate-length form ===

const REQUEST_EXAMPLE: &[u8] = b"\x02\x03GET\x05https\x00\x0a/hello.txt\
    \x0auser-agent\x34curl/7.16.3 libcurl/7.16.3 OpenSSL/0.9.7l zlib/1.2.3\
    \x04host\x0fwww.example.com\x0faccept-language\x06en, mi\x00\x00\x00";

/// The padding that the RFC adds to the request, and this decoder refuses.
const PADDING: [u8; 10] = [0; 10];

const RESPONSE_EXAMPLE: &[u8] = b"\x03\x40\x66\x07running\x0a\"sleep 15\"\x00\
    \x40\x67\x04link#</style.css>; rel=preload; as=style\
    \x04link$</script.js>; rel=preload; as=script\x00\
    \x40\xc8\x04date\x1dMon, 27 Jul 2009 12:28:53 GMT\x06server\x06Apache\
    \x0dlast-modified\x1dWed, 22 Jul 2009 19:15:56 GMT\x04etag\x14\"34aa387-d-1568eb00\"\
    \x0daccept-ranges\x05bytes\x0econtent-length\x0251\x04vary\x0fAccept-Encoding\
    \x0ccontent-type\x0atext/plain\x00\
    \x33Hello World! My content includes a trailing CRLF.\x0d\x0a\x00\x00";

#[test]
fn the_request_example_is_read_and_written() {
    let padded = [REQUEST_EXAMPLE, &PADDING].concat();
    assert_eq!(padded.len(), 144, "as long as in the RFC");
    let outcome = read_whole(MessageKind::Request, Limits::default(), REQUEST_EXAMPLE);
    assert_eq!(outcome.error, None);
    assert_eq!(write_events(&outcome.events), REQUEST_EXAMPLE);

    let read = of_events(&outcome.events);
    let control = [&b"GET"[..], b"https", b"", b"/hello.txt"];
    assert_eq!(read.control, control);
    assert_eq!(read.fields[&b"accept-language"[..]], [b"en, mi"]);
    assert_eq!(
        (read.fields.len(), read.content.len(), read.trailers.len()),
        (3, 0, 0)
    );

    // This decoder reads padding as the start of a known-length request.
    let mut decoder = Decoder::request(Limits::default());
    decoder.push(padded.into());
    while decoder.next().unwrap().is_some() {}
    decoder.reset();
    assert_eq!(decoder.next(), Err(DecodeError::KnownLength));
}

#[test]
fn the_response_example_is_read_and_written() {
    let outcome = read_whole(MessageKind::Response, Limits::default(), RESPONSE_EXAMPLE);
    assert_eq!(outcome.error, None);
    assert_eq!(write_events(&outcome.events), RESPONSE_EXAMPLE);

    let read = of_events(&outcome.events);
    let statuses: Vec<u16> = read
        .informational
        .iter()
        .map(|(status, _)| *status)
        .collect();
    assert_eq!(statuses, [102, 103]);
    let links = &read.informational[1].1[&b"link"[..]];
    assert!(links[0].starts_with(b"</style.css>") && links[1].starts_with(b"</script.js>"));
    assert_eq!(read.control, status(200));
    assert_eq!(read.fields.len(), 8);
    assert_eq!(
        read.content,
        b"Hello World! My content includes a trailing CRLF.\r\n"
    );
}

#[test]
fn values_of_a_name_keep_their_order() {
    let cookies = ["b=2", "a=1", "b=3", "a=1"];
    let message = Message {
        control: Control::Response {
            informational: vec![],
            status: 200,
        },
        fields: cookies
            .map(|value| ("set-cookie".to_owned(), value.into()))
            .to_vec(),
        chunks: vec![],
        trailers: vec![],
    };
    let outcome = read_whole(MessageKind::Response, Limits::default(), &write(&message));
    let [Event::Response(head), Event::End(_)] = &outcome.events[..] else {
        panic!("{outcome:?}")
    };
    let read: Vec<_> = head.fields.map.get_all("set-cookie").iter().collect();
    assert_eq!(read, cookies);
}

// === properties ===

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![8 => 0x21..=0x7eu8, 1 => 0x80..=0xffu8, 1 => Just(b' ')];
    let short = vec(byte, 0..80).prop_map(|bytes| bytes.trim_ascii().to_vec());
    // Lengths on both sides of where their length prefix grows.
    let long = prop_oneof![Just(63), Just(64), Just(16_383), Just(16_384)]
        .prop_map(|length| vec![b'v'; length]);
    prop_oneof![20 => short, 1 => long]
}

fn lines() -> impl Strategy<Value = Lines> {
    const COMMON: [&str; 5] = [
        "cookie",
        "set-cookie",
        "content-type",
        "accept",
        "x-request-id",
    ];
    let name = prop_oneof![
        proptest::sample::select(&COMMON[..]).prop_map(str::to_owned),
        "x[a-z0-9!#$%&'*+.^_`|~-]{0,70}",
    ];
    let te = option::weighted(0.1, Just(("te".to_owned(), b"trailers".to_vec())));
    let pseudo = option::weighted(
        0.2,
        value().prop_map(|value| (":protocol".to_owned(), value)),
    );
    // Joined by the other codec, empty cookies would become white space at the ends of a value.
    let line = (name, value()).prop_map(|(name, value)| match &name[..] {
        "cookie" if value.is_empty() => (name, b"a=1".to_vec()),
        _ => (name, value),
    });
    (pseudo, te, vec(line, 0..8))
        .prop_map(|(pseudo, te, lines)| pseudo.into_iter().chain(te).chain(lines).collect())
}

fn chunks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let short = vec(any::<u8>(), 1..100);
    let long = prop_oneof![Just(64), Just(16_384)].prop_map(|length| vec![b'c'; length]);
    vec(prop_oneof![10 => short, 1 => long], 0..4)
}

fn request() -> impl Strategy<Value = Control> {
    let scheme = prop_oneof![Just("http"), Just("https")];
    let path = prop_oneof![10 => "/[!-\"$-~]{0,80}", 1 => Just("*".to_owned())];
    (
        "[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}",
        scheme,
        "[!-~]{0,70}",
        path,
    )
        .prop_map(|(method, scheme, authority, path)| Control::Request {
            method,
            scheme,
            authority,
            path,
        })
}

fn response() -> impl Strategy<Value = Control> {
    let informational = (prop_oneof![Just(100u16), 102..=199u16], lines());
    (vec(informational, 0..3), 200..=599u16).prop_map(|(informational, status)| Control::Response {
        informational,
        status,
    })
}

fn message() -> impl Strategy<Value = Message> {
    (
        prop_oneof![request(), response()],
        lines(),
        chunks(),
        lines(),
    )
        .prop_map(|(control, fields, chunks, trailers)| Message {
            control,
            fields,
            chunks,
            trailers,
        })
}

fn kind(message: &Message) -> MessageKind {
    match message.control {
        Control::Request { .. } => MessageKind::Request,
        Control::Response { .. } => MessageKind::Response,
    }
}

fn limits() -> impl Strategy<Value = Limits> {
    let small = Limits {
        head_bytes: 200,
        fields: 3,
        informational: 1,
    };
    prop_oneof![Just(Limits::default()), Just(small)]
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.sort_unstable();
    let starts = [0].into_iter().chain(at.iter().copied());
    let ends = at.iter().copied().chain([bytes.len()]);
    starts
        .zip(ends)
        .map(|(start, end)| &bytes[start..end])
        .collect()
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Cut(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        8 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        2 => any::<Index>().prop_map(Damage::Remove),
        1 => any::<Index>().prop_map(Damage::Cut),
    ]
}

fn damaged(bytes: &[u8], damages: &[Damage]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for damage in damages {
        match damage {
            _ if bytes.is_empty() => break,
            Damage::Flip(at, bit) => *at.get_mut(&mut bytes) ^= 1 << bit,
            Damage::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Damage::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
    bytes
}

/// Checks properties of arbitrary bytes: no panic; the result does not depend on how they are cut; and what
/// this decoder accepts, the other decoder reads as an equal message of equal length, and this encoder
/// writes again.
fn check_any_bytes(kind: MessageKind, limits: Limits, bytes: &[u8], cuts: &[Index]) {
    let whole = read_whole(kind, limits, bytes);
    let cut = read_pieces(kind, limits, pieces(bytes, cuts));
    let single = read_pieces(kind, limits, bytes.chunks(1));
    assert_eq!((&cut.events, cut.error), (&whole.events, whole.error));
    assert_eq!((&single.events, single.error), (&whole.events, whole.error));

    if let Some(length) = single.ended_after {
        let (other, read) = read_with_other(bytes);
        assert_eq!(of_other(&other), of_events(&whole.events));
        assert_eq!(read, length);

        let again = read_whole(kind, Limits::default(), &write_events(&whole.events));
        assert_eq!(again.events, whole.events);
    }
}

proptest! {
    #[test]
    fn messages_round_trip(message in message(), cuts in vec(any::<Index>(), 0..6)) {
        let bytes = write(&message);
        let whole = read_whole(kind(&message), Limits::default(), &bytes);
        prop_assert_eq!(whole.error, None);
        prop_assert_eq!(of_events(&whole.events), of_message(&message));
        prop_assert!(whole.ended_after.is_some());

        let cut = read_pieces(kind(&message), Limits::default(), pieces(&bytes, &cuts));
        prop_assert_eq!(cut.events, whole.events);
        let single = read_pieces(kind(&message), Limits::default(), bytes.chunks(1));
        prop_assert_eq!(single.ended_after, Some(bytes.len()), "the end is the last byte");
    }

    #[test]
    fn the_other_codec_reads_encoded_messages(message in message()) {
        let bytes = write(&message);
        let (other, read) = read_with_other(&bytes);
        prop_assert_eq!(read, bytes.len(), "lengths are real");
        prop_assert_eq!(of_other(&other), of_message(&message));
    }

    #[test]
    fn messages_of_the_other_codec_are_read(message in message()) {
        let (other, _) = read_with_other(&write(&message));
        let bytes = write_with_other(&other);
        let outcome = read_whole(kind(&message), Limits::default(), &bytes);
        prop_assert_eq!(outcome.error, None);
        prop_assert_eq!(outcome.ended_after, Some(bytes.len()));
        prop_assert_eq!(of_events(&outcome.events), of_message(&message));
    }

    #[test]
    fn messages_follow_each_other(messages in vec(message(), 1..4), as_request: bool) {
        let kind = if as_request { MessageKind::Request } else { MessageKind::Response };
        let same_kind = |message: &&Message| matches!(
            (&message.control, kind),
            (Control::Request { .. }, MessageKind::Request) | (Control::Response { .. }, MessageKind::Response)
        );
        let messages: Vec<_> = messages.iter().filter(same_kind).collect();
        let mut decoder = match kind {
            MessageKind::Request => Decoder::request(Limits::default()),
            MessageKind::Response => Decoder::response(Limits::default()),
        };
        for message in &messages {
            decoder.push(write(message));
        }
        for message in &messages {
            let events: Result<Vec<_>, _> =
                std::iter::from_fn(|| decoder.next().transpose()).collect();
            prop_assert_eq!(of_events(&events.unwrap()), of_message(message));
            decoder.reset();
        }
        prop_assert!(decoder.is_between_messages());
    }

    #[test]
    fn damaged_messages_are_read_alike_by_both_codecs_or_refused(
        message in message(),
        damages in vec(damage(), 0..4),
        limits in limits(),
        cuts in vec(any::<Index>(), 0..4),
    ) {
        check_any_bytes(kind(&message), limits, &damaged(&write(&message), &damages), &cuts);
    }

    #[test]
    fn no_input_causes_a_panic(
        start in prop_oneof![Just(&[2u8, 1, b'A'][..]), Just(&[3, 0x40][..]), Just(&[][..])],
        bytes in vec(prop_oneof![any::<u8>(), 0..6u8, Just(b':'), Just(b'a')], 0..200),
        limits in limits(),
        cuts in vec(any::<Index>(), 0..4),
    ) {
        let bytes = [start, &bytes].concat();
        check_any_bytes(MessageKind::Request, limits, &bytes, &cuts);
        check_any_bytes(MessageKind::Response, limits, &bytes, &cuts);
    }
}
