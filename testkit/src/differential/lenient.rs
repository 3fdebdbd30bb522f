//! Readers of HTTP/1.1 requests that forgive what some origins forgive.
//!
//! In: bytes, and what to forgive. Out: method, target and content of each request, as such an origin reads them. None of
//! them refuses anything: what makes no sense is read as far as it goes.

/// What a reader forgives, or prefers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leniency {
    /// A line feed alone ends a line, in heads and between chunks.
    pub bare_line_feed: bool,
    /// A carriage return alone ends a line.
    pub bare_carriage_return: bool,
    /// A zero byte ends a value.
    pub zero_ends: bool,
    /// A line that begins with white space belongs to the value before; otherwise it is a field.
    pub folds: bool,
    /// `_` in a name is `-`.
    pub underscores: bool,
    /// All bytes that are no letters are ignored at the ends of names and values.
    pub trims_all: bool,
    /// `Content-Length` has precedence over `Transfer-Encoding`.
    pub length_first: bool,
    /// The last of several fields counts, not the first.
    pub last_field: bool,
    /// Any coding that contains `chunked` is chunked.
    pub any_chunked: bool,
    /// Numbers end before the first byte that is no digit, and may begin with `+` or `0x`.
    pub number_prefix: bool,
    /// The fields of the trailer section replace those of the head.
    pub merges_trailers: bool,
}

/// A request as such an origin reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenientMessage {
    /// The method.
    pub method: String,
    /// The target.
    pub target: String,
    /// The host.
    pub host: Vec<u8>,
    /// The content.
    pub content: Vec<u8>,
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Models of readers, with their names: one for each thing that they forgive, and some for several.
pub fn models() -> Vec<(&'static str, Leniency)> {
    let all = |leniency: &mut Leniency| {
        leniency.bare_line_feed = true;
        leniency.bare_carriage_return = true;
        leniency.folds = true;
        leniency.underscores = true;
        leniency.trims_all = true;
        leniency.any_chunked = true;
        leniency.number_prefix = true;
    };
    let model = |change: &dyn Fn(&mut Leniency)| {
        let mut leniency = Leniency::default();
        change(&mut leniency);
        leniency
    };
    vec![
        ("none", model(&|_| {})),
        ("line feeds", model(&|one| one.bare_line_feed = true)),
        ("returns", model(&|one| one.bare_carriage_return = true)),
        ("zero bytes", model(&|one| one.zero_ends = true)),
        ("folds", model(&|one| one.folds = true)),
        ("underscores", model(&|one| one.underscores = true)),
        ("trims", model(&|one| one.trims_all = true)),
        ("length first", model(&|one| one.length_first = true)),
        ("last field", model(&|one| one.last_field = true)),
        ("any chunked", model(&|one| one.any_chunked = true)),
        ("number prefixes", model(&|one| one.number_prefix = true)),
        ("trailers", model(&|one| one.merges_trailers = true)),
        ("all", model(&all)),
        (
            "all, last",
            model(&|one| {
                all(one);
                one.last_field = true;
            }),
        ),
        (
            "all, length first",
            model(&|one| {
                all(one);
                one.length_first = true;
            }),
        ),
    ]
}

/// Reads all requests in `bytes`. What remains at the end is a request, too.
pub fn read(bytes: &[u8], leniency: Leniency) -> Vec<LenientMessage> {
    let mut reader = Reader {
        rest: bytes,
        leniency,
    };
    let mut messages = Vec::new();
    while !reader.rest.is_empty() {
        let before = reader.rest.len();
        messages.push(reader.message());
        assert!(reader.rest.len() < before, "a message has no bytes");
    }
    messages
}

struct Reader<'a> {
    rest: &'a [u8],
    leniency: Leniency,
}

