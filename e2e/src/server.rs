//! A tunnel server as a child process, started on free ports.
//!
//! Its addresses come from its own log: a line `listening` for each listener, with the listener's
//! name and address as fields.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use command_fds::{CommandFdExt, FdMapping};

use http::{Request, header, request::Builder};
use http_body_util::{BodyExt, Full};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tunnel_ops::inherited;

use crate::{
    ca::{Ca, Certificate},
    deadline::{SOON, eventually},
    entry::Entry,
    platform::{Answer, Body, PlatformClient, empty},
    program::{Ended, OutputLine, Program, Signal, built, run},
    secrets,
};

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The domain under which runtimes have their hosts.
    pub domain: String,
    /// Whether the tunnel listener has a certificate in files.
    pub tunnel_tls: bool,
    /// Whether the public listener has one.
    pub public_tls: bool,
    /// Flags beside those that are always given.
    pub flags: Vec<String>,
    /// Where the tunnel listener is to be, for a server that returns; else a free port.
    pub tunnel_listen: Option<SocketAddr>,
    /// Where the public listener is to be; else a free port.
    pub public_listen: Option<SocketAddr>,
    /// Sockets that it inherits, as from systemd.
    pub sockets: Vec<Arc<TcpListener>>,
    /// The start of the command line, such as a program that runs it; may be empty.
    pub before: Vec<String>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            domain: "tunnels.localhost".to_owned(),
            tunnel_tls: true,
            public_tls: false,
            flags: Vec::new(),
            tunnel_listen: None,
            public_listen: None,
            sockets: Vec::new(),
            before: Vec::new(),
        }
    }
}

/// A running tunnel server.
#[derive(Debug)]
pub struct Server {
    program: Program,
    tunnel: SocketAddr,
    public: SocketAddr,
    admin: SocketAddr,
    successors: Vec<Process>,
}

/// A process that a server has started. Killed when this is dropped.
#[derive(Debug)]
pub struct Process(u32);

impl Process {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.0
    }

    /// Sends it a signal; one that has ended is no matter.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        let _ = kill_process(id.unwrap(), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The files a server needs: certificate of the tunnel listener, and the runtimes.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// For `localhost` and `127.0.0.1`.
    pub tunnel_certificate: Certificate,
    /// For the domain and what is below it.
    pub public_certificate: Certificate,
    /// The runtimes and their tokens' hashes.
    pub runtimes: PathBuf,
    directory: PathBuf,
}

impl ServerFiles {
    /// Makes the certificates in `directory`, the tunnel listener's for these `names` too. The runtimes file is made with
    /// the first token.
    pub fn new(directory: &Path, ca: &Ca, domain: &str, names: &[String]) -> Self {
        let all = format!("*.{domain}");
        let mut tunnel_names = vec!["localhost", "127.0.0.1"];
        tunnel_names.extend(names.iter().map(String::as_str));
        Self {
            tunnel_certificate: ca.issue("tunnel", &tunnel_names),
            public_certificate: ca.issue("public", &[domain, &all]),
            runtimes: directory.join("runtimes.toml"),
            directory: directory.to_owned(),
        }
    }

    /// Adds a runtime by `tunnel-server token create`, and returns its token's file.
    ///
    /// # Panics
    /// When the program refuses.
    pub fn create_token(&self, account: &str, runtime: &str) -> PathBuf {
        let token = self.token_command("create", account, runtime, &[]);
        let name = format!("a token of {account}-{runtime}");
        secrets::keep(&name, std::str::from_utf8(&token).unwrap());
        // A runtime may have several tokens: the first has the plain name.
        let names = (1..).map(|number| match number {
            1 => format!("{account}-{runtime}.token"),
            _ => format!("{account}-{runtime}-{number}.token"),
        });
        let mut paths = names.map(|name| self.directory.join(name));
        let path = paths.find(|path| !path.exists()).unwrap();
        fs::write(&path, token).unwrap();
        path
    }

    /// Revokes a token of a runtime, or all of them, by `tunnel-server token revoke`.
    ///
    /// # Panics
    /// When the program refuses.
    pub fn revoke_token(&self, account: &str, runtime: &str, id: Option<&str>) {
        let id = id.map(|id| ["--id", id]);
        let flags = id.as_ref().map_or(&[][..], |flags| &flags[..]);
        self.token_command("revoke", account, runtime, flags);
    }

