//! The rules for the head of one request, and the kind of body that follows it.
//!
//! In: the lines, one by one, without their ends. Out: the kind of body, or the first rule that a line breaks. It keeps no
//! bytes, and never guesses: a request that two programs could read in different ways is refused (RFC 9112, 11.2).

use super::syntax;
use super::violation::Violation;

/// Longest method: twice the longest that is registered.
const METHOD_BYTES: usize = 32;
/// Longest target that `http::Uri` can hold. RFC 9112 requires at least 8000.
const TARGET_BYTES: usize = 65_534;
/// Longest field name. hyper panics (in debug builds) or fails with an internal error on one over 64 KiB.
const NAME_BYTES: usize = 1024;
/// Greatest content-length: hyper uses the two numbers above it for unknown lengths.
const GREATEST_LENGTH: u64 = u64::MAX - 2;

/// The body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// This many bytes; may be 0.
    Length(u64),
    /// Chunks, until the last one.
    Chunked,
    /// Not known yet: the client has requested an upgrade.
    Upgrade,
}

/// The parsed lines of a head.
#[derive(Debug, Default)]
pub(super) struct Head {
    has_request_line: bool,
    /// The method is HEAD, so that no answer has content, nor a refusal.
    is_head_request: bool,
    is_http11: bool,
    has_host: bool,
    length: Option<u64>,
    is_chunked: bool,
    /// `Connection` lists `upgrade`.
    wants_upgrade: bool,
    /// `Upgrade` names a protocol.
    names_protocol: bool,
    fields: usize,
}

impl Head {
    /// Whether the request line was among the lines.
    pub(super) const fn has_request_line(&self) -> bool {
        self.has_request_line
    }

    /// Whether the method is HEAD, as far as the request line was among the lines.
    pub(super) const fn is_head_request(&self) -> bool {
        self.is_head_request
    }

    /// Checks the next line, which is not the empty one at the end.
    pub(super) fn line(&mut self, line: &[u8], most_fields: usize) -> Result<(), Violation> {
        if self.has_request_line {
            self.fields += 1;
            if self.fields > most_fields {
                return Err(Violation::TooManyFields);
            }
            let (name, value) = field(line)?;
            self.field(name, value)
        } else {
            self.has_request_line = true;
            self.is_head_request = line.starts_with(b"HEAD ");
            self.is_http11 = request_line(line)?;
            Ok(())
        }
    }

    /// Ends the head, and returns the body that follows it. Refuses what would allow request smuggling: two lengths, of
    /// which another program may choose the other one.
    pub(super) fn end(&self) -> Result<Body, Violation> {
        if self.is_http11 && !self.has_host {
            return Err(Violation::HostMissing);
        }
        let has_body = self.is_chunked || self.length.is_some_and(|length| length > 0);
        match self.length {
            Some(_) if self.is_chunked => Err(Violation::TwoLengths),
            // An HTTP/1.0 client cannot request an upgrade (RFC 9110, 7.8).
            _ if self.is_http11 && self.wants_upgrade && self.names_protocol => {
                if has_body {
                    Err(Violation::UpgradeWithBody)
                } else {
                    Ok(Body::Upgrade)
                }
            }
            _ if self.is_chunked => Ok(Body::Chunked),
            length => Ok(Body::Length(length.unwrap_or(0))),
        }
    }

