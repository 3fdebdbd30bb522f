//! From the command line to the exit code: runs a scenario until it ends or is interrupted, and
//! writes its report.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{Cli, Command, OutputArgs},
    fleet, hop,
    progress::Progress,
    relay,
    report::{Report, html, json, text},
    scenario::{Context, Scenario},
    tls_sink, upstream,
};

/// Does what the command line says. Gives 0 when it measured, 1 when it could not.
pub fn execute(cli: Cli) -> ExitCode {
    // Each connection is a descriptor, and the usual limit is 1,024.
    drop(rlimit::increase_nofile_limit(u64::MAX));
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
    for file in [&output.json, &output.report].into_iter().flatten() {
        check_writable(file)?;
    }
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
    write(&report, output)?;
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

/// A measurement must not be lost because its file cannot be written.
fn check_writable(file: &Path) -> anyhow::Result<()> {
    let opened = fs::OpenOptions::new().create(true).append(true).open(file);
    opened
        .map(drop)
        .with_context(|| format!("cannot write {}", file.display()))
}

fn write(report: &Report, output: &OutputArgs) -> anyhow::Result<()> {
    if let Some(file) = &output.json {
        put(file, &json::render(report)?)?;
    }
    if let Some(file) = &output.report {
        put(file, &html::render(report))?;
    }
    let mut out = io::stdout().lock();
    out.write_all(text::render(report).as_bytes())
        .context("cannot write the result")
}

fn put(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
