//! Any bytes of an HTTP/1 client, cut in any way: no panic, the cuts change nothing, nothing is forwarded after a
//! violation, and another parser accepts each accepted head.
//!
//! The first byte of the input is the length of the pieces, the second whether an upgrade is granted.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tunnel_http::http1::Violation;
use tunnel_http::http1::framing::{Framing, HeadLimits, Phase};

const LIMITS: HeadLimits = HeadLimits {
    bytes: 1024,
    fields: 16,
};

fuzz_target!(|input: &[u8]| {
    let [length, upgrade, bytes @ ..] = input else {
        return;
    };
    let is_upgraded = upgrade % 2 == 1;
    let whole = read(bytes, usize::MAX, is_upgraded);
    assert_eq!(whole, read(bytes, usize::from(*length).max(1), is_upgraded));
    assert_eq!(whole, read(bytes, 1, is_upgraded));
    if let Some(head) = first_head(bytes) {
        let mut fields = [httparse::EMPTY_HEADER; LIMITS.fields];
        let mut request = httparse::Request::new(&mut fields);
        assert_eq!(
            request.parse(head),
            Ok(httparse::Status::Complete(head.len()))
        );
        assert!(
            request
                .path
                .is_some_and(|target| target.parse::<http::Uri>().is_ok())
        );
    }
});

/// How much was handed on, how many heads that were, and why it ended.
fn read(bytes: &[u8], length: usize, is_upgraded: bool) -> (usize, usize, Option<Violation>) {
    let mut framing = Framing::new(LIMITS);
    let (mut passed, mut heads) = (0, 0);
    let mut end = 0;
    while end < bytes.len() {
        end = end.saturating_add(length).min(bytes.len());
        loop {
            let scan = framing.scan(&bytes[passed..end]);
            passed += scan.pass;
            heads += scan.heads;
            assert!(passed <= end);
            if scan.violation.is_some() {
                assert_eq!(framing.scan(&bytes[passed..]).pass, 0);
                return (passed, heads, scan.violation);
            }
            if framing.phase() != Phase::Upgrade {
                break;
            }
            if is_upgraded {
                framing.upgraded();
            } else {
                framing.not_upgraded();
            }
        }
    }
    (passed, heads, None)
}

fn first_head(bytes: &[u8]) -> Option<&[u8]> {
    let mut framing = Framing::new(LIMITS);
    let end = (1..=bytes.len()).find(|&end| framing.scan(&bytes[..end]).heads == 1)?;
    Some(&bytes[..end])
}
