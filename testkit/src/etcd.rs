//! A real etcd: one member or several, each a child process on free ports of loopback.
//!
//! The members write no file through to the disk, so that a busy machine does not slow them; everything else is etcd's
//! default. `etcdctl` is the oracle of what a client of ours has done. Both are those of `PATH`, or of the directory that
//! `E2E_ETCD` names, such as the one of `e2e/build-etcd`.

use std::{
    env, fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::{
    ca::CertifiedKey,
    deadline::SOON,
    program::{Program, Signal, run},
};

/// How often other ports are tried when somebody else was faster.
const ATTEMPTS: usize = 20;

/// Time for a cluster to have a leader.
const READY: Duration = Duration::from_secs(30);

/// What each member writes when it answers.
const READY_LINE: &str = "ready to serve client requests";

/// Names a directory with `etcd` and `etcdctl`, instead of those of `PATH`.
const DIRECTORY: &str = "E2E_ETCD";

/// What a member is started with that its part of a restored snapshot has to know.
const OF_RESTORED: [&str; 4] = [
    "--name",
    "--data-dir",
    "--initial-advertise-peer-urls",
    "--initial-cluster",
];

/// A command of etcd's.
fn program(name: &str) -> Command {
    match env::var_os(DIRECTORY) {
        Some(directory) => Command::new(Path::new(&directory).join(name)),
        None => Command::new(name),
    }
}

/// Whether there is `etcdutl`, which version 3.5 has brought.
pub fn has_etcdutl() -> bool {
    let version = program("etcdutl").arg("version").output();
    version.is_ok_and(|output| output.status.success())
}

/// A running cluster.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    tls: Option<TlsFiles>,
    directory: TempDir,
}

#[derive(Debug)]
struct Member {
    /// `None` while it does not run.
    program: Option<Program>,
    /// Where it answers clients.
    address: SocketAddr,
    /// Where it answers other members.
    peer_address: SocketAddr,
    /// Keep its ports from other programs while it does not run: their members would answer for it.
    reserved: Vec<Socket>,
    arguments: Vec<String>,
}

/// The files of a cluster that is reached over TLS.
#[derive(Debug)]
struct TlsFiles {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Etcd {
    /// Starts so many members, and waits until each answers.
    ///
    /// # Panics
    /// When they do not answer in time, or etcd is not installed.
    pub async fn start(members: usize) -> Self {
        Self::start_with(members, None, &[]).await
    }

    /// As [`Etcd::start`], each member with these flags.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    pub async fn start_with_flags(members: usize, flags: &[&str]) -> Self {
        Self::start_with(members, None, flags).await
    }

