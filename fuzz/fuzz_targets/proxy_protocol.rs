//! Any bytes in front of a connection: no panic, and what is said of a start of them is never taken
//! back when more bytes come.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tunnel_http::proxy_protocol::{Parsed, parse};

/// Longest header of either version.
const LONGEST: usize = 536;

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    for end in 0..=bytes.len() {
        match parse(&bytes[..end]) {
            Ok(Parsed::Incomplete) => assert!(end < LONGEST),
            said => {
                assert_eq!(said, whole);
                break;
            }
        }
    }
    if let Ok(Parsed::Complete { len, .. }) = whole {
        assert!(len <= bytes.len() && len <= LONGEST);
    }
});
