//! Sets of programs that `compare` starts, as data: the processes, their configuration, and the sign that each is ready.
//! Texts are templates: `@name@` stands for a value.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, Permissions},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{report::usage::UPSTREAM, stack::child::Child};

const START_LIMIT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Attempts to start, since another program can take a free port first.
const ATTEMPTS: usize = 3;

/// Where the first process listens for requests; an address like those of [`Preset::addresses`].
const LISTEN: &str = "listen";

/// Values for the names in templates.
pub(super) type Values = BTreeMap<&'static str, String>;

/// A set of programs.
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The program that has to be installed; `None` for subcommands of `loadtest`.
    pub(super) program: Option<&'static str>,
    /// Names of the addresses between the processes.
    addresses: &'static [&'static str],
    /// Makes files in the directory, such as certificates, and further values.
    prepare: fn(&Path, &mut Values) -> anyhow::Result<()>,
    /// In the order in which they start.
    processes: &'static [Process],
}

struct Process {
    role: &'static str,
    arguments: &'static [&'static str],
    /// The text of the file `@config@`.
    config: &'static str,
    ready: Ready,
}

/// The sign that a process is ready.
enum Ready {
    /// It writes a line that contains this text.
    Writes(&'static str),
    /// It accepts connections at the address of this name.
    Accepts(&'static str),
    /// None: the sign of the next process covers it.
    AtOnce,
}

pub(super) const HOP: Preset = Preset {
    name: "hop",
    about: "one plain hyper proxy on one thread, no TLS, no checks",
    program: None,
    addresses: &[],
    prepare: |_, _| Ok(()),
    processes: &[Process {
        role: "hop",
        arguments: &["hop", "--listen=@listen@", "--upstream=@upstream@"],
        config: "",
        ready: Ready::Writes("listening on"),
    }],
};

pub(super) const NGINX: Preset = Preset {
    name: "nginx",
    about: "two nginx of one worker each, TLS 1.3 between, 512 kept connections",
    program: Some("nginx"),
    addresses: &["inner"],
    prepare: certificate,
    processes: &[
        Process {
            role: "second nginx",
            arguments: NGINX_ARGUMENTS,
            config: "    upstream next {
        server @upstream@;
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
    }
    server {
        listen @inner@ ssl backlog=4096;
        ssl_certificate @directory@/server.pem;
        ssl_certificate_key @directory@/server.key;
        ssl_protocols TLSv1.3;
        location / { proxy_pass http://next; }
    }
",
            ready: NGINX_READY,
        },
        Process {
            role: "first nginx",
            arguments: NGINX_ARGUMENTS,
            config: "    upstream next {
        server @inner@;
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
    }
    server {
        listen @listen@ backlog=4096;
        location / {
            proxy_pass https://next;
            proxy_ssl_protocols TLSv1.3;
            proxy_ssl_session_reuse on;
        }
    }
",
            ready: NGINX_READY,
        },
    ],
};

/// An upstream that sends files; uploads go to the sample upstream.
pub(super) const NGINX_UPSTREAM: Preset = Preset {
    name: "nginx",
    about: "nginx upstream",
    program: Some("nginx"),
    addresses: &[],
    prepare: content,
    processes: &[Process {
        role: UPSTREAM,
        arguments: NGINX_ARGUMENTS,
        config: "    sendfile on;
    default_type application/octet-stream;
    server {
        listen @listen@ backlog=4096;
        location = / { return 200 \"ok\"; }
        location /bytes/ { alias @directory@/bytes/; }
        location /upload { proxy_pass http://@upstream@; }
    }
",
        ready: NGINX_READY,
    }],
};

pub(super) const RATHOLE: Preset = Preset {
    name: "rathole",
    about: "server and client with the Noise protocol between; forwards bytes only",
    program: Some("rathole"),
    addresses: &["control"],
    prepare: keys,
    processes: &[
        Process {
            role: "rathole server",
            arguments: &["--server", "@config@"],
            config: "[server]
bind_addr = \"@control@\"
default_token = \"loadtest\"
[server.transport]
type = \"noise\"
[server.transport.noise]
local_private_key = \"@private@\"
[server.services.web]
bind_addr = \"@listen@\"
",
            ready: Ready::AtOnce,
        },
        Process {
            role: "rathole client",
            arguments: &["--client", "@config@"],
            config: "[client]
remote_addr = \"@control@\"
default_token = \"loadtest\"
[client.transport]
type = \"noise\"
[client.transport.noise]
remote_public_key = \"@public@\"
[client.services.web]
local_addr = \"@upstream@\"
",
            ready: Ready::Accepts(LISTEN),
        },
    ],
};

const NGINX_ARGUMENTS: &[&str] = &["-p", "@directory@", "-c", "@config@"];
const NGINX_READY: Ready = Ready::Writes("using the \"");

/// The configuration that all nginx processes share; `@server@` is the part of one process.
const NGINX_FRAME: &str = "daemon off;
master_process off;
pid @config@.pid;
error_log stderr notice;
events { worker_connections 16384; }
http {
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    client_max_body_size 0;
    client_body_temp_path @config@.client_body;
    proxy_temp_path @config@.proxy;
    proxy_http_version 1.1;
    proxy_set_header Connection \"\";
    proxy_set_header Host $http_host;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;
@server@}
";

/// The running processes of a preset. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) address: SocketAddr,
    /// The processes with their roles.
    pub(super) children: Vec<(&'static str, Child)>,
    _directory: TempDir,
}

impl Preset {
    /// Whether its program is installed.
    pub(super) fn is_installed(&self) -> bool {
        self.program.is_none_or(|name| installed(name).is_some())
    }

    /// Starts all processes in front of `upstream`, the first of them at `listen` or at any free port.
    pub(super) async fn start(
        &self,
        upstream: SocketAddr,
        listen: Option<SocketAddr>,
        values: Values,
    ) -> anyhow::Result<Programs> {
        let mut attempts = 1;
        loop {
            let directory = TempDir::with_prefix(format!("loadtest-{}-", self.name));
            let directory = directory.context("cannot make a directory")?;
            let address = listen.map_or_else(free_address, Ok)?;
            let mut values = values.clone();
            values.insert("upstream", upstream.to_string());
            values.insert("directory", directory.path().display().to_string());
            values.insert(LISTEN, address.to_string());
            for name in self.addresses {
                values.insert(name, free_address()?.to_string());
            }
            (self.prepare)(directory.path(), &mut values)?;
            match self.start_all(directory.path(), &values).await {
                Ok(children) => {
                    return Ok(Programs {
                        address,
                        children,
                        _directory: directory,
                    });
                }
                Err(error) if attempts == ATTEMPTS || !is_taken(&error) => return Err(error),
                Err(_) => attempts += 1,
            }
        }
    }

    async fn start_all(
        &self,
        directory: &Path,
        values: &Values,
    ) -> anyhow::Result<Vec<(&'static str, Child)>> {
        let mut children: Vec<(&'static str, Child)> = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            let config = directory.join(format!("{number}.conf"));
            let mut values = values.clone();
            values.insert("config", config.display().to_string());
            let mut text = filled(process.config, &values);
            if self.program == Some("nginx") {
                values.insert("server", text);
                text = filled(NGINX_FRAME, &values);
            }
            fs::write(&config, text)?;
            let arguments = process.arguments.iter();
            let arguments = arguments.map(|argument| filled(argument, &values));
            children.push((process.role, self.child(process.role, arguments)?));
            process.ready.wait(&values, &children).await?;
        }
        Ok(children)
    }

    fn child(&self, role: &str, arguments: impl Iterator<Item = String>) -> anyhow::Result<Child> {
        let Some(name) = self.program else {
            return Child::start_own(role, arguments);
        };
        let Some(program) = installed(name) else {
            bail!("{name} is not installed");
        };
        let mut command = Command::new(program);
        command.args(arguments).env("RUST_LOG", "error");
        Child::start(role, command)
    }
}

impl Ready {
    /// Waits until the last of the children is ready.
    async fn wait(&self, values: &Values, children: &[(&str, Child)]) -> anyhow::Result<()> {
        let Some((role, child)) = children.last() else {
            return Ok(());
        };
        let name = match self {
            Self::AtOnce => return Ok(()),
            Self::Writes(text) => {
                let find = |line: &str| line.contains(text).then_some(());
                return child.wait_line("that it runs", START_LIMIT, find).await;
            }
            Self::Accepts(name) => name,
        };
        let until = Instant::now() + START_LIMIT;
        let address = values.get(name).map_or("", String::as_str);
        while TcpStream::connect(address).await.is_err() {
            if Instant::now() >= until {
                let tails: String = children.iter().map(|(_, child)| child.tail()).collect();
                bail!("{role} does not listen{tails}");
            }
            sleep(RETRY_INTERVAL).await;
        }
        Ok(())
    }
}

/// Whether a program could not start because of its address.
fn is_taken(error: &anyhow::Error) -> bool {
    let text = error.to_string();
    text.contains("bind()") || text.contains("cannot listen")
}

fn filled(template: &str, values: &Values) -> String {
    let fill =
        |text: String, (name, value): (&&str, &String)| text.replace(&format!("@{name}@"), value);
    values.iter().fold(template.to_owned(), fill)
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut found = env::split_paths(&path).chain(more);
    found.find_map(|directory| Some(directory.join(name)).filter(|file| file.is_file()))
}

fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?)
}

/// The certificate of the second nginx.
fn certificate(directory: &Path, _: &mut Values) -> anyhow::Result<()> {
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
    fs::write(directory.join("server.pem"), made.cert.pem())?;
    let key = made.signing_key.serialize_pem();
    Ok(fs::write(directory.join("server.key"), key)?)
}

/// Files of zeros of the sizes in the value `sizes`, under their size. nginx may read them as another user.
fn content(directory: &Path, values: &mut Values) -> anyhow::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let files = directory.join("bytes");
    fs::create_dir(&files)?;
    let sizes = values.remove("sizes").unwrap_or_default();
    for size in sizes.split_whitespace() {
        fs::File::create(files.join(size))?.set_len(size.parse()?)?;
    }
    Ok(())
}

