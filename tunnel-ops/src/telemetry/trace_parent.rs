//! The `traceparent` field of W3C Trace Context, validated and split into its parts. A received one is untrusted: no
//! more than an id.

use std::fmt;

use http::HeaderName;

/// Length of version 00: `00-<32>-<16>-<2>`.
const LENGTH: usize = 55;

/// The field that carries a [`TraceParent`].
pub const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// The field with what the systems that took part in the trace add to it; it belongs to a valid [`TraceParent`].
pub const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// A valid `traceparent` of version 00. A later version is converted to it without its extra parts, as the
/// standard demands of an implementation of version 00.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent([u8; LENGTH]);

impl TraceParent {
    /// Parses a field's value; `None` if it is invalid. An invalid value must not be forwarded.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_first_chunk::<LENGTH>()?;
        let extended = match rest.first() {
            None => true,
            Some(b'-') => &known[..2] != b"00",
            Some(_) => false,
        };
        let dashes = known[2] == b'-' && known[35] == b'-' && known[52] == b'-';
        let hex = [&known[..2], &known[3..35], &known[36..52], &known[53..]];
        let valid = extended
            && dashes
            && hex.iter().all(|part| {
                part.iter()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            })
            && &known[..2] != b"ff"
            && known[3..35].iter().any(|byte| *byte != b'0')
            && known[36..52].iter().any(|byte| *byte != b'0');
        if !valid {
            return None;
        }
        let mut own = *known;
        own[..2].copy_from_slice(b"00");
        Some(Self(own))
    }

    /// The value that names a span which is recorded. Neither id is zero.
    pub(crate) fn sampled(trace: u128, span: u64) -> Self {
        let mut value = [0; LENGTH];
        let text = format!("00-{trace:032x}-{span:016x}-01");
        value.copy_from_slice(text.as_bytes());
        Self(value)
    }

    /// The trace id as a number.
    pub(crate) fn trace_number(&self) -> u128 {
        // All are digits.
        u128::from_str_radix(self.trace_id(), 16).unwrap_or_default()
    }

    /// The id of the caller's span as a number.
    pub(crate) fn parent_number(&self) -> u64 {
        u64::from_str_radix(self.parent_id(), 16).unwrap_or_default()
    }

    /// The whole value, version 00.
    pub fn as_str(&self) -> &str {
        text(&self.0)
    }

    /// The trace id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        text(&self.0[3..35])
    }

    /// The id of the caller's span: 16 hexadecimal digits.
    pub fn parent_id(&self) -> &str {
        text(&self.0[36..52])
    }

    /// Whether the caller records this trace.
    pub fn is_sampled(&self) -> bool {
        // The lowest bit of the last digit. It is inverted in the character code of a letter: `a`, ten, is
        // 0x61.
        let last = self.0[54];
        if last.is_ascii_digit() {
            last & 1 == 1
        } else {
            last & 1 == 0
        }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn text(digits: &[u8]) -> &str {
    std::str::from_utf8(digits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_value_is_split() {
        let parent = TraceParent::parse(VALID.as_bytes()).unwrap();
        assert_eq!(parent.as_str(), VALID);
        assert_eq!(parent.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.parent_id(), "b7ad6b7169203331");
        assert!(parent.is_sampled());
    }

    #[test]
    fn the_sampled_flag_is_the_lowest_bit() {
        for (flags, sampled) in [
            ("00", false),
            ("01", true),
            ("02", false),
            ("0a", false),
            ("fb", true),
            ("ff", true),
        ] {
            let value = format!("{}{flags}", &VALID[..53]);
            assert_eq!(
                TraceParent::parse(value.as_bytes()).unwrap().is_sampled(),
                sampled,
                "{flags}"
            );
        }
    }

    #[test]
    fn a_later_version_is_read_as_version_00() {
        let later = format!("cc{}-what-ever", &VALID[2..]);
        assert_eq!(
            TraceParent::parse(later.as_bytes()).unwrap().as_str(),
            VALID
        );
    }

    #[test]
    fn invalid_values_are_refused() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_parent = format!("{}{}-01", &VALID[..36], "0".repeat(16));
        let wrong = [
            String::new(),
            zero_trace,
            zero_parent,
            VALID.to_uppercase(),
            format!("{VALID}-more"),
            format!("cc{}.more", &VALID[2..]),
            format!("ff{}", &VALID[2..]),
            VALID.replace('-', "_"),
            format!(" {VALID}"),
            VALID[..54].to_owned(),
        ];
        for value in wrong {
            assert_eq!(TraceParent::parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn a_value_is_made_of_the_numbers_that_it_is_read_as() {
        let parent = TraceParent::parse(VALID.as_bytes()).unwrap();
        let made = TraceParent::sampled(parent.trace_number(), parent.parent_number());
        assert_eq!(made.as_str(), VALID);
        let short = TraceParent::sampled(1, 2);
        assert_eq!(TraceParent::parse(short.as_str().as_bytes()), Some(short));
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = TraceParent::parse(&bytes);
        }

        #[test]
        fn parsed_values_round_trip(value in "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-x)?") {
            if let Some(parent) = TraceParent::parse(value.as_bytes()) {
                prop_assert_eq!(TraceParent::parse(parent.as_str().as_bytes()), Some(parent));
            }
        }
    }
}
