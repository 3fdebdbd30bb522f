//! A reader of HTTP/2 requests that accepts what RFC 9113 allows.
//!
//! In: the frames of a client. Out: the requests in them, as [`Message`]s with the authority as their `host`. Of HPACK it
//! reads what [`super::random_http2`] writes: literals, and some entries of the static table.
//!
//! Three malformed requests are read as the `h2` crate reads them, which passes on what is well-formed of them and nothing
//! else, so that no origin can read them otherwise: see `forgive` and `target`.

use std::collections::{BTreeMap, BTreeSet};

use super::strict::{Field, Message, members, values};
use crate::http2::Frame;

/// The requests of a connection.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The whole ones.
    pub messages: Vec<Message>,
    /// The streams of requests that are whole or broken, and so are to be answered or reset.
    pub ended: BTreeSet<u32>,
    /// Whether the client may have disturbed requests that were whole: by a reset, or by frames that end the connection.
    pub is_disturbed: bool,
}

/// A frame that ends the connection.
struct ConnectionError;

/// What is known of one stream.
#[derive(Default)]
struct Stream {
    fields: Vec<Field>,
    content: Vec<u8>,
    trailers: Vec<Field>,
    is_ended: bool,
    is_broken: bool,
    /// By the client, which gets no answer then.
    is_reset: bool,
}

/// A field section that is not whole.
struct Section {
    stream: u32,
    fields: Vec<Field>,
    /// The beginning of the next field.
    block: Vec<u8>,
    is_last: bool,
}

#[derive(Default)]
struct Reader {
    streams: BTreeMap<u32, Stream>,
    section: Option<Section>,
    is_disturbed: bool,
}

/// Fields that HTTP/2 does not have (RFC 9113 section 8.2.2).
const OF_CONNECTION: [&str; 5] = [
    "connection",
    "transfer-encoding",
    "upgrade",
    "keep-alive",
    "proxy-connection",
];

/// The bits of a stream's number.
const STREAM: u32 = 0x7fff_ffff;

/// Reads the frames of a client, after the connection preface.
pub fn read(frames: &[Frame]) -> Reading {
    let mut reader = Reader::default();
    for frame in frames {
        if reader.frame(frame).is_err() {
            reader.is_disturbed = true;
            break;
        }
    }
    let mut reading = Reading {
        is_disturbed: reader.is_disturbed,
        ..Reading::default()
    };
    for (number, stream) in &reader.streams {
        if (stream.is_ended || stream.is_broken) && !stream.is_reset {
            reading.ended.insert(*number);
        }
        let is_whole = stream.is_ended && !stream.is_broken;
        let found = message(stream, stream.content.len()).filter(|_| is_whole);
        if found.is_some() {
            reading.messages.extend(found);
            continue;
        }
        // What has all of a declared length may have been forwarded before the stream was broken.
        let length = values(&stream.fields, "content-length").next();
        let length = length.and_then(|length| String::from_utf8_lossy(length).parse().ok());
        let length = length.filter(|length| *length <= stream.content.len());
        if let Some(message) = length.and_then(|length| message(stream, length)) {
            reading.messages.push(message);
            reading.is_disturbed = true;
        }
    }
    reading
}

impl Reader {
    fn frame(&mut self, frame: &Frame) -> Result<(), ConnectionError> {
        let length = frame.payload.len();
        if length > 16 * 1024 {
            return Err(ConnectionError);
        }
        if let Some(section) = &self.section {
            if frame.kind == Frame::CONTINUATION && frame.stream == section.stream {
                return self.continuation(frame);
            }
            // Ends the connection, but the `h2` crate forgets a section once it has found it malformed.
            let stream = self.streams.entry(section.stream).or_default();
            stream.is_broken = true;
            self.is_disturbed = true;
            self.section = None;
        }
        let is_connection = frame.stream == 0;
        match frame.kind {
            Frame::DATA | Frame::HEADERS | Frame::PRIORITY if is_connection => Err(ConnectionError),
            Frame::DATA => self.data(frame),
            Frame::HEADERS => self.headers(frame),
            Frame::PRIORITY => {
                if length != 5 || dependency(&frame.payload) == Some(frame.stream) {
                    self.break_stream(frame.stream);
                }
                Ok(())
            }
            Frame::RST_STREAM => {
                self.break_stream(frame.stream);
                let is_passed_over = self.is_passed_over(frame.stream);
                match self.streams.get_mut(&frame.stream) {
                    _ if length != 4 => return Err(ConnectionError),
                    Some(stream) => stream.is_reset = true,
                    None if is_passed_over => {}
                    None => return Err(ConnectionError),
                }
                Ok(())
            }
            Frame::SETTINGS if is_connection && length.is_multiple_of(6) => Ok(()),
            Frame::PING if is_connection && length == 8 => Ok(()),
            Frame::WINDOW_UPDATE if length == 4 => self.window_update(frame),
            Frame::SETTINGS
            | Frame::PUSH_PROMISE
            | Frame::PING
            | Frame::GOAWAY
            | Frame::WINDOW_UPDATE
            | Frame::CONTINUATION => Err(ConnectionError),
            _ => Ok(()),
        }
    }