    /// Takes the fields that framing, routing and upgrades depend on. The length of a name rules out all but one of
    /// them, so that the other fields cost one comparison.
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                if std::mem::replace(&mut self.has_host, true) {
                    return Err(Violation::HostRepeated);
                }
                if !syntax::is_host_and_port(value) {
                    return Err(Violation::HostInvalid);
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                // Many HTTP clients offer `h2c` with every request, also with those that have a body. It is never accepted,
                // so it is ignored.
                self.names_protocol |= syntax::members(value)
                    .any(|protocol| !protocol.is_empty() && !protocol.eq_ignore_ascii_case(b"h2c"));
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.wants_upgrade |=
                    syntax::members(value).any(|option| option.eq_ignore_ascii_case(b"upgrade"));
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err(Violation::ContentLengthRepeated);
                }
                self.length = syntax::number(value).filter(|&length| length <= GREATEST_LENGTH);
                self.length.ok_or(Violation::ContentLengthInvalid)?;
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                self.transfer_encoding(value)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Violation> {
        if !self.is_http11 {
            return Err(Violation::TransferEncodingInHttp10);
        }
        if std::mem::replace(&mut self.is_chunked, true) {
            return Err(Violation::TransferEncodingRepeated);
        }
        if value.eq_ignore_ascii_case(b"chunked") {
            return Ok(());
        }
        let is_unknown =
            |coding: &[u8]| syntax::is_token(coding) && !coding.eq_ignore_ascii_case(b"chunked");
        Err(if syntax::members(value).any(is_unknown) {
            Violation::TransferEncodingUnknown
        } else {
            Violation::TransferEncodingInvalid
        })
    }
}

/// Checks a request line. Returns whether its version is HTTP/1.1.
fn request_line(line: &[u8]) -> Result<bool, Violation> {
    let mut parts = line.split(|&byte| byte == b' ');
    let method = parts.next().unwrap_or_default();
    if !syntax::is_token(method) {
        return Err(Violation::MethodSyntax);
    }
    if method.len() > METHOD_BYTES {
        return Err(Violation::MethodTooLong);
    }
    let (Some(destination), Some(version), None) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(Violation::RequestLine);
    };
    let is_http11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(Violation::VersionUnsupported);
        }
        _ => return Err(Violation::VersionSyntax),
    };
    // CONNECT would open a connection, and TRACE would return received credentials.
    if matches!(method, b"CONNECT" | b"TRACE") {
        return Err(Violation::MethodRefused);
    }
    target(method, destination)?;
    Ok(is_http11)
}

/// Checks the target of a request (RFC 9112, 3.2).
fn target(method: &[u8], target: &[u8]) -> Result<(), Violation> {
    if target.len() > TARGET_BYTES {
        return Err(Violation::TargetTooLong);
    }
    if target.contains(&b'#') {
        return Err(Violation::TargetFragment);
    }
    let path_and_query = match target {
        [] => return Err(Violation::RequestLine),
        [b'/', ..] => target,
        b"*" if method == b"OPTIONS" => return Ok(()),
        _ => {
            let after_scheme = after(target, b"http://").or_else(|| after(target, b"https://"));
            let rest = after_scheme.ok_or(Violation::TargetForm)?;
            let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
            let (authority, path_and_query) = rest.split_at(end.unwrap_or(rest.len()));
            if !syntax::is_host_and_port(authority) {
                return Err(Violation::TargetAuthority);
            }
            path_and_query
        }
    };
    if syntax::is_path_and_query(path_and_query) {
        Ok(())
    } else {
        Err(Violation::TargetCharacter)
    }
}

/// The rest after `prefix`, which is compared without case.
fn after<'a>(bytes: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = bytes.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Splits a field line of a head or of a trailer section into name and value.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    let (name, rest) = line.split_at(syntax::name_len(line));
    let [b':', value @ ..] = rest else {
        return Err(wrong_name(name, rest));
    };
    if name.is_empty() {
        return Err(Violation::FieldNameEmpty);
    }
    if name.len() > NAME_BYTES {
        return Err(Violation::FieldNameTooLong);
    }
    if !syntax::is_field_value(value) {
        return Err(Violation::FieldValueCharacter);
    }
    Ok((name, syntax::trim(value)))
}

/// The violation of a line that begins with `name`, followed by `rest` in place of a colon.
#[cold]
fn wrong_name(name: &[u8], rest: &[u8]) -> Violation {
    match rest {
        [b' ' | b'\t', ..] if name.is_empty() => Violation::FieldFolded,
        rest if !rest.contains(&b':') => Violation::FieldWithoutColon,
        [b' ' | b'\t', ..] => Violation::FieldNameSpace,
        [b'_', ..] => Violation::FieldNameUnderscore,
        _ => Violation::FieldNameSyntax,
    }
}
