//! The programs of this project, built once by the same `cargo` that runs the tests, and the user that owns
//! nothing.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

pub use testkit::program::{Ended, Memory, OutputLine, Program, Signal, run};

/// Names a directory that holds the programs to test, instead of building them.
const PROGRAMS: &str = "E2E_PROGRAMS";

/// The user, and the group, that own nothing.
pub const NOBODY: u32 = 65_534;

/// Whether this test may do everything on this machine.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that runs as nobody where this test is root, and else as who this test is.
pub fn as_nobody(program: impl AsRef<OsStr>) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={NOBODY}"));
    command.arg(format!("--regid={NOBODY}"));
    command.args(["--clear-groups", "--"]).arg(program);
    command
}

/// The path of one of this project's programs, built if need be.
///
/// # Panics
/// When it does not build.
pub fn built(name: &str) -> PathBuf {
    // What failed once is not tried again by every other test.
    static DIRECTORY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| match env::var_os(PROGRAMS) {
        Some(directory) => Ok(directory.into()),
        None => build(),
    });
    let directory = directory.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let path = directory.join(name);
    assert!(path.is_file(), "there is no {}", path.display());
    path
}

/// Builds the programs into the directory that this test was built into.
fn build() -> Result<PathBuf, String> {
    let test = env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let directory = deps.parent().unwrap().to_owned();
    let profile = match directory.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let target = directory.parent().unwrap();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bins", "--profile", profile]);
    command.arg("--target-dir").arg(target);
    for package in ["tunnel-server", "tunnel-client", "demo"] {
        command.args(["--package", package]);
    }
    let status = command.current_dir(root()).status().unwrap();
    let failed = || format!("the programs do not build: {command:?}: {status}");
    if status.success() {
        Ok(directory)
    } else {
        Err(failed())
    }
}

/// The directory of the whole project.
///
/// # Panics
/// Never: this crate lies in it.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