    fn window_update(&mut self, frame: &Frame) -> Result<(), ConnectionError> {
        let is_zero = frame.payload.iter().all(|byte| *byte == 0);
        let is_known = frame.stream == 0 || self.streams.contains_key(&frame.stream);
        let is_known = is_known || self.is_passed_over(frame.stream);
        if !is_known || is_zero && frame.stream == 0 {
            return Err(ConnectionError);
        }
        if is_zero {
            self.break_stream(frame.stream);
        }
        Ok(())
    }

    /// A stream error: the request must not count as whole, unless it was whole before.
    fn break_stream(&mut self, stream: u32) {
        self.is_disturbed = true;
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.is_broken |= !stream.is_ended;
        }
    }

    fn data(&mut self, frame: &Frame) -> Result<(), ConnectionError> {
        let content = unpadded(frame)?;
        let greatest = self.greatest();
        let Some(stream) = self.streams.get_mut(&frame.stream) else {
            // Closed by a greater one, which is an error of the stream alone.
            self.is_disturbed = true;
            let is_closed = frame.stream < greatest;
            return is_closed.then_some(()).ok_or(ConnectionError);
        };
        if stream.is_ended {
            self.is_disturbed = true;
            return Ok(());
        }
        stream.content.extend_from_slice(content);
        stream.is_ended = frame.flags & Frame::END_STREAM != 0;
        Ok(())
    }

    /// Whether a stream was closed by a greater one (RFC 9113 section 5.1.1), after which libraries ignore what else comes
    /// for it.
    fn is_passed_over(&self, stream: u32) -> bool {
        let is_new = !self.streams.contains_key(&stream);
        is_new && !stream.is_multiple_of(2) && stream < self.greatest()
    }

    /// The greatest number of a stream so far.
    fn greatest(&self) -> u32 {
        self.streams.keys().next_back().copied().unwrap_or(0)
    }

    fn headers(&mut self, frame: &Frame) -> Result<(), ConnectionError> {
        let mut block = unpadded(frame)?;
        let mut depends_on_itself = false;
        if frame.flags & Frame::HAS_PRIORITY != 0 {
            depends_on_itself = dependency(block) == Some(frame.stream);
            block = block.get(5..).ok_or(ConnectionError)?;
        }
        let greatest = self.greatest();
        let is_new = !self.streams.contains_key(&frame.stream);
        if is_new && (frame.stream.is_multiple_of(2) || frame.stream < greatest) {
            // Libraries end the stream or the connection, or ignore the first of these.
            self.is_disturbed = true;
            if frame.stream.is_multiple_of(2) {
                return Err(ConnectionError);
            }
            self.streams.entry(frame.stream).or_default().is_broken = true;
        }
        if depends_on_itself {
            self.streams.entry(frame.stream).or_default();
            self.break_stream(frame.stream);
        }
        let section = Section {
            stream: frame.stream,
            fields: Vec::new(),
            block: block.to_vec(),
            is_last: frame.flags & Frame::END_STREAM != 0,
        };
        self.end_section(section, frame.flags)
    }

    fn continuation(&mut self, frame: &Frame) -> Result<(), ConnectionError> {
        let mut section = self.section.take().ok_or(ConnectionError)?;
        section.block.extend_from_slice(&frame.payload);
        self.end_section(section, frame.flags)
    }

    fn end_section(&mut self, mut section: Section, flags: u8) -> Result<(), ConnectionError> {
        let begun = section.fields.len();
        decode(&mut section.block, &mut section.fields)?;
        if flags & Frame::END_HEADERS == 0 {
            if !section.block.is_empty() {
                forgive(&mut section.fields, begun);
            }
            self.section = Some(section);
            return Ok(());
        }
        if !section.block.is_empty() {
            return Err(ConnectionError);
        }
        let fields = section.fields;
        let is_new = !self.streams.contains_key(&section.stream);
        let stream = self.streams.entry(section.stream).or_default();
        if is_new {
            stream.fields = fields;
        } else if stream.is_ended {
            self.is_disturbed = true;
            return Ok(());
        } else {
            // Only trailers may follow, which end the request.
            stream.is_broken |= !section.is_last || !are_trailers(&fields);
            let trimmed = |(name, value): Field| (name, value.trim_ascii().to_vec());
            stream.trailers = fields.into_iter().map(trimmed).collect();
        }
        stream.is_ended |= section.is_last;
        Ok(())
    }
}

