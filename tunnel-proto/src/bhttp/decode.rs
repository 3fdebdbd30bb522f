//! The incremental decoder of binary HTTP messages.
//!
//! In: pieces of bytes ([`Decoder::push`]). Out: heads and trailers ([`Decoder::next`]) as soon as they are
//! complete, and content in the pieces in which it arrives, the short chunks of one piece joined. Buffers no more than one incomplete head or
//! trailer section, and never reads beyond the end of a message.
//!
//! ```text
//!  Start --indicator--> Control --method.. or status--> Fields --0--> Length --0--> Fields --0--> Ended
//!                          ^                              |  head     |   ^          trailers      |
//!                          +----- informational head -----+           +-> Chunk                    |
//!  Start <------------------------------------- reset ---------------------------------------------+
//!  any of them --bytes that are no message--> Failed
//! ```
//!
//! The cost is linear in the received bytes, however they are cut: complete field lines are consumed at
//! once, and of an incomplete one only the two lengths are parsed again.

use std::{fmt, mem, ops::Range};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::{
    DecodeError, Event, Fields, Limits, RequestHead, ResponseHead, check, encode, input::Input,
};

/// Most pseudo-fields in one section: more than any valid message has, and few enough for a linear search
/// for repetitions.
const PSEUDO_FIELDS: usize = 8;

/// Content of chunks that are shorter than this is joined where several lie in one piece: an event, and a frame behind
/// it, costs as much as copying some hundred bytes, and a piece of 16 KiB may hold 8,192 chunks.
const SHORT_CHUNK: usize = 512;

/// Most bytes of joined chunks in one event: as many as a frame of the session carries.
const JOINED_CHUNKS: usize = 16 * 1024;

/// Initial capacity of a section's map, so that common sections need no reallocation.
const FIELDS_AT_FIRST: usize = 12;

/// Incremental decoder for one direction of a stream.
pub struct Decoder {
    kind: MessageKind,
    limits: Limits,
    /// Whether the authority of a request is inserted as its first field, `host`.
    has_host: bool,
    input: Input,
    state: State,
    /// Informational responses of this message so far.
    informational: usize,
    /// The section that is being read, and the number of its lines.
    fields: Fields,
    field_lines: usize,
    /// Bytes of the head or trailer section that were consumed.
    spent_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Request,
    Response,
}

enum State {
    Start,
    Control,
    Fields(Section),
    Length,
    /// Bytes of a chunk that are still to come; never 0.
    Chunk(u64),
    Ended,
    Failed(DecodeError),
}

/// The kind of section that is being read.
enum Section {
    Request {
        method: Method,
        scheme: Bytes,
        authority: Bytes,
        path: Bytes,
    },
    Response(StatusCode),
    Trailers,
}

impl Decoder {
    /// A decoder for the requests on a stream.
    #[must_use]
    pub fn request(limits: Limits) -> Self {
        Self::new(MessageKind::Request, limits)
    }

    /// Inserts the authority of each request as its first field, `host`, unless it is empty. A `host` field
    /// is then refused.
    #[must_use]
    pub fn with_host(mut self) -> Self {
        self.has_host = true;
        self
    }

    /// A decoder for the responses on a stream.
    #[must_use]
    pub fn response(limits: Limits) -> Self {
        Self::new(MessageKind::Response, limits)
    }

    /// Adds received bytes. Causes the fewest copies after [`Decoder::next`] has returned `None`.
    pub fn push(&mut self, data: Bytes) {
        self.input.push(data);
    }

