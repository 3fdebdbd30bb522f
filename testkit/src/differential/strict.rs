//! A reader of HTTP/1.1 requests that accepts what RFC 9112 allows, and nothing that two programs could read in two ways.
//!
//! In: all bytes of a connection. Out: the requests in them, and how they end. It uses no other code, so that a fuzz
//! target can include it.

/// One request as an origin reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The method.
    pub method: String,
    /// The target, byte for byte.
    pub target: String,
    /// The field lines: names in lower case, values without white space around them.
    pub fields: Vec<Field>,
    /// The content without its framing.
    pub content: Vec<u8>,
    /// The trailer section.
    pub trailers: Vec<Field>,
}

/// Name and value.
pub type Field = (String, Vec<u8>);

/// How the bytes of a connection end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a whole request, or with one that closes the connection, whatever follows.
    Whole,
    /// In the middle of a request.
    Incomplete,
    /// With bytes that are no request. The connection cannot go on.
    Violation,
}

/// The requests of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The whole ones.
    pub messages: Vec<Message>,
    /// How the bytes end.
    pub ending: Ending,
}

/// Why there is no whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// More bytes are needed. Says whether the head is whole and wants a `100 Continue`.
    More {
        /// Whether the content is awaited by a sender that waits, too.
        expects_continue: bool,
    },
    /// The bytes are no request.
    Violation,
}

const MORE: Missing = Missing::More {
    expects_continue: false,
};

/// How the content after a head is framed.
#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

/// Reads all requests in `bytes`, up to one that closes the connection.
pub fn read(bytes: &[u8]) -> Reading {
    read_while(bytes, |closes| !closes)
}

/// Reads all requests in `bytes`, also after one that closes the connection.
pub fn read_all(bytes: &[u8]) -> Reading {
    read_while(bytes, |_| true)
}

/// Reads requests in `bytes` until `goes_on` says otherwise, which gets whether a request closes the connection.
fn read_while(bytes: &[u8], goes_on: impl Fn(bool) -> bool) -> Reading {
    let mut messages = Vec::new();
    let mut rest = bytes;
    let ending = loop {
        if rest.is_empty() {
            break Ending::Whole;
        }
        match next(rest) {
            Ok((message, length, closes)) => {
                messages.push(message);
                rest = &rest[length..];
                if !goes_on(closes) {
                    break Ending::Whole;
                }
            }
            Err(Missing::More { .. }) => break Ending::Incomplete,
            Err(Missing::Violation) => break Ending::Violation,
        }
    };
    Reading { messages, ending }
}

/// Reads the first request in `bytes`. Returns it, its length, and whether it closes the connection.
///
/// # Errors
/// When there is no whole one.
pub fn next(bytes: &[u8]) -> Result<(Message, usize, bool), Missing> {
    let mut at = match bytes {
        [b'\r'] => return Err(MORE),
        [b'\r', b'\n', ..] => 2,
        _ => 0,
    };
    if matches!(bytes.get(at), Some(b'\r' | b'\n')) {
        return Err(Missing::Violation);
    }
    let (method, target, is_http11) = request_line(line(bytes, &mut at)?)?;
    let fields = section(bytes, &mut at)?;
    let framing = framing(&fields, is_http11)?;
    let waits = |missing| match missing {
        Missing::More { .. } => Missing::More {
            expects_continue: values(&fields, "expect").next().is_some(),
        },
        Missing::Violation => missing,
    };
    let mut trailers = Vec::new();
    let content = match framing {
        Framing::Length(length) => {
            let content = bytes.get(at..at.saturating_add(length));
            let content = content.ok_or_else(|| waits(MORE))?;
            at += length;
            content.to_vec()
        }
        Framing::Chunked => {
            let content = chunks(bytes, &mut at).map_err(waits)?;
            trailers = section(bytes, &mut at).map_err(waits)?;
            content
        }
    };
    let closes = closes(&fields, is_http11);
    let message = Message {
        method,
        target,
        fields,
        content,
        trailers,
    };
    Ok((message, at, closes))
}

/// The values of a field.
pub fn values<'a>(fields: &'a [Field], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let is_it = move |field: &&Field| field.0 == name;
    fields.iter().filter(is_it).map(|(_, value)| &**value)
}

