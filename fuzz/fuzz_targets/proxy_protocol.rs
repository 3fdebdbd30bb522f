//! Any bytes in front of a connection: no panic, and a decision on a prefix stays for every continuation.

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
            decided => {
                assert_eq!(decided, whole);
                break;
            }
        }
    }
    if let Ok(Parsed::Complete { len, .. }) = whole {
        assert!(len <= bytes.len() && len <= LONGEST);
    }
});