    /// The next event; `None` when more bytes are needed, and after the end.
    ///
    /// # Errors
    /// When the bytes are not a valid message or exceed a limit. Every later call returns this error again.
    #[allow(
        clippy::should_implement_trait,
        reason = "`None` is not the end: more comes after the next push"
    )]
    pub fn next(&mut self) -> Result<Option<Event>, DecodeError> {
        let result = self.step();
        if let Err(error) = result {
            self.state = State::Failed(error);
        }
        result
    }

    /// Whether the decoder is between two messages, and no byte of the next one was received. Only then may
    /// the stream end, or be used for another exchange.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, State::Start | State::Ended) && self.input.is_empty()
    }

    /// Whether the message was read to its end, and [`Decoder::reset`] was not called yet.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Continues with the next message of the stream. Bytes that were already pushed belong to it.
    ///
    /// Does nothing before [`Event::End`]: the rest of a message would be read as the next one.
    pub fn reset(&mut self) {
        debug_assert!(self.is_ended(), "reset before the end of a message");
        if self.is_ended() {
            self.state = State::Start;
            self.informational = 0;
        }
    }

    fn new(kind: MessageKind, limits: Limits) -> Self {
        Self {
            kind,
            limits,
            has_host: false,
            input: Input::default(),
            state: State::Start,
            informational: 0,
            fields: Fields::default(),
            field_lines: 0,
            spent_bytes: 0,
        }
    }

    fn step(&mut self) -> Result<Option<Event>, DecodeError> {
        loop {
            let next = match &mut self.state {
                State::Start => self.framing()?,
                State::Control if self.kind == MessageKind::Request => self.request_control()?,
                State::Control => self.response_control()?,
                State::Fields(_) => {
                    if !self.read_fields()? {
                        return Ok(None);
                    }
                    return Ok(Some(self.finish_section()));
                }
                State::Length => self.chunk_length(),
                State::Chunk(left) => {
                    let Some(data) = take_content(&mut self.input, left) else {
                        return Ok(None);
                    };
                    if *left > 0 {
                        return Ok(Some(Event::Content(data)));
                    }
                    self.state = State::Length;
                    let joined = match data.len() < SHORT_CHUNK {
                        true => self.input.join_chunks(data, SHORT_CHUNK, JOINED_CHUNKS),
                        false => data,
                    };
                    return Ok(Some(Event::Content(joined)));
                }
                State::Ended => None,
                State::Failed(error) => return Err(*error),
            };
            let Some(next) = next else {
                return Ok(None);
            };
            self.state = next;
        }
    }

    fn framing(&mut self) -> Result<Option<State>, DecodeError> {
        let Some((indicator, end)) = self.input.varint_at(0) else {
            return Ok(None);
        };
        match (indicator, self.kind) {
            (encode::REQUEST, MessageKind::Request) | (encode::RESPONSE, MessageKind::Response) => {
                self.input.advance(end);
                Ok(Some(State::Control))
            }
            (0 | 1, _) => Err(DecodeError::KnownLength),
            (encode::RESPONSE, MessageKind::Request) => Err(DecodeError::RequestExpected),
            (encode::REQUEST, MessageKind::Response) => Err(DecodeError::ResponseExpected),
            _ => Err(DecodeError::UnknownFraming(indicator)),
        }
    }

    fn request_control(&mut self) -> Result<Option<State>, DecodeError> {
        let Some(method) = self.string_at(0)? else {
            return Ok(None);
        };
        let Some(scheme) = self.string_at(method.end)? else {
            return Ok(None);
        };
        let Some(authority) = self.string_at(scheme.end)? else {
            return Ok(None);
        };
        let Some(path) = self.string_at(authority.end)? else {
            return Ok(None);
        };

        let front = self.input.front();
        let checked_method = check::method(&front[method])?;
        let checked_scheme = check::scheme(&front[scheme])?;
        check::authority(&front[authority.clone()])?;
        check::path(&front[path.clone()])?;
        self.spent_bytes += path.end;
        let gap = path.start - authority.end;
        let authority = self.input.take_after(authority.start, authority.len());
        let path = self.input.take_after(gap, path.len());
        if self.has_host && !authority.is_empty() {
            let host = check::field_value(authority.clone())?;
            self.add_field(header::HOST, host)?;
        }
        Ok(Some(State::Fields(Section::Request {
            method: checked_method,
            scheme: checked_scheme,
            authority,
            path,
        })))
    }

    fn response_control(&mut self) -> Result<Option<State>, DecodeError> {
        let Some((status, end)) = self.input.varint_at(0) else {
            return Ok(None);
        };
        let status = check::status(status)?;
        if status.is_informational() {
            if self.informational >= self.limits.informational {
                return Err(DecodeError::TooManyInformational(self.limits.informational));
            }
            self.informational += 1;
        }
        self.input.advance(end);
        self.spent_bytes += end;
        Ok(Some(State::Fields(Section::Response(status))))
    }

    fn chunk_length(&mut self) -> Option<State> {
        let (length, end) = self.input.varint_at(0)?;
        self.input.advance(end);
        Some(if length == 0 {
            State::Fields(Section::Trailers)
        } else {
            State::Chunk(length)
        })
    }

    /// Consumes all complete field lines; true when the section has ended.
    fn read_fields(&mut self) -> Result<bool, DecodeError> {
        loop {
            let left = self.limits.head_bytes.saturating_sub(self.spent_bytes);
            let usual = self.input.usual_line();
            let (name, value) = match usual.filter(|(_, value)| value.end <= left) {
                Some(line) => line,
                None => {
                    let Some(name) = self.string_at(0)? else {
                        return Ok(false);
                    };
                    if name.is_empty() {
                        self.input.advance(name.end);
                        return Ok(true);
                    }
                    let Some(value) = self.string_at(name.end)? else {
                        return Ok(false);
                    };
                    (name, value)
                }
            };
            if self.field_lines >= self.limits.fields {
                return Err(DecodeError::TooManyFields(self.limits.fields));
            }
            self.field_lines += 1;
            self.spent_bytes += value.end;
            if self.input.front()[name.start] == b':' {
                self.take_pseudo_field(name, value)?;
            } else {
                self.take_field(name, value)?;
            }
        }
    }

    fn take_field(&mut self, name: Range<usize>, value: Range<usize>) -> Result<(), DecodeError> {
        let name = check::field_name(&self.input.front()[name])?;
        let value = self.input.take_after(value.start, value.len());
        let value = check::field_value(value)?;
        check::field(&name, &value)?;
        if self.has_host && name == header::HOST {
            return Err(DecodeError::HostField);
        }
        self.add_field(name, value)
    }

    fn add_field(&mut self, name: HeaderName, value: HeaderValue) -> Result<(), DecodeError> {
        // The map has a maximum size, far beyond any sensible limit.
        let too_many = |_| DecodeError::TooManyFields(self.limits.fields);
        let map = &mut self.fields.map;
        if map.is_empty() {
            *map = HeaderMap::try_with_capacity(FIELDS_AT_FIRST).map_err(too_many)?;
        }
        map.try_append(name, value).map_err(too_many)?;
        Ok(())
    }

    fn take_pseudo_field(
        &mut self,
        name: Range<usize>,
        value: Range<usize>,
    ) -> Result<(), DecodeError> {
        check::pseudo_name(&self.input.front()[name.clone()])?;
        // All lines before this one were pseudo-fields too.
        if self.field_lines > self.fields.pseudo.len() + 1 {
            return Err(DecodeError::PseudoFieldAfterField);
        }
        if self.fields.pseudo.len() >= PSEUDO_FIELDS {
            return Err(DecodeError::TooManyPseudoFields(PSEUDO_FIELDS));
        }
        let gap = value.start - name.end;
        let name = self.input.take_after(name.start, name.len());
        let value = self.input.take_after(gap, value.len());
        check::field_value(value.clone())?;
        if self.fields.pseudo.iter().any(|(other, _)| *other == name) {
            return Err(DecodeError::PseudoFieldRepeated);
        }
        self.fields.pseudo.push((name, value));
        Ok(())
    }

    fn finish_section(&mut self) -> Event {
        let fields = mem::take(&mut self.fields);
        self.field_lines = 0;
        self.spent_bytes = 0;
        self.input.shrink();
        let (event, next) = match mem::replace(&mut self.state, State::Ended) {
            State::Fields(Section::Request {
                method,
                scheme,
                authority,
                path,
            }) => {
                let head = RequestHead {
                    method,
                    scheme,
                    authority,
                    path,
                    fields,
                };
                (Event::Request(head), State::Length)
            }
            State::Fields(Section::Response(status)) if status.is_informational() => (
                Event::Informational(ResponseHead { status, fields }),
                State::Control,
            ),
            State::Fields(Section::Response(status)) => (
                Event::Response(ResponseHead { status, fields }),
                State::Length,
            ),
            // Only a section can be finished, so this is the trailer section.
            _ => (Event::End(fields), State::Ended),
        };
        self.state = next;
        event
    }

    /// The range of the string whose length prefix is at offset `at`; `None` when it is incomplete.
    ///
    /// Checks the length before any of the string is buffered.
    fn string_at(&mut self, at: usize) -> Result<Option<Range<usize>>, DecodeError> {
        let Some((length, start)) = self.input.varint_at(at) else {
            return Ok(None);
        };
        let left = self.limits.head_bytes.saturating_sub(self.spent_bytes);
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| start.checked_add(length));
        match end {
            Some(end) if end <= left => Ok(self.input.fill(end).then_some(start..end)),
            _ => Err(self.too_large()),
        }
    }

    fn too_large(&self) -> DecodeError {
        match self.state {
            State::Fields(Section::Trailers) => {
                DecodeError::TrailersTooLarge(self.limits.head_bytes)
            }
            _ => DecodeError::HeadTooLarge(self.limits.head_bytes),
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Start => "start",
            State::Control => "control data",
            State::Fields(Section::Trailers) => "trailers",
            State::Fields(_) => "header section",
            State::Length | State::Chunk(_) => "content",
            State::Ended => "ended",
            State::Failed(_) => "failed",
        };
        f.debug_struct("Decoder")
            .field("kind", &self.kind)
            .field("state", &state)
            .field("waiting_bytes", &self.input.len())
            .finish_non_exhaustive()
    }
}

