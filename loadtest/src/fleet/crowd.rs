//! What a fleet dials: a server, its runtimes, and the tokens that go with them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use http::HeaderValue;

use crate::{
    fleet::watch::{FleetArgs, FleetWatch},
    progress::Progress,
    report::tables::TUNNEL_SERVER,
    stack::{self, ACCOUNT, DOMAIN, Files, Server},
};

/// The runtimes of one run, each with a simulated client, and one more for a real client.
#[derive(Debug)]
pub struct Crowd<'a> {
    /// Flags of the fleet.
    pub args: &'a FleetArgs,
    /// Where to say what is going on.
    pub progress: &'a Progress,
    /// Those of the server.
    pub files: Files,
    /// How many simulated clients there are.
    pub count: u64,
    /// The token of the runtime that no simulated client has.
    pub single_token: PathBuf,
    /// The other tokens, one in each line.
    tokens: PathBuf,
}

impl<'a> Crowd<'a> {
    /// Creates so many runtimes, and one more.
    ///
    /// # Errors
    /// The server's program is not there, or the directory cannot be written.
    pub fn create(args: &'a FleetArgs, count: u64, progress: &'a Progress) -> anyhow::Result<Self> {
        progress.message("making runtimes and tokens");
        let files = Files::new(&args.programs)?;
        let names = (0..count).map(name).chain(["real".to_owned()]);
        let mut tokens = files.create_runtimes(names)?;
        let single = tokens.pop().unwrap_or_default();
        Ok(Self {
            args,
            progress,
            count,
            single_token: files.write("real.token", &single)?,
            tokens: files.write("fleet.tokens", &tokens.join("\n"))?,
            files,
        })
    }

    /// Starts the server; for tunnels at `address` if given, else at a free port.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_server(&self, address: Option<SocketAddr>) -> anyhow::Result<Server> {
        stack::start_server(&self.args.programs, &self.files, address).await
    }

    /// Lets all simulated clients dial the server.
    ///
    /// # Errors
    /// As [`FleetWatch::start`].
    pub fn dial(&self, server: &Server, stable: Duration) -> anyhow::Result<FleetWatch> {
        let role = (TUNNEL_SERVER, server.child.id());
        let clients = format!("--tokens={}", self.tokens.display());
        FleetWatch::start(self.args, role, server.tunnel, clients, stable)
    }

    /// The hosts of all runtimes, as platform clients name them.
    ///
    /// # Errors
    /// Never, as names are made here.
    pub fn hosts(&self) -> anyhow::Result<Vec<HeaderValue>> {
        let host = |number| HeaderValue::try_from(format!("{ACCOUNT}-{}.{DOMAIN}", name(number)));
        Ok((0..self.count).map(host).collect::<Result<_, _>>()?)
    }
}

fn name(number: u64) -> String {
    format!("r{number}")
}
