//! A tunnel client as a child process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

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

impl ClientOptions {
    /// The program's arguments, but for the admin listener.
    pub fn arguments(&self) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let given = [
            ("--log-format", "json".to_owned()),
            ("--server", format!("wss://{}", self.server)),
            ("--upstream", self.upstream.clone()),
            ("--token-file", path(&self.token)),
            ("--ca-file", path(&self.ca)),
        ];
        let mut arguments = vec!["run".to_owned()];
        for (flag, value) in given {
            arguments.extend([flag.to_owned(), value]);
        }
        arguments.extend(self.flags.iter().cloned());
        arguments
    }
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
        command.args(options.arguments());
        command.args(["--admin-listen", "127.0.0.1:0"]);
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
