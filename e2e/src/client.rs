//! A tunnel client as a child process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    checked::Checked,
    deadline::SOON,
    program::{Ended, Program, as_nobody, built, run},
    secrets,
    server::{Admin, wait_listening},
};

/// What a client is started with.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where the tunnel server, or a relay to it, is.
    pub server: SocketAddr,
    /// The name by which it is dialled, instead of its address; the port is that of the address.
    pub server_name: Option<String>,
    /// The file with the runtime's token.
    pub token: PathBuf,
    /// The authority that the server's certificate is checked against.
    pub ca: PathBuf,
    /// The upstream's URL; empty where the client has routes of its own.
    pub upstream: String,
    /// Flags beside those that are always given.
    pub flags: Vec<String>,
    /// Environment variables that it is given.
    pub environment: Vec<(String, String)>,
}

impl ClientOptions {
    /// The program's arguments, but for the admin listener.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(["--log-format", "json"].map(str::to_owned));
        arguments.extend(self.settings());
        arguments
    }

    /// The flags that say where to dial and what to dial with, which several subcommands share.
    fn settings(&self) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let server = match &self.server_name {
            Some(name) => format!("wss://{name}:{}", self.server.port()),
            None => format!("wss://{}", self.server),
        };
        let given = [
            ("--server", server),
            ("--upstream", self.upstream.clone()),
            ("--token-file", path(&self.token)),
            ("--ca-file", path(&self.ca)),
        ];
        let given = given.into_iter().filter(|(_, value)| !value.is_empty());
        let given = given.flat_map(|(flag, value)| [flag.to_owned(), value]);
        given.chain(self.flags.iter().cloned()).collect()
    }

    /// The command that runs the program with these arguments and this environment. `before` is the start of the command
    /// line, such as a program that runs it; may be empty.
    fn command(&self, before: &[String], arguments: &[String]) -> Command {
        secrets::keep_file(&self.token);
        let program = built("tunnel-client");
        let mut command = match before {
            [] => Command::new(program),
            [first, more @ ..] => {
                let mut command = Command::new(first);
                command.args(more).arg(program);
                command
            }
        };
        command.args(arguments).envs(self.environment.clone());
        command
    }

    /// Runs `tunnel-client check` with these options.
    pub async fn check(&self) -> Checked {
        self.check_by(&[]).await
    }

    /// Runs `tunnel-client check` without `--json`.
    pub async fn check_for_people(&self) -> Ended {
        let mut arguments = vec!["check".to_owned()];
        arguments.extend(self.settings());
        let command = self.command(&[], &arguments);
        run("tunnel-client check", command, 6 * SOON).await
    }

    /// Runs `tunnel-client check --json` by another program, with its arguments.
    pub async fn check_by(&self, before: &[String]) -> Checked {
        let mut arguments = vec!["check".to_owned(), "--json".to_owned()];
        arguments.extend(self.settings());
        let command = self.command(before, &arguments);
        Checked::new(run("tunnel-client check", command, 6 * SOON).await)
    }
}

/// Runs `tunnel-client` with these arguments to its end.
pub async fn tunnel_client(arguments: &[&str]) -> Ended {
    let mut command = Command::new(built("tunnel-client"));
    command.args(arguments);
    run("tunnel-client", command, 3 * SOON).await
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
        let mut arguments = options.arguments();
        arguments.extend(["--admin-listen", "127.0.0.1:0"].map(str::to_owned));
        Self::listening(options.command(&[], &arguments)).await
    }

    /// Starts a client as the user `nobody` in this directory.
    ///
    /// # Panics
    /// When it ends before it listens.
    pub async fn start_as_nobody(options: &ClientOptions, directory: &Path) -> Self {
        let mut command = as_nobody(built("tunnel-client"));
        command.args(options.arguments());
        command.args(["--admin-listen", "127.0.0.1:0"]);
        command.envs(options.environment.clone());
        command.current_dir(directory);
        Self::listening(command).await
    }

    /// Starts one with these arguments and environment variables, and nothing else.
    ///
    /// # Panics
    /// When it ends before it listens.
    pub async fn start_with(arguments: &[&str], environment: &[(String, String)]) -> Self {
        let mut command = Command::new(built("tunnel-client"));
        command.args(arguments).envs(environment.iter().cloned());
        Self::listening(command).await
    }

    async fn listening(mut command: Command) -> Self {
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
