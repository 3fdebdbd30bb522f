//! What the other end of a session may do is anything: it costs that session or that exchange, with
//! an error that has a name; never a panic, never more memory than a bound, never another session.

mod client;
mod server;

/// A small generator, so that a failure can be repeated.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}