    /// Starts one member that is reached over TLS, has this certificate, and wants one of its clients that `ca` issued.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    pub async fn start_tls(ca: &str, identity: &CertifiedKey) -> Self {
        Self::start_with(1, Some((ca, identity)), &[]).await
    }

    async fn start_with(count: usize, tls: Option<(&str, &CertifiedKey)>, flags: &[&str]) -> Self {
        for _ in 0..ATTEMPTS {
            let directory = TempDir::new().unwrap();
            let tls = tls.map(|(ca, identity)| TlsFiles::write(directory.path(), ca, identity));
            let mut etcd = Self {
                members: members(directory.path(), count, tls.as_ref()),
                tls,
                directory,
            };
            for member in &mut etcd.members {
                let flags = flags.iter().map(|flag| (*flag).to_owned());
                member.arguments.extend(flags);
            }
            for index in 0..count {
                etcd.launch(index);
            }
            if etcd.is_ready().await {
                return etcd;
            }
        }
        panic!("etcd found no free ports in {ATTEMPTS} attempts");
    }

    /// Waits until each member answers; false if one found its port taken.
    async fn is_ready(&self) -> bool {
        for member in &self.members {
            let Some(program) = &member.program else {
                return false;
            };
            if !answers(program).await {
                return false;
            }
        }
        true
    }

    /// The members' URLs.
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let members = self.members.iter();
        members
            .map(|member| format!("{scheme}://{}", member.address))
            .collect()
    }

    /// Where the members answer.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// Runs `etcdctl` with these arguments, and returns what it writes.
    ///
    /// # Panics
    /// When it fails.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        self.ctl_at(&self.urls(), arguments).await
    }

    async fn ctl_at(&self, urls: &[String], arguments: &[&str]) -> String {
        let mut command = program("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &urls.join(",")])
            .args(arguments);
        if let Some(files) = &self.tls {
            let flags = [
                ("--cacert", &files.ca),
                ("--cert", &files.certificate),
                ("--key", &files.key),
            ];
            for (flag, path) in flags {
                command.arg(flag).arg(path);
            }
        }
        let ended = run("etcdctl", command, SOON).await;
        assert_eq!(ended.code, Some(0), "etcdctl {arguments:?}: {}", ended.err);
        ended.out
    }

    /// The number of the leader among the members.
    ///
    /// # Panics
    /// When there is none.
    pub async fn leader(&self) -> usize {
        let text = self
            .ctl(&["endpoint", "status", "--write-out", "json"])
            .await;
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let is_leader = |member: &serde_json::Value| {
            let status = &member["Status"];
            status["leader"] == status["header"]["member_id"]
        };
        let leader = status
            .as_array()
            .unwrap()
            .iter()
            .find(|member| is_leader(member))
            .unwrap();
        let url = leader["Endpoint"].as_str().unwrap();
        self.urls().iter().position(|own| own == url).unwrap()
    }

    /// Ends a member as a crash would.
    pub fn kill(&mut self, member: usize) {
        self.members[member].program = None;
        self.members[member].reserve();
    }

    /// Asks a member to stop, and waits until it has ended.
    pub async fn stop(&mut self, member: usize) {
        if let Some(mut program) = self.members[member].program.take() {
            program.stop().await;
        }
        self.members[member].reserve();
    }

    /// Sends a signal to a member that runs.
    pub fn signal(&self, member: usize, signal: Signal) {
        self.members[member]
            .program
            .as_ref()
            .unwrap()
            .signal(signal);
    }

    /// Ends a member as a crash would, and removes all that it had stored.
    ///
    /// # Panics
    /// When that cannot be removed.
    pub fn wipe(&mut self, member: usize) {
        self.kill(member);
        let folder = self.directory.path().join(format!("m{member}"));
        fs::remove_dir_all(folder).unwrap();
    }

    /// Starts a member that was killed, with what it had stored, and does not wait for it: it needs others to answer.
    pub fn begin_again(&mut self, member: usize) {
        self.launch(member);
    }

    /// Starts a member that was killed, with what it had stored.
    ///
    /// # Panics
    /// When it does not answer in time, or its ports stay taken.
    pub async fn start_again(&mut self, member: usize) {
        for _ in 0..ATTEMPTS {
            self.launch(member);
            // Another program may have been given a port in the moment in which nobody had it.
            if answers(self.members[member].program.as_ref().unwrap()).await {
                return;
            }
        }
        panic!("the ports of an etcd member were taken in {ATTEMPTS} attempts");
    }

    /// Saves a snapshot of all that is stored, and returns its file, which goes when this is dropped.
    ///
    /// # Panics
    /// When etcd does not answer.
    pub async fn snapshot(&self) -> PathBuf {
        let file = self.directory.path().join("snapshot.db");
        let save = ["snapshot", "save", file.to_str().unwrap()];
        self.ctl_at(&self.urls()[..1], &save).await;
        file
    }

    /// Ends all members as a crash would, restores them from this snapshot by a command with these further flags, and waits
    /// until each answers.
    ///
    /// # Panics
    /// When the command fails, or a member does not answer in time.
    pub async fn restore(&mut self, snapshot: &Path, flags: &[&str]) {
        for member in 0..self.members.len() {
            self.wipe(member);
        }
        for member in &self.members {
            // Version 3.6 has removed it from etcdctl.
            let mut command = match has_etcdutl() {
                true => program("etcdutl"),
                false => program("etcdctl"),
            };
            command.env("ETCDCTL_API", "3");
            command.args(["snapshot", "restore"]).arg(snapshot);
            let given = member.arguments.chunks(2);
            let given = given.filter(|given| OF_RESTORED.contains(&given[0].as_str()));
            command.args(given.flatten()).args(flags);
            let ended = run("a restore of etcd", command, SOON).await;
            assert_eq!(ended.code, Some(0), "{}", ended.err);
        }
        for member in 0..self.members.len() {
            self.launch(member);
        }
        assert!(self.is_ready().await, "a port of etcd was taken");
    }

    fn launch(&mut self, member: usize) {
        let member = &mut self.members[member];
        let mut command = program("etcd");
        member.reserved.clear();
        member.program = Some(Program::start("etcd", command.args(&member.arguments)));
    }
}