/// Takes the received part of a chunk; `None` when there is none.
fn take_content(input: &mut Input, left: &mut u64) -> Option<Bytes> {
    let there = input.front().len();
    if there == 0 {
        return None;
    }
    let length = usize::try_from(*left).map_or(there, |left| left.min(there));
    *left -= length as u64;
    Some(input.take(length))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    const SMALL: Limits = Limits {
        head_bytes: 100,
        fields: 4,
        informational: 2,
    };

    /// A request with this header section, which ends where the section does.
    fn head(fields: &[(&str, &str)]) -> BytesMut {
        let mut out = BytesMut::new();
        encode::request_head(&mut out, "GET", "https", b"a.example", b"/");
        for (name, value) in fields {
            encode::field(&mut out, name.as_bytes(), value.as_bytes());
        }
        encode::end_fields(&mut out);
        out
    }

    /// A whole request with a chunk of content and this trailer section.
    fn with_trailers(fields: &[(&str, &str)]) -> BytesMut {
        let mut out = head(&[]);
        encode::chunk(&mut out, b"content");
        encode::end_content(&mut out);
        for (name, value) in fields {
            encode::field(&mut out, name.as_bytes(), value.as_bytes());
        }
        encode::end_fields(&mut out);
        out
    }

    /// A string with its length prefix, for values that [`encode`] would not write.
    fn string(bytes: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        crate::bhttp::varint::write(&mut out, bytes.len() as u64);
        out.extend_from_slice(bytes);
        out.to_vec()
    }

    /// All events in these bytes, until more bytes are needed or the message has ended.
    fn read(decoder: &mut Decoder, bytes: impl Into<Bytes>) -> Result<Vec<Event>, DecodeError> {
        decoder.push(bytes.into());
        std::iter::from_fn(|| decoder.next().transpose()).collect()
    }

    fn request(bytes: impl Into<Bytes>) -> Result<Vec<Event>, DecodeError> {
        read(&mut Decoder::request(SMALL), bytes)
    }

    fn response(bytes: impl Into<Bytes>) -> Result<Vec<Event>, DecodeError> {
        read(&mut Decoder::response(SMALL), bytes)
    }

    /// The error of a request whose head has this one field.
    fn field_error(name: &[u8], value: &[u8]) -> DecodeError {
        let mut bytes = head(&[]);
        bytes.truncate(bytes.len() - 1);
        bytes.extend_from_slice(&string(name));
        bytes.extend_from_slice(&string(value));
        request(bytes).unwrap_err()
    }

    #[test]
    fn other_framings_and_kinds_are_refused() {
        for known in [0, 1] {
            assert_eq!(request(vec![known]), Err(DecodeError::KnownLength));
            assert_eq!(response(vec![known]), Err(DecodeError::KnownLength));
        }
        assert_eq!(request(vec![3]), Err(DecodeError::RequestExpected));
        assert_eq!(response(vec![2]), Err(DecodeError::ResponseExpected));
        assert_eq!(request(vec![4]), Err(DecodeError::UnknownFraming(4)));
        assert_eq!(
            request(vec![0x40, 2]),
            Ok(vec![]),
            "a longer form of 2 is 2"
        );
    }

    #[test]
    fn control_data_is_checked() {
        let control = |parts: [&str; 4]| {
            let mut bytes = vec![2];
            parts
                .iter()
                .for_each(|part| bytes.extend(string(part.as_bytes())));
            request(bytes).err()
        };
        assert_eq!(control(["GET", "https", "a:1", "/"]), None);
        assert_eq!(control(["OPTIONS", "http", "", "*"]), None);
        assert_eq!(
            control(["G T", "https", "a", "/"]),
            Some(DecodeError::Method)
        );
        assert_eq!(control(["GET", "ftp", "a", "/"]), Some(DecodeError::Scheme));
        assert_eq!(
            control(["GET", "https", "a b", "/"]),
            Some(DecodeError::Authority)
        );
        assert_eq!(control(["GET", "https", "a", ""]), Some(DecodeError::Path));

        assert_eq!(response(vec![3, 0x40, 99]), Err(DecodeError::Status(99)));
        assert_eq!(response(vec![3, 0x42, 0x58]), Err(DecodeError::Status(600)));
        assert_eq!(
            response(vec![3, 0x40, 101]),
            Err(DecodeError::SwitchingProtocols)
        );
    }

    #[test]
    fn fields_are_checked() {
        assert_eq!(field_error(b"a b", b""), DecodeError::FieldName);
        assert_eq!(field_error(b"Host", b"a"), DecodeError::FieldNameCase);
        assert_eq!(field_error(b"host", b"a\r\nb: c"), DecodeError::FieldValue);
        assert_eq!(field_error(b"host", b" a"), DecodeError::FieldValueSpace);
        assert_eq!(
            field_error(b"upgrade", b"a"),
            DecodeError::ConnectionField("upgrade")
        );
        assert_eq!(field_error(b"te", b"gzip"), DecodeError::Te);
        assert_eq!(
            field_error(b":path", b"/"),
            DecodeError::PseudoFieldOfControl
        );
        assert_eq!(field_error(b":protocol", b"a\0"), DecodeError::FieldValue);
    }

    #[test]
    fn with_host_inserts_the_authority_and_refuses_a_host_field() {
        let with_host = |bytes: BytesMut| {
            let events = read(&mut Decoder::request(SMALL).with_host(), bytes)?;
            let [Event::Request(head), ..] = &events[..] else {
                panic!("{events:?}")
            };
            let names = head.fields.map.keys().map(ToString::to_string);
            Ok::<_, DecodeError>((names.collect::<Vec<_>>(), head.fields.map["host"].clone()))
        };
        let fields = [(":protocol", "websocket"), ("accept", "*/*"), ("b", "c")];
        let (names, host) = with_host(head(&fields)).unwrap();
        assert_eq!(names, ["host", "accept", "b"]);
        assert_eq!(host, "a.example");
        let twice = with_host(head(&[("host", "b.example")]));
        assert_eq!(twice.unwrap_err(), DecodeError::HostField);
        let late = with_host(head(&[("accept", "*/*"), (":protocol", "websocket")]));
        assert_eq!(late.unwrap_err(), DecodeError::PseudoFieldAfterField);
    }

    #[test]
    fn pseudo_fields_are_first_unique_and_few() {
        let events = request(head(&[(":protocol", "websocket"), ("a", "")])).unwrap();
        let [Event::Request(head_read)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(
            head_read.fields.pseudo(":protocol"),
            Some(&"websocket".into())
        );
        assert_eq!(head_read.fields.map.len(), 1);

        let late = head(&[("a", ""), (":protocol", "")]);
        assert_eq!(request(late), Err(DecodeError::PseudoFieldAfterField));
        let twice = head(&[(":protocol", "a"), (":protocol", "b")]);
        assert_eq!(request(twice), Err(DecodeError::PseudoFieldRepeated));

        let names: Vec<String> = (0..=PSEUDO_FIELDS).map(|i| format!(":x{i}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        let mut decoder = Decoder::request(Limits::default());
        let too_many = Err(DecodeError::TooManyPseudoFields(PSEUDO_FIELDS));
        assert_eq!(read(&mut decoder, head(&many)), too_many);
    }

    #[test]
    fn trailers_may_have_pseudo_fields() {
        let events = request(with_trailers(&[(":problem", "gone"), ("etag", "x")])).unwrap();
        let [_, Event::Content(data), Event::End(trailers)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(data, "content");
        assert_eq!(trailers.pseudo(":problem"), Some(&"gone".into()));
        assert_eq!(trailers.map["etag"], "x");
    }

    #[test]
    fn a_head_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not() {
        // All but the framing indicator counts.
        let rest = head(&[("a", &"x".repeat(64))]).len() - 64 - 1;
        let long = |bytes: usize| head(&[("a", &"x".repeat(bytes - rest))]);
        assert_eq!(long(100).len(), 101);
        assert_eq!(request(long(100)).map(|events| events.len()), Ok(1));
        let error = Err(DecodeError::HeadTooLarge(100));
        assert_eq!(request(long(101)), error);

        // The length alone is refused, before any byte of the value has arrived.
        let bytes = long(102);
        let before_value = bytes.len() - 1 - (102 - rest);
        assert_eq!(request(bytes[..before_value].to_vec()), error);
    }

    #[test]
    fn the_limit_applies_to_each_section() {
        let value = "x".repeat(60);
        let most = [("a", value.as_str()), ("b", ""), ("c", ""), ("d", "")];
        let mut message = head(&most);
        encode::end_content(&mut message);
        for (name, value) in most {
            encode::field(&mut message, name.as_bytes(), value.as_bytes());
        }
        encode::end_fields(&mut message);
        assert!(message.len() > SMALL.head_bytes);
        assert_eq!(request(message).map(|events| events.len()), Ok(2));

        let large = with_trailers(&[("a", &value), ("a", &value)]);
        assert_eq!(request(large), Err(DecodeError::TrailersTooLarge(100)));
    }

    #[test]
    fn lengths_beyond_memory_are_refused() {
        for first in [0xc0, 0xff] {
            let huge = [first, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
            let error = Err(DecodeError::HeadTooLarge(100));
            assert_eq!(request([&[2][..], &huge].concat()), error);
            let after_name = [&head(&[])[..head(&[]).len() - 1], b"\x01a", &huge].concat();
            assert_eq!(request(after_name), error);
            // Content has no limit.
            let chunk = [&head(&[]), &huge[..], b"start"].concat();
            assert_eq!(request(chunk).map(|events| events.len()), Ok(2));
        }
    }

    #[test]
    fn fields_and_informational_responses_are_counted() {
        let four = [("a", ""); 4];
        assert_eq!(request(head(&four)).map(|events| events.len()), Ok(1));
        assert_eq!(
            request(head(&[("a", ""); 5])),
            Err(DecodeError::TooManyFields(4))
        );
        assert_eq!(
            request(with_trailers(&four)).map(|events| events.len()),
            Ok(3)
        );
        let more = with_trailers(&[("a", ""); 5]);
        assert_eq!(request(more), Err(DecodeError::TooManyFields(4)));

        let mut out = BytesMut::new();
        encode::response_start(&mut out);
        for _ in 0..2 {
            encode::informational(&mut out, 103);
            encode::end_fields(&mut out);
        }
        let mut more = out.clone();
        encode::informational(&mut more, 103);
        assert_eq!(response(more), Err(DecodeError::TooManyInformational(2)));

        encode::final_status(&mut out, 200);
        encode::end_fields(&mut out);
        encode::end_content(&mut out);
        encode::end_fields(&mut out);
        let mut decoder = Decoder::response(SMALL);
        for _ in 0..2 {
            let events = read(&mut decoder, out.clone()).map(|events| events.len());
            assert_eq!(events, Ok(4), "each message has the whole number");
            decoder.reset();
        }
    }

    #[test]
    fn more_fields_than_the_map_can_hold_are_an_error() {
        let limits = Limits {
            head_bytes: usize::MAX,
            fields: usize::MAX,
            informational: 0,
        };
        let mut out = head(&[]);
        out.truncate(out.len() - 1);
        for number in 0..40_000 {
            encode::field(&mut out, format!("x{number}").as_bytes(), b"");
        }
        let result = read(&mut Decoder::request(limits), out);
        assert_eq!(result, Err(DecodeError::TooManyFields(usize::MAX)));
    }

    #[test]
    fn a_failed_decoder_stays_failed() {
        let mut decoder = Decoder::request(SMALL);
        assert_eq!(read(&mut decoder, vec![0]), Err(DecodeError::KnownLength));
        assert_eq!(read(&mut decoder, head(&[])), Err(DecodeError::KnownLength));
        assert!(!decoder.is_between_messages());
    }

    #[test]
    fn the_next_message_waits_for_a_reset() {
        let mut decoder = Decoder::request(SMALL);
        assert!(decoder.is_between_messages());
        let message = with_trailers(&[]);
        let two = [&message[..], &message].concat();
        assert_eq!(read(&mut decoder, two).map(|events| events.len()), Ok(3));
        assert!(decoder.is_ended());
        assert!(
            !decoder.is_between_messages(),
            "the next message was received"
        );
        assert_eq!(decoder.next(), Ok(None));

        decoder.reset();
        assert!(!decoder.is_between_messages());
        assert_eq!(read(&mut decoder, vec![]).map(|events| events.len()), Ok(3));
        assert!(decoder.is_between_messages());
        decoder.reset();
        assert!(decoder.is_between_messages());
    }

    #[test]
    fn a_message_is_open_until_its_last_byte() {
        let message = with_trailers(&[("a", "b")]);
        let mut decoder = Decoder::request(SMALL);
        for (at, byte) in message.iter().enumerate() {
            assert_eq!(decoder.is_between_messages(), at == 0, "before byte {at}");
            read(&mut decoder, vec![*byte]).unwrap();
        }
        assert!(decoder.is_between_messages());
    }

    #[test]
    fn a_head_in_one_piece_is_not_copied() {
        let bytes = head(&[(":protocol", "websocket"), ("cookie", "a=1")]).freeze();
        let from = bytes.as_ptr_range();
        let mut decoder = Decoder::request(SMALL);
        let events = read(&mut decoder, bytes).unwrap();
        let [Event::Request(head)] = &events[..] else {
            panic!("{events:?}")
        };
        let protocol = head.fields.pseudo(":protocol").unwrap();
        let cookie = head.fields.map["cookie"].as_bytes();
        for slice in [&head.authority[..], &head.path, protocol, cookie] {
            assert!(from.contains(&slice.as_ptr()));
        }
        assert_eq!(decoder.input.copied, 0);
    }

    #[test]
    fn content_is_never_copied() {
        let mut decoder = Decoder::request(SMALL);
        let mut start = head(&[]);
        encode::chunk_header(&mut start, 0x4000);
        start.truncate(start.len() - 2);
        read(&mut decoder, start).unwrap();
        let held_back = decoder.input.copied;
        assert_eq!(held_back, 2, "the first half of the chunk's length");

        let rest = Bytes::from([&[0x40, 0][..], &[b'x'; 1000]].concat());
        let events = read(&mut decoder, rest.clone()).unwrap();
        let [Event::Content(data)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(data.as_ptr(), rest[2..].as_ptr());
        assert_eq!(decoder.input.copied, held_back + 2, "and the second");
    }

    #[test]
    fn short_chunks_of_one_piece_are_one_event() {
        let mut start = head(&[]);
        for _ in 0..5_000 {
            encode::chunk_header(&mut start, 1);
            start.extend_from_slice(b"x");
        }
        // One that is long is not copied, and ends the joined one before it.
        encode::chunk_header(&mut start, 2_000);
        start.extend_from_slice(&[b'y'; 2_000]);
        for _ in 0..20_000 {
            encode::chunk_header(&mut start, 1);
            start.extend_from_slice(b"z");
        }
        // The last one has not come whole.
        encode::chunk_header(&mut start, 2);
        start.extend_from_slice(b"z");
        let mut decoder = Decoder::request(SMALL);
        let events = read(&mut decoder, start).unwrap();
        let lengths: Vec<_> = events[1..]
            .iter()
            .map(|event| match event {
                Event::Content(content) => content.len(),
                _ => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(
            lengths,
            [5_000, 2_000, JOINED_CHUNKS, 20_000 - JOINED_CHUNKS, 1]
        );
    }

    #[test]
    fn input_in_single_bytes_is_copied_once() {
        let limits = Limits::default();
        let value = "x".repeat(50_000);
        let message = with_trailers(&[("a", &value), ("b", &value), ("c", "d")]);
        let mut decoder = Decoder::request(limits);
        let mut count = 0;
        for byte in &message {
            count += read(&mut decoder, Bytes::copy_from_slice(&[*byte]))
                .unwrap()
                .len();
        }
        assert_eq!(count, 1 + "content".len() + 1);
        assert!(decoder.input.copied <= message.len());
    }
}
