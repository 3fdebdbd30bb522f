//! A whole tunnel as child processes: sample upstream, tunnel server, tunnel client.
//!
//! Everything is on the loopback on free ports, with certificates and tokens made for this run in
//! a directory that goes with it. A [`Plan`] says what it is made of; scenarios that need only a part
//! start that by itself: [`Files`], [`start_upstream`], [`start_server`], [`start_client`].

pub mod child;

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use http::Uri;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::{
    measure::usage::Roles,
    relay::Link,
    report::tables::{RELAY, TUNNEL_CLIENT, TUNNEL_SERVER, UPSTREAM},
    serve::FREE_PORT,
    stack::child::Child,
    upstream::UpstreamArgs,
};

/// The account of runtimes made here.
pub const ACCOUNT: &str = "load";

/// The runtime that a plain stack has.
pub const RUNTIME: &str = "test";

/// The domain of a server started here.
pub const DOMAIN: &str = "tunnels.localhost";

/// A program that has not said where it listens by then never will.
pub const START_LIMIT: Duration = Duration::from_secs(20);

/// Flags for the programs that a self-contained run starts.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Self-contained")]
pub struct ProgramArgs {
    /// Directory of tunnel-server and tunnel-client; by default this program's own. They end with
    /// it, unless it is killed by SIGKILL
    #[arg(long = "programs", value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Threads of the tunnel server that carry traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: u16,
    /// Flag for the tunnel server, such as --server-flag=--max-exchanges=512; repeat for more
    #[arg(long = "server-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub server_flags: Vec<String>,
    /// Flag for the tunnel client; repeat for more
    #[arg(long = "client-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub client_flags: Vec<String>,
}

/// Flags of everything that a scenario starts for itself.
#[derive(Clone, Debug, clap::Args)]
pub struct StackArgs {
    /// The programs.
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// How the sample upstream behaves.
    #[command(flatten)]
    pub upstream: UpstreamArgs,
}

/// What stack to start. By default one runtime before a sample upstream of its own.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The runtimes, each with a tunnel client.
    pub runtimes: &'a [&'a str],
    /// How the clients speak to the upstream: `http` or `h2c`.
    pub scheme: &'a str,
    /// An upstream that runs already.
    pub upstream: Option<SocketAddr>,
    /// The link by way of which the clients dial the server.
    pub link: Option<Link>,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        Self {
            runtimes: &[RUNTIME],
            scheme: "http",
            upstream: None,
            link: None,
        }
    }
}

/// Running programs, tunnels connected. They are killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Stack {
    /// The tunnel clients, in the order of their runtimes.
    pub clients: Vec<Running>,
    /// The link between clients and server, if there is one.
    pub relay: Option<Running>,
    /// The tunnel server.
    pub server: Server,
    /// The sample upstream, if it was started here.
    pub upstream: Option<Running>,
    /// Certificates, runtimes, tokens.
    pub files: Files,
}

/// A program and the address that it tells: the upstream's listener, the client's admin listener.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

/// A running tunnel server.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub child: Child,
    /// Where platform clients connect, plain.
    pub public: SocketAddr,
    /// Where tunnel clients connect, over TLS.
    pub tunnel: SocketAddr,
}

impl Running {
    /// Starts one of this program's own servers, and waits until it says where it listens.
    ///
    /// # Errors
    /// It does not start; with the last lines that it wrote.
    pub async fn start_own(
        role: &str,
        arguments: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Self> {
        let child = Child::start_own(role, arguments)?;
        let find = |line: &str| line.strip_prefix("listening on http://")?.parse().ok();
        let address = child
            .wait_line("where it listens", START_LIMIT, find)
            .await?;
        Ok(Self { child, address })
    }
}

impl Stack {
    /// Starts what is planned, and waits until all tunnels are connected.
    ///
    /// # Errors
    /// A program is not there or does not start; with the last lines that it wrote.
    pub async fn start(args: &StackArgs, plan: Plan<'_>) -> anyhow::Result<Self> {
        let files = Files::new(&args.programs)?;
        let runtimes = plan.runtimes.iter().map(|runtime| (*runtime).to_owned());
        let tokens = files.create_runtimes(runtimes)?;
        let (upstream, address) = match plan.upstream {
            Some(address) => (None, address),
            None => {
                let upstream = start_upstream(&args.upstream, None).await?;
                let address = upstream.address;
                (Some(upstream), address)
            }
        };
        let server = start_server(&args.programs, &files, None).await?;
        let relay = match plan.link {
            Some(link) => Some(start_relay(server.tunnel, link).await?),
            None => None,
        };
        let dialled = relay.as_ref().map_or(server.tunnel, |relay| relay.address);
        let url = format!("{}://{address}", plan.scheme);
        let mut clients = Vec::new();
        for (runtime, token) in plan.runtimes.iter().zip(tokens) {
            let token = files.write(&format!("{runtime}.token"), &token)?;
            clients.push(start_client(&args.programs, &files, &[dialled], &token, &url).await?);
        }
        for client in &clients {
            client.child.wait_ready(client.address, START_LIMIT).await?;
        }
        Ok(Self {
            clients,
            relay,
            server,
            upstream,
            files,
        })
    }