impl Member {
    /// Binds its ports without listening, so that connections are refused.
    fn reserve(&mut self) {
        let bound = [self.address, self.peer_address].map(|address| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&address.into()).unwrap();
            socket
        });
        self.reserved = bound.into();
    }
}

/// Waits until a member that was started answers; false if it found one of its ports taken.
async fn answers(program: &Program) -> bool {
    let is_told = |text: &str| text.contains(READY_LINE) || text.contains("address already in use");
    let line = program.log().wait_for("etcd to answer", READY, |line| {
        is_told(line.text()).then(|| line.text().to_owned())
    });
    line.await.contains(READY_LINE)
}

impl TlsFiles {
    fn write(directory: &Path, ca: &str, identity: &CertifiedKey) -> Self {
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        Self {
            ca: write("ca.pem", ca),
            certificate: write("etcd.pem", &identity.certificate),
            key: write("etcd.key", &identity.key),
        }
    }
}

/// Members on ports that are free now.
fn members(directory: &Path, count: usize, tls: Option<&TlsFiles>) -> Vec<Member> {
    // All at once, so that no port is given twice.
    let listeners: Vec<_> = (0..2 * count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses: Vec<_> = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect();
    let (clients, peers) = addresses.split_at(count);
    let cluster = peers.iter().enumerate();
    let cluster: Vec<_> = cluster
        .map(|(index, peer)| format!("m{index}=http://{peer}"))
        .collect();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let arguments = |index: usize| {
        let (name, client, peer) = (format!("m{index}"), clients[index], peers[index]);
        let folder = directory.join(&name).display().to_string();
        let mut arguments: Vec<_> = [
            ("--name", name),
            ("--data-dir", folder),
            ("--listen-client-urls", format!("{scheme}://{client}")),
            ("--advertise-client-urls", format!("{scheme}://{client}")),
            ("--listen-peer-urls", format!("http://{peer}")),
            ("--initial-advertise-peer-urls", format!("http://{peer}")),
            ("--initial-cluster", cluster.join(",")),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        arguments.push("--unsafe-no-fsync".to_owned());
        if let Some(TlsFiles {
            ca,
            certificate,
            key,
        }) = tls
        {
            let paths = [
                ("--trusted-ca-file", ca),
                ("--cert-file", certificate),
                ("--key-file", key),
            ];
            let paths = paths
                .iter()
                .map(|(flag, path)| format!("{flag}={}", path.display()));
            arguments.extend(paths);
            arguments.push("--client-cert-auth".to_owned());
        }
        arguments
    };
    let member = |index: usize| Member {
        program: None,
        address: clients[index],
        peer_address: peers[index],
        reserved: Vec::new(),
        arguments: arguments(index),
    };
    (0..count).map(member).collect()
}
