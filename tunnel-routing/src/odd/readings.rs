//! The readings of a path: every path that upstreams make of one.
//!
//! ```text
//!   path ─▶ any of the steps, any number of times, in any order ─▶ readings
//! ```
//!
//! A server, and each proxy before it, takes some steps on a path before it decides by it: it decodes, merges slashes,
//! resolves dot segments, and more ([`STEPS`]). Which steps, and in which order, differs between servers. The readings
//! of a path are closed under all steps, so that no order of them leads to another path.

use std::collections::HashSet;

use super::{encode, encoded};

/// Most readings of a path. A path with one odd part has at most 8, the worst of 100 bytes about 1,000.
pub(crate) const READINGS_MAX: usize = 256;

/// Most bytes of all readings of a path, which bounds the time for a long one.
pub(crate) const READINGS_BYTES: usize = 256 * 1024;

/// Something that servers do with a path; `None` where it changes nothing.
type Step = fn(&[u8]) -> Option<Vec<u8>>;

/// What servers do with a path, in parts so small that each server's way is made of them: decoding everything is the first
/// and the second, taking `%2e` for a dot the third and the sixth.
const STEPS: [Step; 10] = [
    // Tomcat that passes `%2F` through; with the next, nginx and Go's `URL.Path`.
    |path| decode(path, |byte| byte != b'/'),
    // Envoy's `UNESCAPE_AND_FORWARD`.
    |path| decode(path, |byte| matches!(byte, b'/' | b'\\')),
    // RFC 3986 section 6.2.2.2.
    |path| decode(path, super::is_unreserved),
    // WHATWG URL, Envoy, Tomcat.
    turn_backslashes,
    // nginx's and Envoy's `merge_slashes`, Go's `path.Clean`.
    merge_slashes,
    // RFC 3986 section 5.2.4.
    resolve_dots,
    // Tomcat, Jetty, Spring.
    remove_parameters,
    // Servers in C, and what opens files.
    end_at_nul,
    remove_controls,
    // WHATWG URL, Python's `urlsplit`: `//name/path` is the path of another host.
    remove_authority,
];

/// A path has more readings than can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyReadings;

/// Searches the readings of a path, itself first, for one that `is_sought`.
///
/// # Errors
/// When there are more than [`READINGS_MAX`], or they are longer than [`READINGS_BYTES`], and none of those up to there
/// is sought. That bounds the work.
pub(crate) fn find_reading<T>(
    path: &[u8],
    mut is_sought: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Option<T>, TooManyReadings> {
    let mut known = HashSet::from([path.to_owned()]);
    let mut waiting = vec![path.to_owned()];
    let mut bytes = path.len();
    while let Some(reading) = waiting.pop() {
        if let Some(found) = is_sought(&canonical(&reading)) {
            return Ok(Some(found));
        }
        for next in STEPS.iter().filter_map(|step| step(&reading)) {
            if known.contains(&next) {
                continue;
            }
            bytes += next.len();
            if known.len() >= READINGS_MAX || bytes > READINGS_BYTES {
                return Err(TooManyReadings);
            }
            known.insert(next.clone());
            waiting.push(next);
        }
    }
    Ok(None)
}

/// A path with each byte of its segments in its one form: encoded, in upper case, only where no segment can have the
/// byte. `%2F` stays part of its segment.
pub(crate) fn canonical(path: &[u8]) -> Vec<u8> {
    let mut written = Vec::with_capacity(path.len());
    for (index, segment) in path.split(|byte| *byte == b'/').enumerate() {
        if index > 0 {
            written.push(b'/');
        }
        match decode(segment, |_| true) {
            Some(decoded) => encode(&decoded, &mut written),
            None => encode(segment, &mut written),
        }
    }
    written
}

/// Decodes, once, the encoded bytes that are to be decoded.
fn decode(text: &[u8], is_decoded: impl Fn(u8) -> bool) -> Option<Vec<u8>> {
    let first = text.iter().position(|byte| *byte == b'%')?;
    let mut decoded = Vec::with_capacity(text.len());
    decoded.extend_from_slice(&text[..first]);
    let mut rest = &text[first..];
    while let [byte, after @ ..] = rest {
        match encoded(rest).filter(|byte| is_decoded(*byte)) {
            Some(byte) => {
                decoded.push(byte);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    (decoded.len() < text.len()).then_some(decoded)
}

fn turn_backslashes(path: &[u8]) -> Option<Vec<u8>> {
    path.contains(&b'\\').then(|| {
        let turned = path.iter().map(|byte| match byte {
            b'\\' => b'/',
            byte => *byte,
        });
        turned.collect()
    })
}

fn merge_slashes(path: &[u8]) -> Option<Vec<u8>> {
    let mut merged = path.to_owned();
    merged.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    (merged.len() < path.len()).then_some(merged)
}

/// Removes the segments `.` and, with those before them, `..`.
fn resolve_dots(path: &[u8]) -> Option<Vec<u8>> {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut has_dots = false;
    let mut ends_in_dots = false;
    for segment in path.strip_prefix(b"/")?.split(|byte| *byte == b'/') {
        ends_in_dots = matches!(segment, b"." | b"..");
        has_dots |= ends_in_dots;
        match segment {
            b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    if ends_in_dots {
        segments.push(b"");
    }
    has_dots.then(|| join(segments.into_iter()))
}

fn remove_parameters(path: &[u8]) -> Option<Vec<u8>> {
    path.contains(&b';').then(|| {
        let segments = path.split(|byte| *byte == b'/').skip(1);
        let name = |segment: &'_ [u8]| segment.iter().position(|byte| *byte == b';');
        join(segments.map(|segment| &segment[..name(segment).unwrap_or(segment.len())]))
    })
}

fn end_at_nul(path: &[u8]) -> Option<Vec<u8>> {
    let is_nul = |at: &usize| path[*at] == 0 || encoded(&path[*at..]) == Some(0);
    let end = (0..path.len()).find(is_nul)?;
    Some(path[..end].to_owned())
}

fn remove_controls(path: &[u8]) -> Option<Vec<u8>> {
    let mut left = decode(path, |byte| byte.is_ascii_control()).unwrap_or_else(|| path.to_owned());
    left.retain(|byte| !byte.is_ascii_control());
    (left.len() < path.len()).then_some(left)
}

/// Removes the slashes that a path begins with, where they are several, and what stands between them and the next.
fn remove_authority(path: &[u8]) -> Option<Vec<u8>> {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    if slashes < 2 {
        return None;
    }
    let behind = &path[slashes..];
    match behind.iter().position(|byte| *byte == b'/') {
        Some(at) => Some(behind[at..].to_owned()),
        None => Some(b"/".to_vec()),
    }
}

fn join<'a>(segments: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut path = Vec::new();
    for segment in segments {
        path.push(b'/');
        path.extend_from_slice(segment);
    }
    path
}