impl Reader<'_> {
    fn message(&mut self) -> LenientMessage {
        let mut start = self.line();
        while start.is_empty() && !self.rest.is_empty() {
            start = self.line();
        }
        let start = String::from_utf8_lossy(&start).into_owned();
        let mut parts = start.split_ascii_whitespace().map(str::to_owned);
        let (method, target) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let mut fields = self.section();
        let coding = self
            .value(&fields, b"transfer-encoding")
            .unwrap_or_default();
        let coding = String::from_utf8_lossy(&coding).to_ascii_lowercase();
        let is_chunked =
            coding == "chunked" || self.leniency.any_chunked && coding.contains("chunked");
        let length = self.value(&fields, b"content-length");
        let length = length.map(|length| self.number(&length, 10));
        let content = match length {
            Some(length) if !is_chunked || self.leniency.length_first => self.take(length),
            _ if is_chunked => self.chunks(&mut fields),
            _ => Vec::new(),
        };
        LenientMessage {
            method,
            target,
            host: self.value(&fields, b"host").unwrap_or_default(),
            content,
        }
    }

    fn line(&mut self) -> Vec<u8> {
        let is_end = |at: &usize| match self.rest[*at..] {
            [b'\r', b'\n', ..] => true,
            [b'\r', ..] => self.leniency.bare_carriage_return,
            [b'\n', ..] => self.leniency.bare_line_feed,
            _ => false,
        };
        let end = (0..self.rest.len()).find(is_end).unwrap_or(self.rest.len());
        let line = self.take(end);
        let length = if self.rest.starts_with(b"\r\n") { 2 } else { 1 };
        self.take(length);
        line
    }

    fn section(&mut self) -> Fields {
        let mut fields = Fields::new();
        while !self.rest.is_empty() {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let is_folded = line[0].is_ascii_whitespace() && self.leniency.folds;
            match fields.last_mut() {
                Some((_, value)) if is_folded => value.extend_from_slice(&line),
                _ => fields.push(self.field(&line)),
            }
        }
        fields
    }

    fn field(&self, line: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let mut name = name.to_ascii_lowercase();
        if self.leniency.underscores {
            name.iter_mut()
                .filter(|byte| **byte == b'_')
                .for_each(|byte| *byte = b'-');
        }
        (self.trim(&name).to_vec(), self.trim(value).to_vec())
    }

    fn trim<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes
            .iter()
            .position(|byte| *byte == 0 && self.leniency.zero_ends);
        let bytes = &bytes[..end.unwrap_or(bytes.len())];
        if !self.leniency.trims_all {
            return bytes.trim_ascii();
        }
        let is_kept = |byte: &u8| byte.is_ascii_graphic() && *byte != b'"';
        let start = bytes.iter().position(is_kept).unwrap_or(bytes.len());
        let end = bytes.iter().rposition(is_kept).map_or(start, |end| end + 1);
        &bytes[start..end]
    }

    fn value(&self, fields: &Fields, name: &[u8]) -> Option<Vec<u8>> {
        let mut found = fields.iter().filter(|(other, _)| other == name);
        let found = if self.leniency.last_field {
            found.next_back()
        } else {
            found.next()
        };
        found.map(|(_, value)| value.clone())
    }

    fn number(&self, digits: &[u8], radix: u32) -> usize {
        let text = String::from_utf8_lossy(digits);
        let mut digits = text.trim();
        if self.leniency.number_prefix {
            digits = digits.trim_start_matches('+').trim_start_matches("0x");
            let end = digits.find(|digit: char| !digit.is_digit(radix));
            digits = &digits[..end.unwrap_or(digits.len())];
        }
        usize::from_str_radix(digits, radix).unwrap_or(0)
    }

    fn chunks(&mut self, fields: &mut Fields) -> Vec<u8> {
        let mut content = Vec::new();
        loop {
            let line = self.line();
            let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let size = self.number(digits, 16);
            if size == 0 {
                break;
            }
            content.extend(self.take(size));
            self.line();
        }
        let trailers = self.section();
        if self.leniency.merges_trailers {
            fields.retain(|(name, _)| trailers.iter().all(|(other, _)| other != name));
            fields.extend(trailers);
        }
        content
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        taken.to_vec()
    }
}
