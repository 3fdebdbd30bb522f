//! A tail as a stream of Server-Sent Events: `exchange` with an exchange, and `missed` with a number.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tunnel_ops::admin::{AdminProblem, Event, event_stream};

use super::{Tail, TailFilter, Tailed, TooManyTails};

/// The name of the event with one exchange.
pub const EXCHANGE: &str = "exchange";

/// The name of the event with the number of exchanges that are missing.
pub const MISSED: &str = "missed";

/// The name of the event with the server nodes that do not answer, whose exchanges are missing.
pub const UNANSWERED: &str = "unanswered";

/// The data of [`MISSED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedView {
    /// How many exchanges are missing.
    pub missed: u64,
}

/// Why a tail is refused, and the response's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailRefusal {
    /// The status.
    pub status: StatusCode,
    /// The reason, as a stable name.
    pub reason: &'static str,
    /// The reason for people, and what to do about it.
    pub detail: String,
}

/// The filter that these parameters of a query make.
///
/// # Errors
/// When the query cannot be understood.
pub fn filter<'a>(
    parameters: impl IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
) -> Result<TailFilter, TailRefusal> {
    let mut filter = TailFilter::default();
    for (name, value) in parameters {
        let added = filter.add(&name, &value);
        added.map_err(|error| TailRefusal {
            status: StatusCode::BAD_REQUEST,
            reason: "query_malformed",
            detail: format!("`{name}`: {error}"),
        })?;
    }
    Ok(filter)
}

/// The filter that a whole query makes.
///
/// # Errors
/// When the query cannot be understood.
pub fn filter_of(query: &str) -> Result<TailFilter, TailRefusal> {
    filter(form_urlencoded::parse(query.as_bytes()))
}

impl From<TooManyTails> for TailRefusal {
    fn from(error: TooManyTails) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "too_many_streams",
            detail: error.to_string(),
        }
    }
}

impl IntoResponse for TailRefusal {
    fn into_response(self) -> Response {
        let problem = AdminProblem {
            reason: self.reason.to_owned(),
            detail: self.detail,
        };
        problem.response(self.status)
    }
}

/// The events of a tail.
pub fn events(tail: Tail) -> impl Stream<Item = Event> + Send + 'static {
    let batches = stream::unfold(tail, async |mut tail| {
        let batch = tail.next().await;
        Some((batch, tail))
    });
    batches.flat_map(stream::iter).map(|tailed| match tailed {
        Tailed::Exchange(view) => event(EXCHANGE, &*view),
        Tailed::Missed(missed) => event(MISSED, &MissedView { missed }),
    })
}

/// The response with these events.
pub fn response(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    event_stream("exchanges follow, each at its end", events)
}

fn event(name: &str, data: &impl Serialize) -> Event {
    // Serialising plain values cannot fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(data)
}
