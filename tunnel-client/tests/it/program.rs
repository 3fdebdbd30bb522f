//! The program as it runs in a container.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::program::Program;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tunnel-client");

/// Starts it in a folder, with these variables and no others. The system ends it should it write as much as
/// a byte into a file.
pub(crate) fn start(command: &str, folder: &Path, variables: &[(&str, &str)]) -> Program {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -f 0 && exec \"$0\" \"$1\"", PROGRAM, command])
        .current_dir(folder)
        .env_clear()
        .envs(variables.iter().copied())
        .env("HOME", folder)
        .env("TMPDIR", folder);
    Program::start("tunnel-client", &mut shell)
}

/// An address that it says it listens on.
pub(crate) async fn address(program: &mut Program, listener: &str) -> SocketAddr {
    let line = program.next_line(&format!("listener=\"{listener}\"")).await;
    let address = line.split("address=").nth(1).unwrap();
    address.split_whitespace().next().unwrap().parse().unwrap()
}