    fn token_command(&self, verb: &str, account: &str, runtime: &str, flags: &[&str]) -> Vec<u8> {
        let mut command = Command::new(built("tunnel-server"));
        command.args(["token", verb, "--account", account, "--runtime", runtime]);
        command.args(flags).arg("--runtimes").arg(&self.runtimes);
        let output = command.output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {complaint}");
        secrets::assert_hidden("tunnel-server token", &complaint);
        let runtimes = fs::read_to_string(&self.runtimes).unwrap();
        secrets::assert_hidden("the runtimes file", &runtimes);
        output.stdout
    }
}

impl Server {
    /// Starts a server and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start(files: &ServerFiles, options: &ServerOptions) -> Self {
        let program = Program::start("tunnel-server", &mut Self::command(files, options));
        let tunnel = wait_listening(&program, "tunnel").await;
        let public = wait_listening(&program, "public").await;
        let admin = wait_listening(&program, "admin").await;
        Self {
            program,
            tunnel,
            public,
            admin,
            successors: Vec::new(),
        }
    }

    /// The command that starts a server.
    pub fn command(files: &ServerFiles, options: &ServerOptions) -> Command {
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut command = match &options.before[..] {
            [] => Command::new(built("tunnel-server")),
            [first, more @ ..] => {
                let mut command = Command::new(first);
                command.args(more).arg(built("tunnel-server"));
                command
            }
        };
        command.args(["run", "--log-format", "json", "--domain", &options.domain]);
        command.args([
            "--tunnel-listen",
            &options.tunnel_listen.unwrap_or(free).to_string(),
        ]);
        command.args([
            "--public-listen",
            &options.public_listen.unwrap_or(free).to_string(),
            "--admin-listen",
            &free.to_string(),
        ]);
        if options.tunnel_tls {
            command
                .arg("--tls-cert")
                .arg(&files.tunnel_certificate.certificate);
            command.arg("--tls-key").arg(&files.tunnel_certificate.key);
        }
        if options.public_tls {
            command
                .arg("--public-tls-cert")
                .arg(&files.public_certificate.certificate);
            command
                .arg("--public-tls-key")
                .arg(&files.public_certificate.key);
        }
        command
            .arg("--runtimes")
            .arg(&files.runtimes)
            .args(&options.flags);
        pass(&options.sockets, &mut command);
        command
    }

    /// Has a new process take over by `tunnel-server upgrade`. Returns what the command gives. The new process writes to the
    /// same outputs as the old one, and is ended when the server is dropped.
    pub async fn upgrade(&mut self, admin_token: &Path) -> Ended {
        let mut command = Command::new(built("tunnel-server"));
        command.args(["upgrade", "--admin", &format!("http://{}", self.admin)]);
        command.arg("--admin-token-file").arg(admin_token);
        let ended = run("tunnel-server upgrade", command, SOON).await;
        self.find_successor().await;
        ended
    }

    /// Takes note of the process that answers now, so that it is ended when the server is dropped.
    pub async fn find_successor(&mut self) {
        let status = self.admin().get("/api/v1/status").await;
        let status: Value = serde_json::from_str(status.text()).unwrap();
        let id = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
        if id != self.program.id() {
            self.successors.push(Process(id));
        }
    }

    /// The process that has taken over last.
    ///
    /// # Panics
    /// When there is none.
    pub fn successor(&self) -> &Process {
        self.successors.last().expect("an upgrade")
    }

    /// The process.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The process, to end it.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Where tunnel clients connect to.
    pub fn tunnel_address(&self) -> SocketAddr {
        self.tunnel
    }

    /// Where platform clients connect to.
    pub fn public_address(&self) -> SocketAddr {
        self.public
    }

    /// Metrics and health.
    pub fn admin(&self) -> Admin {
        Admin(self.admin)
    }
}

/// The admin listener of either program.
#[derive(Clone, Copy, Debug)]
pub struct Admin(pub SocketAddr);

impl Admin {
    /// The status of `path`.
    pub async fn status(&self, path: &str) -> u16 {
        self.client().await.get(path).await.status.as_u16()
    }

    /// Waits until `/readyz` says that it is, or is not, ready.
    pub async fn wait_ready(&self, ready: bool) {
        let what = if ready {
            "to be ready"
        } else {
            "to be not ready"
        };
        let ask = async || ((self.status("/readyz").await == 200) == ready).then_some(());
        eventually(SOON, &format!("{} {what}", self.0), ask).await;
    }

