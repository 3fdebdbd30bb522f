//! Sets of programs that `compare` starts: the processes, their configuration, and the sign that each is ready. Each is a
//! file of `presets`, whose texts are templates: `@name@` stands for a value. `@directory@` holds a certificate,
//! `@config@` is the file of the process's configuration, `@listen@` where the set takes requests, `@upstream@` where they
//! go, and each of `addresses` a free one; of an address `a` there are `@a.ip@` and `@a.port@` as well.

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

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::stack::{self, child::Child};

const START_LIMIT: Duration = Duration::from_secs(10);

/// Attempts to start, since another program can take a free port first.
const ATTEMPTS: usize = 3;

/// All that can be compared, in the order of the tables.
const PRESETS: [&str; 5] = [
    include_str!("presets/hop.toml"),
    include_str!("presets/nginx.toml"),
    include_str!("presets/envoy.toml"),
    include_str!("presets/rathole.toml"),
    include_str!("presets/wstunnel.toml"),
];
const NGINX_UPSTREAM: &str = include_str!("presets/nginx-upstream.toml");

/// The configuration that all nginx processes share; `@server@` is the part of one process.
const NGINX_FRAME: &str = include_str!("presets/nginx-frame.conf");

type Values = BTreeMap<String, String>;

/// A set of programs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Preset {
    pub(super) name: String,
    pub(super) about: String,
    /// The program that has to be installed; none for subcommands of `loadtest`.
    program: Option<String>,
    /// Names of the addresses between the processes.
    #[serde(default)]
    addresses: Vec<String>,
    /// In the order in which they start.
    #[serde(rename = "process")]
    processes: Vec<Process>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    role: String,
    arguments: Vec<String>,
    /// The text of the file `@config@`.
    #[serde(default)]
    config: String,
    /// None: the sign of the next process covers it, or the first right answer does.
    ready: Option<Ready>,
}

/// The sign that a process is ready.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Ready {
    /// It writes a line that contains this text.
    Writes(String),
    /// It accepts connections at the address of this name.
    Accepts(String),
}

/// The running processes of a preset. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) address: SocketAddr,
    pub(super) children: Vec<Child>,
    _directory: TempDir,
}

impl Preset {
    /// All that can be compared.
    ///
    /// # Errors
    /// Never: a test reads them.
    pub(super) fn all() -> anyhow::Result<Vec<Self>> {
        let presets = PRESETS.into_iter().map(toml::from_str);
        Ok(presets.collect::<Result<_, _>>()?)
    }

    /// The nginx that answers behind all targets.
    ///
    /// # Errors
    /// Never: a test reads it.
    pub(super) fn nginx_upstream() -> anyhow::Result<Self> {
        Ok(toml::from_str(NGINX_UPSTREAM)?)
    }

    /// Whether its program is installed.
    pub(super) fn is_installed(&self) -> bool {
        let name = self.program.as_deref();
        name.is_none_or(|name| installed(name).is_some())
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
            match self.start_once(upstream, listen, sizes).await {
                Err(error) if attempts < ATTEMPTS && is_taken(&error) => attempts += 1,
                started => return started,
            }
        }
    }

    async fn start_once(
        &self,
        upstream: SocketAddr,
        listen: Option<SocketAddr>,
        sizes: &[u64],
    ) -> anyhow::Result<Programs> {
        let directory = TempDir::with_prefix(format!("loadtest-{}-", self.name));
        let directory = directory.context("cannot make a directory")?;
        let path = directory.path();
        stack::make_certificate(path).context("cannot make a certificate")?;
        make_content(path, sizes)?;
        let address = listen.map_or_else(free_address, Ok)?;
        let mut values = Values::new();
        values.insert("directory".to_owned(), path.display().to_string());
        insert(&mut values, "upstream", upstream);
        insert(&mut values, "listen", address);
        for name in &self.addresses {
            insert(&mut values, name, free_address()?);
        }
        let mut children = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            // Envoy takes the format from the suffix, which the other programs ignore.
            let config = path.join(format!("{number}.yaml"));
            let child = self.child(process, &config, &mut values)?;
            let is_ready = process.wait(&child, &values).await;
            let earlier = || children.iter().map(Child::tail).collect::<String>();
            is_ready.map_err(|error| anyhow!("{error}{}", earlier()))?;
            children.push(child);
        }
        Ok(Programs {
            address,
            children,
            _directory: directory,
        })
    }

    /// Writes the configuration of a process, and starts it.
    fn child(
        &self,
        process: &Process,
        config: &Path,
        values: &mut Values,
    ) -> anyhow::Result<Child> {
        values.insert("config".to_owned(), config.display().to_string());
        let mut text = filled(&process.config, values);
        if self.program.as_deref() == Some("nginx") {
            values.insert("server".to_owned(), text);
            text = filled(NGINX_FRAME, values);
        }
        fs::write(config, text)?;
        let arguments = process.arguments.iter();
        let arguments = arguments.map(|argument| filled(argument, values));
        let Some(name) = &self.program else {
            return Child::start_own(&process.role, arguments);
        };
        let program = installed(name).with_context(|| format!("{name} is not installed"))?;
        let mut command = Command::new(program);
        command.args(arguments).env("RUST_LOG", "error");
        Child::start(&process.role, command)
    }
}

impl Process {
    /// Waits until it is ready.
    async fn wait(&self, child: &Child, values: &Values) -> anyhow::Result<()> {
        match &self.ready {
            None => Ok(()),
            Some(Ready::Writes(text)) => {
                let find = |line: &str| line.contains(text).then_some(());
                child.wait_line("that it runs", START_LIMIT, find).await
            }
            Some(Ready::Accepts(name)) => {
                let address = values.get(name).map_or("", String::as_str);
                let accepts = async || TcpStream::connect(address).await.is_ok();
                child
                    .wait_until("does not listen", START_LIMIT, accepts)
                    .await
            }
        }
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
        let presets = Preset::all().unwrap().into_iter();
        for preset in presets.chain([Preset::nginx_upstream().unwrap()]) {
            let mut values = Values::new();
            for name in ["directory", "config"] {
                values.insert(name.to_owned(), name.to_uppercase());
            }
            let names = ["upstream".to_owned(), "listen".to_owned()].into_iter();
            names
                .chain(preset.addresses)
                .for_each(|name| insert(&mut values, &name, address));
            for process in preset.processes {
                if let Some(Ready::Accepts(name)) = &process.ready {
                    assert!(values.contains_key(name), "{name}");
                }
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
        insert(&mut values, "listen", ([127, 0, 0, 1], 4711).into());
        let text = filled("@listen@ is @listen.ip@ and @listen.port@", &values);
        assert_eq!(text, "127.0.0.1:4711 is 127.0.0.1 and 4711");
    }
}
