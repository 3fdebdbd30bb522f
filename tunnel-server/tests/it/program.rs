//! Running the program: a folder with what it needs, and what came out of it.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder of its own for each test.
pub(crate) struct Folder(tempfile::TempDir);

/// What a finished program left behind.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With certificates, and a runtime with one token.
    pub(crate) fn with_all_files() -> Self {
        let folder = Self::new();
        let made = tunnel_server::certs::generate(&["localhost".to_owned()], 1).unwrap();
        folder.write("server.pem", &made.server_pem);
        folder.write("server.key", &made.server_key);
        let created = folder.run([
            "token",
            "create",
            "--account=acme",
            "--runtime=prod",
            "--runtimes=runtimes.toml",
        ]);
        assert_eq!(created.code, Some(0), "{}", created.stderr);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file in place. A new one can be read by its owner only.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(0o600);
        let mut file = open.open(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The program in this folder, with an empty environment.
    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tunnel-server"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env_clear();
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ended {
        ended(self.command(arguments).output().unwrap())
    }
}

pub(crate) fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
