//! What the demo shows behind the tunnel: a small service of the kinds people really run.
//!
//! The program in `main.rs` puts a tunnel server and a tunnel client before [`SampleUpstream`].
//! The sample knows nothing of the tunnel: open it directly, and the same page works.

mod upstream;

pub use upstream::SampleUpstream;
