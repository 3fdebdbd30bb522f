//! The front door, alike at both programs: what a request of a stranger has to be, what of it goes on,
//! and how a response, or a problem, is told to whoever asked.
//!
//! ```text
//!   received head ─▶ check ─▶ outgoing ─▶ fields of the request that goes on
//!   received response, or a problem ─▶ answer ─▶ head of the answer
//! ```
//!
//! Pure: heads in, heads out. Listeners, bodies and time are the programs' own.

mod answer;
mod check;
mod outgoing;

pub use self::{
    answer::{
        Content, Head, grpc_problem, http1_head, http1_message, keep_end_to_end, make_response,
        problem, refusal, switching_protocols,
    },
    check::{CheckedRequest, Checker, Seen},
    outgoing::{FieldSink, Origin, TUNNEL_VIA, ViaName, X_REQUEST_ID, outgoing},
};
