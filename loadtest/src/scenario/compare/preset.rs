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

use crate::{
    report::usage::UPSTREAM,
    stack::{child::Child, files},
};

const START_LIMIT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Attempts to start, since another program can take a free port first.
const ATTEMPTS: usize = 3;

/// Where the first process listens for requests; an address like those of [`Preset::addresses`].
const LISTEN: &str = "listen";

/// Values for the names in templates. An address `a` has its parts as `a.ip` and `a.port` as well.
type Values = BTreeMap<String, String>;

/// A set of programs.
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The program that has to be installed; `None` for subcommands of `loadtest`.
    pub(super) program: Option<&'static str>,
    /// Names of the addresses between the processes.
    addresses: &'static [&'static str],
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
    /// None: the sign of the next process covers it, or the first right answer does.
    AtOnce,
}

/// All that can be compared, in the order of the tables.
pub(super) const PRESETS: [&Preset; 5] = [&HOP, &NGINX, &ENVOY, &RATHOLE, &WSTUNNEL];

pub(super) const HOP: Preset = Preset {
    name: "hop",
    about: "one plain hyper proxy on one thread, no TLS, no checks",
    program: None,
    addresses: &[],
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
    processes: &[
        Process {
            role: "second nginx",
            arguments: NGINX_ARGUMENTS,
            config: include_str!("presets/nginx-second.conf"),
            ready: NGINX_READY,
        },
        Process {
            role: "first nginx",
            arguments: NGINX_ARGUMENTS,
            config: include_str!("presets/nginx-first.conf"),
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
    processes: &[Process {
        role: UPSTREAM,
        arguments: NGINX_ARGUMENTS,
        config: include_str!("presets/nginx-upstream.conf"),
        ready: NGINX_READY,
    }],
};

const ENVOY: Preset = Preset {
    name: "envoy",
    about: "reverse tunnel between two Envoys of one worker each, HTTP/2 in TLS 1.3",
    program: Some("envoy"),
    addresses: &["tunnel"],
    processes: &[
        Process {
            role: "envoy server",
            arguments: ENVOY_ARGUMENTS,
            config: include_str!("presets/envoy-server.yaml"),
            ready: Ready::Accepts("tunnel"),
        },
        Process {
            role: "envoy client",
            arguments: ENVOY_ARGUMENTS,
            config: include_str!("presets/envoy-client.yaml"),
            ready: Ready::AtOnce,
        },
    ],
};

const RATHOLE: Preset = Preset {
    name: "rathole",
    about: "server and client with the Noise protocol between; forwards bytes only",
    program: Some("rathole"),
    addresses: &["control"],
    processes: &[
        Process {
            role: "rathole server",
            arguments: &["--server", "@config@"],
            config: include_str!("presets/rathole-server.toml"),
            ready: Ready::AtOnce,
        },
        Process {
            role: "rathole client",
            arguments: &["--client", "@config@"],
            config: include_str!("presets/rathole-client.toml"),
            ready: Ready::Accepts(LISTEN),
        },
    ],
};

const WSTUNNEL: Preset = Preset {
    name: "wstunnel",
    about: "server and client, WebSocket in TLS 1.3 between; forwards bytes only",
    program: Some("wstunnel"),
    addresses: &["tunnel"],
    processes: &[
        Process {
            role: "wstunnel server",
            arguments: &["--nb-worker-threads=1", "server", "wss://@tunnel@"],
            config: "",
            ready: Ready::Accepts("tunnel"),
        },
        Process {
            role: "wstunnel client",
            arguments: &[
                "--nb-worker-threads=1",
                "client",
                "--remote-to-local=tcp://@listen@:@upstream@",
                "wss://@tunnel@",
            ],
            config: "",
            ready: Ready::Accepts(LISTEN),
        },
    ],
};

const ENVOY_ARGUMENTS: &[&str] = &[
    "--config-path",
    "@config@",
    "--concurrency",
    "1",
    "--disable-hot-restart",
    "--log-level",
    "error",
];
const NGINX_ARGUMENTS: &[&str] = &["-p", "@directory@", "-c", "@config@"];
const NGINX_READY: Ready = Ready::Writes("using the \"");

/// The configuration that all nginx processes share; `@server@` is the part of one process.
const NGINX_FRAME: &str = include_str!("presets/nginx.conf");

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

    /// Starts all processes in front of `upstream`, the first of them at `listen` or at any free port. In their
    /// directory are a certificate and files of these sizes.
    pub(super) async fn start(
        &self,
        upstream: SocketAddr,
        listen: Option<SocketAddr>,
        sizes: &[u64],
    ) -> anyhow::Result<Programs> {
        let mut attempts = 1;
        loop {
            let directory = TempDir::with_prefix(format!("loadtest-{}-", self.name));
            let directory = directory.context("cannot make a directory")?;
            let path = directory.path();
            files::make_certificate(path).context("cannot make a certificate")?;
            make_content(path, sizes)?;
            let address = listen.map_or_else(free_address, Ok)?;
            let mut values = Values::new();
            values.insert("directory".to_owned(), path.display().to_string());
            insert(&mut values, "upstream", upstream);
            insert(&mut values, LISTEN, address);
            for name in self.addresses {
                insert(&mut values, name, free_address()?);
            }
            match self.start_all(path, &values).await {
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
            // Envoy takes the format from the suffix, which the other programs ignore.
            let config = directory.join(format!("{number}.yaml"));
            let mut values = values.clone();
            values.insert("config".to_owned(), config.display().to_string());
            let mut text = filled(process.config, &values);
            if self.program == Some("nginx") {
                values.insert("server".to_owned(), text);
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
        let address = values.get(*name).map_or("", String::as_str);
        while TcpStream::connect(address).await.is_err() {
            if child.is_gone() || Instant::now() >= until {
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
    error.to_string().contains("Address already in use")
}

fn insert(values: &mut Values, name: &str, address: SocketAddr) {
    values.insert(name.to_owned(), address.to_string());
    values.insert(format!("{name}.ip"), address.ip().to_string());
    values.insert(format!("{name}.port"), address.port().to_string());
}

fn filled(template: &str, values: &Values) -> String {
    let fill =
        |text: String, (name, value): (&String, &String)| text.replace(&format!("@{name}@"), value);
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

/// Files of zeros of these sizes, under their size. nginx may read them as another user.
fn make_content(directory: &Path, sizes: &[u64]) -> anyhow::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let files = directory.join("bytes");
    fs::create_dir(&files)?;
    for size in sizes {
        fs::File::create(files.join(size.to_string()))?.set_len(*size)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_a_template_has_a_value() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4711));
        for preset in PRESETS.into_iter().chain([&NGINX_UPSTREAM]) {
            let mut values = Values::new();
            for name in ["directory", "config"] {
                values.insert(name.to_owned(), name.to_uppercase());
            }
            let names = ["upstream", LISTEN].iter().chain(preset.addresses);
            names.for_each(|name| insert(&mut values, name, address));
            for process in preset.processes {
                for text in process.arguments.iter().chain([&process.config]) {
                    let text = filled(text, &values);
                    // What else stands between two of these signs has more than letters and dots.
                    let is_name = |part: &str| {
                        part.bytes()
                            .all(|byte| byte.is_ascii_lowercase() || byte == b'.')
                    };
                    assert!(!text.split('@').skip(1).any(is_name), "{text}");
                }
            }
        }
    }

    #[test]
    fn an_address_has_parts() {
        let mut values = Values::new();
        insert(&mut values, LISTEN, ([127, 0, 0, 1], 4711).into());
        let text = filled("@listen@ is @listen.ip@ and @listen.port@", &values);
        assert_eq!(text, "127.0.0.1:4711 is 127.0.0.1 and 4711");
    }
}
