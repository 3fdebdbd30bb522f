//! Whether a request prefers an HTML page to JSON (RFC 9110 section 12.5.1).

use http::{HeaderMap, header::ACCEPT};

/// Most media ranges that are looked at, far more than a browser sends.
const RANGES: usize = 64;

/// A quality in thousandths.
type Quality = u16;

/// How well a media type matches, from the most general range to the most specific one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Preference {
    /// 1 for `*/*`, 2 for `type/*`, 3 for the media type itself; 0 for no match.
    specificity: u8,
    quality: Quality,
}

impl Preference {
    /// The range that is more specific decides; of two equal ones the first.
    fn consider(&mut self, specificity: u8, quality: Quality) {
        if specificity > self.specificity {
            *self = Self {
                specificity,
                quality,
            };
        }
    }
}

/// Whether a page is preferred to JSON: browsers say so, programs do not. Without `Accept`, and if both are equally welcome,
/// it is not.
pub(super) fn prefers_html(headers: &HeaderMap) -> bool {
    let (mut html, mut json) = (Preference::default(), Preference::default());
    let values = headers.get_all(ACCEPT).iter();
    let ranges = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    for range in ranges.take(RANGES) {
        let mut parts = range.split(|byte| *byte == b';');
        let media = parts.next().unwrap_or_default().trim_ascii();
        let quality = parts.find_map(quality).unwrap_or(1_000);
        let is = |name: &[u8]| media.eq_ignore_ascii_case(name);
        if is(b"*/*") {
            html.consider(1, quality);
            json.consider(1, quality);
        } else if is(b"text/*") {
            html.consider(2, quality);
        } else if is(b"application/*") {
            json.consider(2, quality);
        } else if is(b"text/html") {
            html.consider(3, quality);
        } else if is(b"application/json") {
            json.consider(3, quality);
        }
    }
    html.quality > json.quality
}

/// The quality, if the parameter is one (RFC 9110 section 12.4.2). One that cannot be read is 0.
fn quality(parameter: &[u8]) -> Option<Quality> {
    let parameter = parameter.trim_ascii();
    let value = (parameter.strip_prefix(b"q=")).or_else(|| parameter.strip_prefix(b"Q="))?;
    let (whole, decimals) = match value.split_first() {
        Some((whole @ (b'0' | b'1'), [])) => (*whole, &[][..]),
        Some((whole @ (b'0' | b'1'), [b'.', decimals @ ..])) if decimals.len() <= 3 => {
            (*whole, decimals)
        }
        _ => return Some(0),
    };
    let mut thousandths = Quality::from(whole - b'0') * 1_000;
    for (decimal, weight) in decimals.iter().zip([100, 10, 1]) {
        match decimal {
            b'0'..=b'9' => thousandths += Quality::from(decimal - b'0') * weight,
            _ => return Some(0),
        }
    }
    Some(thousandths.min(1_000))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn of(accept: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, HeaderValue::from_str(value).unwrap());
        }
        prefers_html(&headers)
    }

    #[test]
    fn browsers_get_a_page_and_programs_json() {
        let chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        assert!(of(&[chromium]));
        assert!(of(&["text/html"]));
        assert!(of(&["TEXT/HTML ; q=0.5, application/json;q=0.4"]));
        assert!(of(&["application/json;q=0.1", "text/*"]));
        for program in [
            "*/*",
            "application/json",
            "application/json, text/plain, */*",
            "text/event-stream",
            "text/html;q=0, */*",
            "text/html;q=0.5, application/json",
            "text/html, application/json",
            "text/html;q=x, application/json;q=0.1",
            "",
        ] {
            assert!(!of(&[program]), "{program}");
        }
        assert!(!of(&[]));
    }

    #[test]
    fn the_most_specific_range_decides() {
        assert!(!of(&["text/*, text/html;q=0.1, application/json;q=0.2"]));
        assert!(of(&["*/*;q=0.9, application/*;q=0.1, text/html;q=0.5"]));
    }

    proptest! {
        #[test]
        fn any_field_is_read(value in "[ -~]{0,80}") {
            of(&[&value]);
        }

        #[test]
        fn a_quality_is_read_as_it_is_written(thousandths in 0_u16..=1_000) {
            let text = format!("q={}.{:03}", thousandths / 1_000, thousandths % 1_000);
            prop_assert_eq!(quality(text.as_bytes()), Some(thousandths));
        }
    }
}