/// The stream on which another depends, by a priority.
fn dependency(priority: &[u8]) -> Option<u32> {
    let bytes = priority.first_chunk()?;
    Some(u32::from_be_bytes(*bytes) & STREAM)
}

fn unpadded(frame: &Frame) -> Result<&[u8], ConnectionError> {
    if frame.flags & Frame::PADDED == 0 {
        return Ok(&frame.payload);
    }
    let (length, rest) = frame.payload.split_first().ok_or(ConnectionError)?;
    let end = rest.len().checked_sub(usize::from(*length));
    end.map(|end| &rest[..end]).ok_or(ConnectionError)
}

/// Takes the whole fields from the beginning of a field block (RFC 7541 section 6).
fn decode(block: &mut Vec<u8>, fields: &mut Vec<Field>) -> Result<(), ConnectionError> {
    let mut rest = &block[..];
    while let Some(field) = decode_field(&mut rest, fields.is_empty())? {
        fields.extend(field);
    }
    *block = rest.to_vec();
    Ok(())
}

/// Takes one field, or a change of the table's size; `None` if the block has no whole one.
fn decode_field(
    block: &mut &[u8],
    is_first: bool,
) -> Result<Option<Option<Field>>, ConnectionError> {
    let [first, rest @ ..] = *block else {
        return Ok(None);
    };
    let mut rest = rest;
    let (name, value) = match first {
        0x82 => (":method", "GET"),
        0x83 => (":method", "POST"),
        0x84 => (":path", "/"),
        0x86 => (":scheme", "http"),
        0x87 => (":scheme", "https"),
        // To 0, before all fields.
        0x20 if is_first => {
            *block = rest;
            return Ok(Some(None));
        }
        0x00 | 0x10 | 0x40 => {
            let Some((name, value)) = string(&mut rest).zip(string(&mut rest)) else {
                return Ok(None);
            };
            *block = rest;
            let name = String::from_utf8_lossy(&name).into_owned();
            return Ok(Some(Some((name, value))));
        }
        _ => return Err(ConnectionError),
    };
    *block = rest;
    Ok(Some(Some((name.to_owned(), value.as_bytes().to_vec()))))
}

/// Drops the malformed ones of the fields from the index `begun` on. The `h2` crate does so with those of a frame that ends
/// inside a field: it forgets that they were malformed as soon as it needs the next frame.
fn forgive(fields: &mut Vec<Field>, begun: usize) {
    let added = fields.split_off(begun);
    for field in added {
        let (name, value) = &field;
        let is_good = match name.starts_with(':') {
            true => fields
                .iter()
                .all(|(known, _)| known.starts_with(':') && known != name),
            false => !OF_CONNECTION.contains(&&**name) && (name != "te" || value == b"trailers"),
        };
        if is_good {
            fields.push(field);
        }
    }
}

/// A string without Huffman coding, of up to 16 KiB.
fn string(block: &mut &[u8]) -> Option<Vec<u8>> {
    let (first, mut rest) = block.split_first()?;
    let mut length = usize::from(*first);
    if length > 127 {
        return None;
    }
    if length == 127 {
        let ([low, high], others) = rest.split_first_chunk::<2>()?;
        length += usize::from(low & 0x7f) + (usize::from(*high) << 7);
        rest = others;
    }
    let (string, rest) = rest.split_at_checked(length)?;
    *block = rest;
    Some(string.to_vec())
}

