//! What is read from any bytes, written again, reads the same; and the second writing is final.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tunnel_proto::bhttp::{Decoder, Event, Fields, Limits, encode};

fuzz_target!(|input: &[u8]| {
    for decoder in [Decoder::request, Decoder::response] {
        let first = read(decoder(Limits::default()), Bytes::copy_from_slice(input));
        let written = write(&first);
        let second = read(decoder(Limits::default()), written.clone());
        assert_eq!(first, second);
        assert_eq!(written, write(&second));
    }
});

/// The events up to an error or the end of the input. Content that follows content is joined: where it is cut says nothing.
fn read(mut decoder: Decoder, bytes: Bytes) -> Vec<Event> {
    decoder.push(bytes);
    let mut events = Vec::new();
    while let Ok(Some(event)) = decoder.next() {
        match (events.last_mut(), event) {
            (Some(Event::Content(before)), Event::Content(data)) => {
                *before = [&before[..], &data[..]].concat().into();
            }
            (_, event) => events.push(event),
        }
    }
    events
}

fn write(events: &[Event]) -> Bytes {
    let mut out = BytesMut::new();
    if matches!(
        events.first(),
        Some(Event::Informational(_) | Event::Response(_))
    ) {
        encode::response_start(&mut out);
    }
    for event in events {
        match event {
            Event::Request(head) => {
                let scheme = std::str::from_utf8(&head.scheme).expect("a scheme is ascii");
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

fn section(out: &mut BytesMut, fields: &Fields) {
    for (name, value) in fields.pseudo_fields() {
        encode::field(out, name, value);
    }
    encode::fields(out, &fields.map);
    encode::end_fields(out);
}
