//! The benchmark CLI: measures any HTTP tunnel or gateway, ours among them.
//!
//! ```text
//!   control thread                          load threads (--threads, default 1)
//!   scenario ── Load ── starts ───────────▶ workers ── client ══════▶ target ══▶ upstream
//!      │          ▲                            │                    (child processes of
//!      │          └── Slice each interval ◀── Recorder               --self-contained, or any)
//!      ▼          └── Meter: /proc, by role
//!    Report ──▶ text, JSON, HTML
//! ```
//!
//! It depends on none of the programs: it starts them as child processes, so that its own cost and
//! theirs are never mixed. Only the [`fleet`], a child process as well, knows the wire.

pub mod cli;
pub mod client;
pub mod fleet;
pub mod hop;
pub mod load;
pub mod measure;
pub mod progress;
pub mod relay;
pub mod report;
pub mod run;
pub mod scenario;
pub mod serve;
pub mod stack;
pub mod target;
pub mod tls_sink;
pub mod upstream;