    /// The content of `path`.
    pub async fn get(&self, path: &str) -> Answer {
        self.get_as(path, None).await
    }

    /// The content of `path`, requested with this bearer token.
    pub async fn get_as(&self, path: &str, token: Option<&str>) -> Answer {
        let request = Self::request(Request::get(path), token);
        self.ask(request.body(empty()).unwrap()).await
    }

    /// Sends a POST without content, with this bearer token.
    pub async fn post(&self, path: &str, token: Option<&str>) -> Answer {
        self.post_with(path, token, "").await
    }

    /// Sends a POST with content, with this bearer token.
    pub async fn post_with(&self, path: &str, token: Option<&str>, content: &str) -> Answer {
        let request = Self::request(Request::post(path), token);
        let content = Full::from(content.to_owned()).boxed_unsync();
        self.ask(request.body(content).unwrap()).await
    }

    fn request(request: Builder, token: Option<&str>) -> Builder {
        match token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    /// Sends a request and returns the response, after a check that it shows no secret.
    async fn ask(&self, request: Request<Body>) -> Answer {
        let target = request.uri().to_string();
        // Boxed, since tests ask again and again in futures of their own.
        let answer = Box::pin(async { self.client().await.ask(request).await }).await;
        secrets::assert_hidden(&target, &format!("{:?}", answer.headers));
        secrets::assert_hidden(&target, &String::from_utf8_lossy(&answer.body));
        answer
    }

    /// Waits until a metric's series with these `labels` have a sum that `is_wanted`.
    pub async fn wait_metric(
        &self,
        name: &str,
        labels: &[&str],
        is_wanted: impl Fn(f64) -> bool,
    ) -> f64 {
        let what = format!("{name} {labels:?} at {}", self.0);
        eventually(SOON, &what, async || {
            let value = self.metric(name, labels).await.unwrap_or_default();
            is_wanted(value).then_some(value)
        })
        .await
    }

    /// The metrics in the text format.
    pub async fn metrics(&self) -> String {
        self.get("/metrics").await.text().to_owned()
    }

    /// The sum of a metric's series whose line contains each of `labels`.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let metrics = self.metrics().await;
        let values = metrics
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        values.reduce(|sum, value| sum + value)
    }

    async fn client(&self) -> PlatformClient {
        PlatformClient::http1(&Entry::direct(self.0)).await
    }
}

/// Has the program inherit sockets.
fn pass(sockets: &[Arc<TcpListener>], command: &mut Command) {
    if sockets.is_empty() {
        return;
    }
    inherited::announce(command, sockets.iter().map(|_| "tunnel-server.socket"));
    let mappings = sockets.iter().zip(inherited::FIRST_DESCRIPTOR..);
    let mappings = mappings.map(|(socket, child_fd)| FdMapping {
        parent_fd: socket.try_clone().unwrap().into(),
        child_fd,
    });
    command.fd_mappings(mappings.collect()).unwrap();
}

/// Waits for the line in which a program says where its `listener` is.
pub(crate) async fn wait_listening(program: &Program, listener: &str) -> SocketAddr {
    let what = format!("a line that says where the {listener} listener is");
    program
        .log()
        .wait_for(&what, SOON, |line| listening(line, listener))
        .await
}

fn listening(line: &OutputLine, listener: &str) -> Option<SocketAddr> {
    let event: Value = serde_json::from_str(line.text()).ok()?;
    // Fields stand beside the message, either in an object of their own or at the top.
    let fields = event.get("fields").unwrap_or(&event);
    let is_it = fields.get("message")?.as_str()?.contains("listening")
        && fields.get("listener")?.as_str()? == listener;
    if is_it {
        fields.get("address")?.as_str()?.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_listener_in_a_line_of_either_form() {
        let address = Some("127.0.0.1:9".parse().unwrap());
        for line in [
            r#"{"level":"INFO","fields":{"message":"listening","listener":"admin","address":"127.0.0.1:9"}}"#,
            r#"{"level":"INFO","message":"listening","listener":"admin","address":"127.0.0.1:9"}"#,
        ] {
            let line = OutputLine::Err(line.to_owned());
            assert_eq!(listening(&line, "admin"), address);
            assert_eq!(listening(&line, "public"), None);
        }
        assert_eq!(
            listening(&OutputLine::Out("listening".to_owned()), "admin"),
            None
        );
    }
}