    /// The URL of a runtime; its name leads nowhere, so connect to the server's `public`.
    pub fn url(&self, runtime: &str) -> Uri {
        let port = self.server.public.port();
        Uri::builder()
            .scheme("http")
            .authority(format!("{ACCOUNT}-{runtime}.{DOMAIN}:{port}"))
            .path_and_query("/")
            .build()
            .unwrap_or_default()
    }

    /// All its processes.
    pub fn roles(&self) -> Roles {
        let running = self.clients.iter().chain(&self.upstream).chain(&self.relay);
        let children = running.map(|running| &running.child);
        let mut roles = Roles::default();
        for child in children.chain([&self.server.child]) {
            roles.add(child.role(), child.id());
        }
        roles
    }
}

/// Starts the sample upstream, which is this program again; there if given, else on a free port.
///
/// # Errors
/// It does not start.
pub async fn start_upstream(
    args: &UpstreamArgs,
    listen: Option<SocketAddr>,
) -> anyhow::Result<Running> {
    let listen = listen.unwrap_or(FREE_PORT);
    let flags = ["upstream".to_owned(), format!("--listen={listen}")];
    Running::start_own(UPSTREAM, flags.into_iter().chain(args.flags())).await
}

/// Starts a relay to `to`, which is this program again.
///
/// # Errors
/// It does not start.
pub(crate) async fn start_relay(to: SocketAddr, link: Link) -> anyhow::Result<Running> {
    let mut flags = vec![
        "relay".to_owned(),
        format!("--to={to}"),
        format!("--delay={}", humantime::format_duration(link.delay)),
    ];
    if let Some(rate) = link.rate {
        flags.push(format!("--rate={}bit", rate.bits()));
    }
    Running::start_own(RELAY, flags).await
}

/// Starts a tunnel server; on `tunnel` if given, else on a free port.
///
/// # Errors
/// It is not there or does not start.
pub async fn start_server(
    args: &ProgramArgs,
    files: &Files,
    tunnel: Option<SocketAddr>,
) -> anyhow::Result<Server> {
    let free = FREE_PORT.to_string();
    let tunnel = tunnel.unwrap_or(FREE_PORT).to_string();
    let mut command = Command::new(program(args, "tunnel-server")?);
    command.args(["run", "--log-format", "json"]);
    command.args(["--domain", DOMAIN, "--tunnel-listen", &tunnel]);
    command.args(["--public-listen", &free, "--admin-listen", &free]);
    command.args(["--shards", &args.shards.to_string()]);
    // All the load comes from one address, and goes through one session.
    for flag in [
        "--max-connections-per-address",
        "--max-tunnel-connections-per-address",
    ] {
        default_flag(&mut command, &args.server_flags, flag, "50000");
    }
    default_flag(&mut command, &args.server_flags, "--max-exchanges", "4096");
    command.arg("--tls-cert").arg(files.path("server.pem"));
    command.arg("--tls-key").arg(files.path("server.key"));
    command.arg("--runtimes").arg(files.path("runtimes.toml"));
    command.args(&args.server_flags);
    let child = Child::start(TUNNEL_SERVER, command)?;
    let tunnel = child.wait_listening("tunnel", START_LIMIT).await?;
    let public = child.wait_listening("public", START_LIMIT).await?;
    Ok(Server {
        child,
        public,
        tunnel,
    })
}

/// Adds a flag that the user has not given.
fn default_flag(command: &mut Command, given: &[String], flag: &str, value: &str) {
    let is_it = |given: &String| given.split('=').next() == Some(flag);
    if !given.iter().any(is_it) {
        command.args([flag, value]);
    }
}

/// Starts a tunnel client of these servers, which may still be dialling: [`Child::wait_ready`] waits for it.
///
/// # Errors
/// It is not there or does not start.
pub async fn start_client(
    args: &ProgramArgs,
    files: &Files,
    servers: &[SocketAddr],
    token: &Path,
    upstream: &str,
) -> anyhow::Result<Running> {
    let mut command = Command::new(program(args, "tunnel-client")?);
    command.args(["run", "--log-format", "json"]);
    command.args(["--admin-listen", "127.0.0.1:0"]);
    for server in servers {
        command.args(["--server", &format!("wss://{server}")]);
    }
    command.args(["--upstream", upstream]);
    command.arg("--token-file").arg(token);
    command.arg("--ca-file").arg(files.path("server.pem"));
    command.args(&args.client_flags);
    let child = Child::start(TUNNEL_CLIENT, command)?;
    let address = child.wait_listening("admin", START_LIMIT).await?;
    Ok(Running { child, address })
}

/// The path of one of the programs of the tunnel.
///
/// # Errors
/// It is not there; says how to build it.
pub fn program(args: &ProgramArgs, name: &str) -> anyhow::Result<PathBuf> {
    let directory = match &args.directory {
        Some(directory) => directory.clone(),
        None => {
            let own = env::current_exe().context("cannot find this program's own file")?;
            own.parent().map(Path::to_owned).unwrap_or_default()
        }
    };
    let path = directory.join(name);
    ensure!(
        path.is_file(),
        "there is no {}: run `cargo build --release` in the project, or name the directory \
             with --programs",
        path.display()
    );
    Ok(path)
}

/// What the programs of a tunnel are started with: a certificate, runtimes, tokens. The directory goes when this does.
#[derive(Debug)]
pub struct Files {
    directory: TempDir,
}

impl Files {
    /// Makes a certificate for `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    /// The server's program is not there, or the directory cannot be written.
    pub fn new(args: &ProgramArgs) -> anyhow::Result<Self> {
        // What cannot be started is said before anything else is.
        program(args, "tunnel-server")?;
        let directory = TempDir::with_prefix("loadtest-").context("cannot make a directory")?;
        make_certificate(directory.path()).context("cannot make a certificate")?;
        Ok(Self { directory })
    }

