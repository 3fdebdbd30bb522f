//! `tunnel-client check`: prints each step when it ends, and finally what is wrong and what to do about it.

use std::io::{self, IsTerminal, Write};

use super::Failure;
use super::program::block_on;
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
        Event::Step(step) if !json => print(&style.step(step)),
        Event::Step(_) => {}
        // Beside what scripts read.
        Event::Progress(line) => eprintln!("{line}"),
    };
    block_on(async {
        let report = Box::pin(check::check(given, options, &mut notify)).await;
        match json {
            true => {
                let text = serde_json::to_string_pretty(&report).map_err(Failure::running)?;
                print(&format!("{text}\n"));
            }
            false => print(&report.conclusion(style)),
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

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // Fails if the reader has closed the pipe, and needs no more output then.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
