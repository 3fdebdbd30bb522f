//! The sample service of the demo, which the tunnel leads to.
//!
//! The program in `main.rs` puts a tunnel server and a tunnel client before [`SampleUpstream`]. The sample does not
//! depend on the tunnel: its page also works when it is opened directly.

mod upstream;

pub use upstream::SampleUpstream;
