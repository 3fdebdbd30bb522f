//! From the command line to the exit code: runs a scenario until it ends or is interrupted, and
//! writes its report.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    thread,
};

use anyhow::{Context as _, bail};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, parser::ValueSource};
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{Cli, Command, OutputArgs},
    fleet, hop,
    progress::Progress,
    relay,
    report::{Report, Setting, html, markdown, text},
    scenario::Scenario,
    serve::on_this_thread,
    tls_sink, upstream,
};

/// The heading of the flags that say how long and how much.
const LOAD_HEADING: &str = "Load";

/// Does what the command line says. Returns 0 when it measured, 1 when it could not.
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
    match io::stdout().write_all(text::render(report).as_bytes()) {
        // The reader has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the result"),
    }
}

/// What a new file may be used for, before the user's mask.
const MODE: u32 = 0o666;

/// A file of a result: known to be writable before anything is measured, written at its end. What is there already stays
/// until then, so a run that fails leaves neither an empty file nor half of one.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// In the same directory; gone when it is dropped. None where a device or a pipe is written to.
    temporary: Option<NamedTempFile>,
}

impl OutputFile {
    /// Makes sure that it can be written.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn open(file: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", file.display());
        let found = fs::metadata(file);
        if found.as_ref().is_ok_and(|found| !found.is_file()) {
            OpenOptions::new()
                .write(true)
                .open(file)
                .with_context(cannot)?;
            return Ok(Self {
                path: file.to_owned(),
                temporary: None,
            });
        }
        // Where it is a link, what it leads to is replaced.
        let path = match found {
            Ok(_) => file.canonicalize().with_context(cannot)?,
            Err(_) => file.to_owned(),
        };
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".loadtest-")
            .permissions(Permissions::from_mode(MODE))
            .tempfile_in(directory)
            .with_context(cannot)?;
        Ok(Self {
            path,
            temporary: Some(temporary),
        })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        let Self { path, temporary } = self;
        let written = match temporary {
            None => fs::write(&path, text),
            Some(mut file) => file
                .write_all(text.as_bytes())
                .and_then(|()| file.persist(&path).map(drop).map_err(|error| error.error)),
        };
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_was_there_stays_until_the_end() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("report.json");
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        OutputFile::open(&path).unwrap().write("first").unwrap();
        let second = OutputFile::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        second.write("second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_written_to_in_place() {
        let null = Path::new("/dev/null");
        OutputFile::open(null).unwrap().write("gone").unwrap();
        assert!(!fs::metadata(null).unwrap().is_file());
        assert!(OutputFile::open(Path::new("missing/directory/file")).is_err());
    }
}
