//! A tunnel client that answers on a listener of its own, behind whatever brings requests to it,
//! by the same routes and without a tunnel.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use tempfile::TempDir;

use crate::{
    entry::Entry,
    program::{Program, built},
    server::{Admin, wait_listening},
};

/// A running `tunnel-client serve`.
#[derive(Debug)]
pub struct Served {
    program: Program,
    address: SocketAddr,
    admin: Admin,
    directory: TempDir,
}

impl Served {
    /// Starts one with this configuration file and these flags.
    ///
    /// # Panics
    /// When it ends before it listens.
    pub async fn start(toml: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("client.toml");
        std::fs::write(&file, toml).unwrap();
        let mut command = Command::new(built("tunnel-client"));
        command.args(["serve", "--log-format", "json", "--listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0", "--config"]);
        command.arg(&file).args(flags);
        let program = Program::start("tunnel-client serve", &mut command);
        let address = wait_listening(&program, "front").await;
        let admin = Admin(wait_listening(&program, "admin").await);
        Self {
            program,
            address,
            admin,
            directory,
        }
    }

    /// Where requests go in.
    pub fn entry(&self) -> Entry {
        Entry::direct(self.address)
    }

    /// Metrics and health.
    pub fn admin(&self) -> Admin {
        self.admin
    }

    /// The process.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The process, to end it.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// The configuration file.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("client.toml")
    }
}