/// Whether these may be trailers. Pseudo-fields may not, but the `h2` crate drops them without a word, as a gateway drops
/// fields that may not trail.
fn are_trailers(fields: &[Field]) -> bool {
    let is_good = |(name, value): &Field| {
        let name = name.strip_prefix(':').unwrap_or(name);
        is_name(name) && is_value(value.trim_ascii())
    };
    fields.iter().all(is_good)
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_good = |byte: u8| is_letter(byte) || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_good)
}

fn is_value(value: &[u8]) -> bool {
    let is_good = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
    let is_padded = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    value.iter().all(is_good) && !is_padded(value.first()) && !is_padded(value.last())
}

/// The request of a stream with so much of its content, unless it is malformed (RFC 9113 section 8.1.1).
fn message(stream: &Stream, length: usize) -> Option<Message> {
    let is_pseudo = |field: &&Field| field.0.starts_with(':');
    let count = stream.fields.iter().take_while(is_pseudo).count();
    let (pseudo_fields, fields) = stream.fields.split_at(count);
    let (method, path, authority) = target(pseudo_fields)?;
    if !are_fields(fields) || !is_length(fields, length) {
        return None;
    }
    let hosts: Vec<_> = values(fields, "host").collect();
    let host = match (&hosts[..], authority) {
        ([], Some(authority)) => authority,
        ([host], None) => host.to_vec(),
        ([host], Some(authority)) if host.eq_ignore_ascii_case(&authority) => authority,
        _ => return None,
    };
    let host = ("host".to_owned(), host);
    let others = fields.iter().filter(|(name, _)| name != "host").cloned();
    Some(Message {
        method,
        target: path,
        fields: std::iter::once(host).chain(others).collect(),
        content: stream.content[..length].to_vec(),
        trailers: stream.trailers.clone(),
    })
}

/// Method, path and authority, unless the pseudo-fields are malformed. Of a path the `h2` crate drops all from a `#` on, and
/// without an authority it passes over an empty scheme.
fn target(pseudo_fields: &[Field]) -> Option<(String, String, Option<Vec<u8>>)> {
    let known = [":method", ":scheme", ":path", ":authority"];
    let are_known = |field: &Field| known.contains(&field.0.as_str());
    let is_once = |field: &Field| values(pseudo_fields, &field.0).count() == 1;
    let are_good = |field: &Field| are_known(field) && is_once(field);
    let text = |name| {
        values(pseudo_fields, name)
            .next()
            .map(String::from_utf8_lossy)
    };
    let (method, scheme, path) = (text(":method")?, text(":scheme")?, text(":path")?);
    let authority = values(pseudo_fields, ":authority").next();
    let path = path.split('#').next()?;
    let is_path = path.starts_with('/') || path == "*" && method == "OPTIONS";
    let is_visible = path.bytes().all(|byte| byte.is_ascii_graphic());
    let is_method = is_name(&method.to_ascii_lowercase());
    let is_scheme = ["http", "https"].contains(&&*scheme.to_ascii_lowercase());
    let is_scheme = is_scheme || scheme.is_empty() && authority.is_none();
    let is_good = is_path && is_visible && is_method && is_scheme;
    if !is_good || !pseudo_fields.iter().all(are_good) {
        return None;
    }
    Some((
        method.into_owned(),
        path.to_owned(),
        authority.map(<[u8]>::to_vec),
    ))
}

/// Whether these may be the fields of a request.
fn are_fields(fields: &[Field]) -> bool {
    let is_good = |(name, value): &Field| {
        is_name(name) && is_value(value) && !OF_CONNECTION.contains(&name.as_str())
    };
    fields.iter().all(is_good) && members(fields, "te").iter().all(|te| te == "trailers")
}

/// Whether the content is as long as the fields say.
fn is_length(fields: &[Field], actual: usize) -> bool {
    let lengths: Vec<_> = values(fields, "content-length").collect();
    match lengths[..] {
        [] => true,
        [length] => {
            let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            is_number && String::from_utf8_lossy(length).parse() == Ok(actual)
        }
        _ => false,
    }
}