/// The members of a field that is a list, in lower case.
pub fn members(fields: &[Field], name: &str) -> Vec<String> {
    let values = values(fields, name).map(String::from_utf8_lossy);
    let members = values.flat_map(|value| {
        let members = value.split(',').map(|member| member.trim().to_lowercase());
        members.collect::<Vec<_>>()
    });
    members.collect()
}

/// The line at `at`, without its end.
fn line<'a>(bytes: &'a [u8], at: &mut usize) -> Result<&'a [u8], Missing> {
    let rest = &bytes[*at..];
    let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let end = end.ok_or(MORE)?;
    match rest[end..] {
        [b'\r'] => Err(MORE),
        [b'\r', b'\n', ..] => {
            *at += end + 2;
            Ok(&rest[..end])
        }
        _ => Err(Missing::Violation),
    }
}

/// The field lines at `at`, up to the empty line.
fn section(bytes: &[u8], at: &mut usize) -> Result<Vec<Field>, Missing> {
    let mut fields = Vec::new();
    loop {
        let line = line(bytes, at)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.ok_or(Missing::Violation)?);
        let is_good = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
        if !is_token(name) || !value.iter().all(is_good) {
            return Err(Missing::Violation);
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        fields.push((name, trim(&value[1..]).to_vec()));
    }
}

fn request_line(line: &[u8]) -> Result<(String, String, bool), Missing> {
    let parts: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else {
        return Err(Missing::Violation);
    };
    let is_target = |byte: &u8| byte.is_ascii_graphic() && *byte != b'#';
    let is_http11 = version == b"HTTP/1.1";
    let is_good = is_token(method) && !target.is_empty() && target.iter().all(is_target);
    if !is_good || !is_http11 && version != b"HTTP/1.0" {
        return Err(Missing::Violation);
    }
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(method), text(target), is_http11))
}

fn framing(fields: &[Field], is_http11: bool) -> Result<Framing, Missing> {
    let one = |name| {
        let mut values = values(fields, name);
        let first = values.next();
        match values.next() {
            None => Ok(first),
            Some(_) => Err(Missing::Violation),
        }
    };
    if one("host")?.is_none() && is_http11 {
        return Err(Missing::Violation);
    }
    match (one("content-length")?, one("transfer-encoding")?) {
        (None, None) => Ok(Framing::Length(0)),
        (Some(length), None) => {
            let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(length).ok().filter(|_| is_number);
            let length = length.and_then(|length| length.parse().ok());
            length.map(Framing::Length).ok_or(Missing::Violation)
        }
        (None, Some(coding)) if is_http11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Framing::Chunked)
        }
        _ => Err(Missing::Violation),
    }
}

/// The content of a chunked body, up to the end of its last chunk.
fn chunks(bytes: &[u8], at: &mut usize) -> Result<Vec<u8>, Missing> {
    let mut content = Vec::new();
    loop {
        let line = chunk_line(bytes, at)?;
        let end = line.iter().position(|byte| *byte == b';');
        let (digits, extension) = line.split_at(end.unwrap_or(line.len()));
        let is_good = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
        let is_number =
            (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(digits).ok().filter(|_| is_number);
        let size = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let size = size.filter(|_| extension.iter().all(is_good));
        let size = size.ok_or(Missing::Violation)?;
        if size == 0 {
            return Ok(content);
        }
        let data = bytes.get(*at..at.saturating_add(size)).ok_or(MORE)?;
        content.extend_from_slice(data);
        *at += size;
        match bytes[*at..] {
            [] | [b'\r'] => return Err(MORE),
            [b'\r', b'\n', ..] => *at += 2,
            _ => return Err(Missing::Violation),
        }
    }
}

/// The line with the size of a chunk. One that does not begin as a size is none, before its end is known.
fn chunk_line<'a>(bytes: &'a [u8], at: &mut usize) -> Result<&'a [u8], Missing> {
    if bytes.get(*at).is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(Missing::Violation);
    }
    line(bytes, at)
}

/// Whether the connection ends with the response to this request.
fn closes(fields: &[Field], is_http11: bool) -> bool {
    let options = members(fields, "connection");
    let has = |option: &str| options.iter().any(|other| other == option);
    has("close") || !is_http11 && !has("keep-alive")
}

fn is_token(bytes: &[u8]) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(is_token)
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
