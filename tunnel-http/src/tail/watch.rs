//! The commands `tail`: shows exchanges of a running program, each at its end.
//!
//! In: the admin client, the path of the stream, and flags. Out: a line for each exchange, until nobody reads them.

use std::io;

use clap::Args;
use form_urlencoded::Serializer;
use serde::Deserialize;
use tunnel_ops::{
    admin::{AdminClient, AdminRequestError, ReceivedEvent},
    terminal::{Paint, print},
};

use super::{
    ExchangeView, TailFilter,
    row::Rows,
    stream::{EXCHANGE, MISSED, MissedView, UNANSWERED},
};

/// Flags of `tail`.
#[derive(Debug, Args)]
pub struct TailFlags {
    /// Which exchanges.
    #[command(flatten)]
    pub filter: TailFilter,

    /// How exchanges are printed
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = TailOutput::Text)]
    pub output: TailOutput,
}

/// How exchanges are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TailOutput {
    /// A line for people
    Text,
    /// A JSON object a line, with the names of the access log
    Json,
}

/// The data of [`UNANSWERED`].
#[derive(Debug, Deserialize)]
struct UnansweredView {
    unanswered: Vec<String>,
}

/// Prints the exchanges of the stream at this path of the admin API, until nobody reads them. A stream that is lost is
/// opened again.
///
/// # Errors
/// When the stream cannot be opened, is refused when it is opened again, or cannot be written.
pub async fn watch(
    client: &AdminClient,
    path: &str,
    flags: &TailFlags,
) -> Result<(), AdminRequestError> {
    let mut query = Serializer::for_suffix(format!("{path}?"), path.len() + 1);
    flags.filter.append_to(&mut query);
    let path = query.finish();
    let mut rows = Rows::new(Paint::for_terminal());
    let show = |event: &ReceivedEvent| show(&mut rows, event, flags.output);
    client.follow(&path, show).await
}

/// Shows one event. Returns whether anybody reads.
fn show(rows: &mut Rows, event: &ReceivedEvent, output: TailOutput) -> io::Result<bool> {
    let data = &*event.data;
    match &*event.name {
        EXCHANGE => {
            let text = match output {
                TailOutput::Json => Some(format!("{data}\n")),
                TailOutput::Text => {
                    let view = serde_json::from_str::<ExchangeView>(data);
                    view.ok().map(|view| rows.row(&view))
                }
            };
            return text.map_or(Ok(true), |text| print(&text));
        }
        MISSED => {
            if let Ok(MissedView { missed }) = serde_json::from_str(data) {
                tunnel_ops::print_note!(
                    "warning: {missed} exchanges are missing here: they came faster than they are read"
                );
            }
        }
        UNANSWERED => {
            if let Ok(UnansweredView { unanswered }) = serde_json::from_str(data) {
                let names = unanswered.join(", ");
                tunnel_ops::print_note!(
                    "warning: no answer from {names}: exchanges of these nodes are missing"
                );
            }
        }
        // Of a newer program.
        _ => {}
    }
    Ok(true)
}
