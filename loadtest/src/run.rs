//! From the command line to the exit code: runs a scenario until it ends or is interrupted, and
//! writes its report.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::{self, ExitCode},
    thread,
};

use anyhow::{Context as _, bail};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, parser::ValueSource};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{Cli, Command, OutputArgs},
    fleet, hop,
    output::OutputFile,
    progress::Progress,
    relay,
    report::{Report, Setting, html, markdown, text},
    scenario::Scenario,
    serve::on_this_thread,
    tls_sink, upstream,
};

/// The heading of the flags that say how long and how much.
const LOAD_HEADING: &str = "Load";

/// Does what the command line says. Gives 0 when it measured, 1 when it could not.
pub fn execute() -> ExitCode {
    let command = Cli::command();
    let matches = command.clone().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // Each connection is a descriptor, and the usual limit is 1,024.
    drop(rlimit::increase_nofile_limit(u64::MAX));
    if cli.end_with_input {
        thread::spawn(end_with_input);
    }
    let done = match cli.command {
        Command::Scenario(scenario) => measure(scenario, settings(&command, &matches), &cli.output),
        Command::Upstream(args) => upstream::run(args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Relay(args) => relay::run(args),
        Command::TlsSink(args) => tls_sink::run(&args),
        Command::Hop(args) => hop::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr().lock(), "loadtest: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The flags of the scenario that were given, and the defaults of those that shape the load.
fn settings(command: &clap::Command, matches: &ArgMatches) -> Vec<Setting> {
    let Some((name, matches)) = matches.subcommand() else {
        return Vec::new();
    };
    let arguments = command.find_subcommand(name).into_iter();
    let arguments = arguments.flat_map(clap::Command::get_arguments);
    let setting = |argument: &clap::Arg| {
        let id = argument.get_id().as_str();
        let is_load = argument.get_help_heading() == Some(LOAD_HEADING);
        // A header may be a credential.
        let is_shown = match matches.value_source(id)? {
            ValueSource::DefaultValue => is_load,
            _ => id != "headers",
        };
        let values = matches.get_raw(id)?.map(|value| value.to_string_lossy());
        let values = values.collect::<Vec<_>>().join(" ");
        is_shown.then(|| Setting {
            name: argument.get_long().unwrap_or(id).to_owned(),
            value: values,
        })
    };
    arguments.filter_map(setting).collect()
}

fn measure(scenario: Scenario, settings: Vec<Setting>, output: &OutputArgs) -> anyhow::Result<()> {
    // A measurement must not be lost because its file cannot be written.
    let files = open(output)?;
    let progress = Progress::new(output.quiet);
    // When a signal wins, the scenario is dropped, and with it all processes that it started.
    let measured = on_this_thread(async {
        tokio::select! {
            report = scenario.run(&progress) => report,
            stopped = interrupted() => match stopped {
                Ok(()) => bail!("interrupted; nothing was reported"),
                Err(error) => Err(error).context("cannot listen for signals"),
            },
        }
    });
    progress.finish();
    let report = Report {
        settings,
        ..measured?
    };
    write(files, &report)?;
    if !report.has_completed() {
        bail!("nothing was completed; the errors above say why");
    }
    Ok(())
}

async fn interrupted() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(())
}

/// The one who started this program holds the other end of its input, and writes nothing.
fn end_with_input() {
    drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
    process::exit(0);
}

/// Opens the files that the flags name, each with what will be written into it.
fn open(output: &OutputArgs) -> anyhow::Result<Vec<(OutputFile, Render)>> {
    let files: [(&Option<PathBuf>, Render); 3] = [
        (&output.json, |report| {
            Ok(serde_json::to_string_pretty(report)? + "\n")
        }),
        (&output.report, |report| Ok(html::render(report))),
        (&output.markdown, |report| Ok(markdown::render(report))),
    ];
    let named = files
        .into_iter()
        .filter_map(|(file, render)| Some((file.as_ref()?, render)));
    let opened = named.map(|(file, render)| Ok((OutputFile::open(file)?, render)));
    opened.collect()
}

type Render = fn(&Report) -> anyhow::Result<String>;

fn write(files: Vec<(OutputFile, Render)>, report: &Report) -> anyhow::Result<()> {
    for (file, render) in files {
        file.write(&render(report)?)?;
    }
    let mut out = io::stdout().lock();
    out.write_all(text::render(report).as_bytes())
        .context("cannot write the result")
}
