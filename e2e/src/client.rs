//! A tunnel client as a child process.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use crate::{
    program::{Program, built},
    server::{Admin, wait_listening},
};

/// What a client is started with.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where the tunnel server, or a relay to it, is.
    pub server: SocketAddr,
    /// The file with the runtime's token.
    pub token: PathBuf,
    /// The authority that the server's certificate is checked against.
    pub ca: PathBuf,
    /// The upstream's URL.
    pub upstream: String,
    /// Flags beside those that are always given.
    pub flags: Vec<String>,
}

/// A running tunnel client, connected or not.
#[derive(Debug)]
pub struct Client {
    program: Program,
    admin: Admin,
}

impl Client {
    /// Starts a client. It may still be dialling: [`Admin::wait_ready`] waits for a session.
    ///
    /// # Panics
    /// When it ends before it listens.
    pub async fn start(options: &ClientOptions) -> Self {
        let mut command = Command::new(built("tunnel-client"));
        command.args([
            "run",
            "--log-format",
            "json",
            "--admin-listen",
            "127.0.0.1:0",
        ]);
        command.args(["--server", &format!("wss://{}", options.server)]);
        command.args(["--upstream", &options.upstream]);
        command.arg("--token-file").arg(&options.token);
        command
            .arg("--ca-file")
            .arg(&options.ca)
            .args(&options.flags);
        let program = Program::start("tunnel-client", &mut command);
        let admin = Admin(wait_listening(&program, "admin").await);
        Self { program, admin }
    }

    /// The process.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The process, to end it.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Metrics and health; ready while a session answers.
    pub fn admin(&self) -> Admin {
        self.admin
    }
}
