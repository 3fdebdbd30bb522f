//! `tunnel-client check`: prints each step when it ends, and finally what is wrong and what to do about it.

use std::io::{self, IsTerminal};

use super::program::block_on;
use super::{Failure, print};
use crate::check::{self, Event, Options, Style};
use crate::cli::CheckArgs;

pub(super) fn check(arguments: CheckArgs) -> Result<(), Failure> {
    let CheckArgs {
        given,
        json,
        idle_probe,
        idle_probe_max,
    } = arguments;
    let mut options = Options::default();
    if idle_probe {
        options = options.with_idle_probe(idle_probe_max);
    }
    let style = style();
    let mut notify = move |event: Event<'_>| match event {
        // A check goes on where nobody reads it: its exit code counts.
        Event::Step(step) if !json => drop(print(&style.step(step))),
        Event::Step(_) => {}
        // Beside what scripts read.
        Event::Progress(line) => tunnel_ops::print_note!("{line}"),
    };
    block_on(async {
        let report = Box::pin(check::check(given, options, &mut notify)).await;
        match json {
            true => {
                let text = serde_json::to_string_pretty(&report).map_err(Failure::running)?;
                print(&format!("{text}\n"))?;
            }
            false => print(&report.conclusion(style))?,
        }
        match report.is_ok() {
            true => Ok(()),
            false => Err(Failure::Reported),
        }
    })
}

/// Signs and colours only at a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
fn style() -> Style {
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match io::stdout().is_terminal() && !wants_none {
        true => Style::Coloured,
        false => Style::Plain,
    }
}