    /// A file of this name. The certificate, which is its own authority, is `server.pem`, its key `server.key`; the
    /// runtimes with the hashes of their tokens are in `runtimes.toml`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the runtimes file: these runtimes, with a token each. Returns the tokens in the order of the names; they
    /// are good only for a server that reads this file.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn create_runtimes(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Vec<String>> {
        let mut file = String::new();
        let mut tokens = Vec::new();
        for name in names {
            let id = format!("{:016x}", getrandom::u64()?);
            // The server wants 43 letters or digits. What lives for minutes needs no more chance than this.
            let token = format!("tnlrt_{id}_{:043x}", getrandom::u64()?);
            file += &runtime(&name, &id, &token);
            tokens.push(token);
        }
        self.write("runtimes.toml", &file)?;
        Ok(tokens)
    }

    /// Writes a file of this name, and returns its path.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let file = self.path(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

/// Makes a certificate for `localhost` and `127.0.0.1` that is its own authority, `server.pem`, and its key,
/// `server.key`.
pub(crate) fn make_certificate(directory: &Path) -> anyhow::Result<()> {
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names)?;
    fs::write(directory.join("server.pem"), made.cert.pem())?;
    let key = made.signing_key.serialize_pem();
    Ok(fs::write(directory.join("server.key"), key)?)
}

/// A runtime in the form that the tunnel server reads.
fn runtime(name: &str, id: &str, token: &str) -> String {
    let sum = Sha256::digest(token);
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "[[runtime]]\naccount = \"{ACCOUNT}\"\nname = \"{name}\"\n\
         [[runtime.token]]\nid = \"{id}\"\nsha256 = \"{sum}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_has_the_servers_form_and_the_sum_of_its_token() {
        // The sum of a known text, so that it is SHA-256 of the whole token and in hexadecimal.
        let expected = "[[runtime]]\naccount = \"load\"\nname = \"r7\"\n[[runtime.token]]\n\
         id = \"0123456789abcdef\"\nsha256 = \
         \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"\n";
        assert_eq!(runtime("r7", "0123456789abcdef", "test"), expected);
    }
}
