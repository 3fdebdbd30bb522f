//! `--watch`: shows something again and again.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};
use tunnel_ops::admin::AdminRequestError;

use super::{Failure, print};

/// Moves a terminal's cursor to the beginning and clears all after it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows what `look` returns each `time`, until nobody reads it; `first` is shown at once. Text for people
/// replaces the text before on a terminal, and has an empty line behind it elsewhere. A server that does not answer may
/// come back.
pub(super) async fn watch(
    time: Duration,
    is_for_people: bool,
    first: String,
    mut look: impl AsyncFnMut() -> Result<String, AdminRequestError>,
) -> Result<(), Failure> {
    let is_terminal = is_for_people && io::stdout().is_terminal();
    let mut ticks = interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut result = Ok(first);
    loop {
        let is_open = match &result {
            Ok(text) if is_terminal => print(&format!("{CLEAR}{text}"))?,
            Ok(text) if is_for_people => print(&format!("{text}\n"))?,
            Ok(text) => print(text)?,
            Err(error) if is_terminal => print(&format!("{CLEAR}{error}\n"))?,
            Err(error) => {
                tunnel_ops::print_note!("error: {error}");
                true
            }
        };
        if !is_open {
            return Ok(());
        }
        ticks.tick().await;
        result = look().await;
    }
}
