//! From the command line to the exit code: runs a scenario until it ends or is interrupted, and
//! writes its report.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::{self, ExitCode},
    thread,
};

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{Cli, Command, OutputArgs},
    fleet, hop,
    output::OutputFile,
    progress::Progress,
    relay,
    report::{Report, html, markdown, text},
    scenario::{Context, Scenario},
    tls_sink, upstream,
};

/// Does what the command line says. Gives 0 when it measured, 1 when it could not.
pub fn execute(cli: Cli) -> ExitCode {
    // Each connection is a descriptor, and the usual limit is 1,024.
    drop(rlimit::increase_nofile_limit(u64::MAX));
    if cli.end_with_input {
        thread::spawn(end_with_input);
    }
    let done = match cli.command {
        Command::Scenario(scenario) => measure(scenario, &cli.output),
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

fn measure(scenario: Scenario, output: &OutputArgs) -> anyhow::Result<()> {
    // A measurement must not be lost because its file cannot be written.
    let files = open(output)?;
    let context = Context {
        progress: Progress::new(output.quiet),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    // When a signal wins, the scenario is dropped, and with it all processes that it started.
    let measured = runtime.block_on(async {
        tokio::select! {
            report = scenario.run(&context) => report,
            stopped = interrupted() => match stopped {
                Ok(()) => bail!("interrupted; nothing was reported"),
                Err(error) => Err(error).context("cannot listen for signals"),
            },
        }
    });
    context.progress.finish();
    let report = measured?;
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
