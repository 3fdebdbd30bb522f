//! Request routing: from a checked request to the route that takes it, and to the upstream that responds.
//!
//! ```text
//!   configuration ─▶ config ─▶ table ◀── a reload replaces it as a whole
//!                                │
//!   request ──────────▶ matcher ─┴▶ route ─▶ rewrite ─▶ upstream ─▶ local service
//!                                     │                    │
//!                                     ├─ direct_response ──┤
//!                                     ▼                    ▼
//!                                  problem              response
//! ```
//!
//! Requests come from a session of the tunnel or from a listener, and are treated alike ([`request`]). The table
//! ([`Routes`]) finds the most specific route that matches ([`matcher`], [`pattern`], [`host`]; [`odd`] has the paths that
//! can be read in two ways). The [`Route`] forwards the request to one of its upstreams, to the one whose URL the path
//! fills in ([`template`]), or responds itself ([`direct_response`]); it changes what its configuration says ([`rewrite`]).
//! An [`upstream`] keeps connections over HTTP/1.1 and HTTP/2, follows its name, and is checked and balanced. What fails
//! is a `Problem` that the caller makes a response of.
//!
//! [`config`] reads and checks `[[route]]`, [`dry_run`] and [`explain`] say what a table does with a request without
//! sending it.
//!
//! This crate knows no sessions, credentials, flags or listeners.

pub mod config;
pub mod direct_response;
pub mod dry_run;
pub mod explain;
pub mod host;
pub mod matcher;
pub mod metrics;
pub mod odd;
pub mod pattern;
pub mod request;
pub mod rewrite;
pub mod summary;
pub mod template;
pub mod upstream;
pub mod url;

mod route;
mod table;

pub use self::direct_response::RoutedBody;
pub use self::route::Route;
pub use self::table::{CHECKER, Routes};