/// The keys of rathole's Noise protocol.
fn keys(_: &Path, values: &mut Values) -> anyhow::Result<()> {
    let Some(program) = installed("rathole") else {
        bail!("rathole is not installed");
    };
    let output = Command::new(program).arg("--genkey").output();
    let output = output.context("cannot run rathole --genkey")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((private, public)) = parse_keys(&text) else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint = complaint.trim();
        bail!("rathole --genkey gave no keys; is it built with noise? {complaint}");
    };
    values.extend([("private", private), ("public", public)]);
    Ok(())
}

fn parse_keys(text: &str) -> Option<(String, String)> {
    let after = |name: &str| {
        let mut lines = text.lines().map(str::trim);
        lines.find(|line| line.starts_with(name))?;
        lines.find(|line| !line.is_empty()).map(str::to_owned)
    };
    Some((after("Private Key")?, after("Public Key")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_what_it_writes() {
        let text = "Private Key:\nabc=\n\nPublic Key:\ndef=\n\n";
        let keys = parse_keys(text).unwrap();
        assert_eq!((keys.0.as_str(), keys.1.as_str()), ("abc=", "def="));
        assert_eq!(parse_keys("error: not compiled\n"), None);
    }

    #[test]
    fn every_name_in_a_template_has_a_value() {
        for preset in [HOP, NGINX, NGINX_UPSTREAM, RATHOLE] {
            let given = [
                "upstream",
                "directory",
                "config",
                LISTEN,
                "private",
                "public",
            ];
            let names = given.iter().chain(preset.addresses);
            let values: Values = names.map(|name| (*name, name.to_uppercase())).collect();
            for process in preset.processes {
                for text in process.arguments.iter().chain([&process.config]) {
                    assert!(!filled(text, &values).contains('@'), "{text}");
                }
            }
        }
        let server = filled(
            RATHOLE.processes[0].config,
            &Values::from([("private", "secret".to_owned())]),
        );
        assert!(
            server.contains("local_private_key = \"secret\""),
            "{server}"
        );
    }
}
