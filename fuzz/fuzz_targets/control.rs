//! Any text as a control message: no panic, and a decoded message stays equal when it is encoded and decoded again. The
//! routes that are kept fit into a message, however many the message lists.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tunnel_proto::{control::Control, limits};

fuzz_target!(|text: &str| {
    let Ok(control) = Control::decode(text) else {
        return;
    };
    assert!(text.len() <= limits::CONTROL_BYTES);
    let written = control.encode();
    // Escapes may make it longer than what was read.
    if written.len() <= limits::CONTROL_BYTES {
        assert_eq!(Control::decode(&written).ok(), Some(control.clone()));
    }
    let _ = (format!("{control:?}"), control.name());
    if let Control::Routes(summary) = control {
        let kept = summary.bounded();
        assert!(kept.routes().len() <= limits::ROUTES);
        let written = Control::Routes(kept.clone()).encode();
        assert!(written.len() <= limits::CONTROL_BYTES);
        assert_eq!(kept.clone().bounded(), kept);
    }
});
