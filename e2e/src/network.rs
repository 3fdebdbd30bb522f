//! A network of the test's own, whose router drops packets when it is told to.
//!
//! ```text
//!   this machine              router (namespace)           client (namespace)
//!   server ──── veth pair ──── forwards, or ──── veth pair ──── tunnel client
//!                              drops in silence                     │
//!   upstream ───────────────── veth pair beside it ─────────────────┘
//! ```
//!
//! It needs the right to make network namespaces (root) and the program `ip`; where either is
//! missing [`Network::make`] fails. Namespaces and what is in them go when the network goes.

use std::{
    net::IpAddr,
    process::{Command, id},
    sync::atomic::{AtomicU8, Ordering},
};

use crate::{
    client::ClientOptions,
    program::{Program, built},
};

/// Networks made by this process so far: each has addresses and names of its own.
static MADE: AtomicU8 = AtomicU8::new(0);

/// The namespaces, and the addresses in them.
#[derive(Debug)]
pub struct Network {
    /// Part of all names: at most 15 letters fit into a link's.
    tag: String,
    /// The first three numbers of all addresses (for benchmarks between networks, RFC 2544).
    prefix: String,
}

impl Network {
    /// Makes the namespaces, the links between them, and the routes.
    ///
    /// # Errors
    /// What could not be done, and what the system said.
    pub fn make() -> Result<Self, String> {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let process = u8::try_from(id() % 256).unwrap();
        let network = Self {
            tag: format!("{:x}{made:x}", id()),
            prefix: format!("198.{}.{process}", 18 + made % 2),
        };
        network.build()?;
        Ok(network)
    }

    /// Where the server can listen: reached through the router.
    pub fn server_address(&self) -> IpAddr {
        self.address(1)
    }

    /// An address of this machine that the client reaches whatever the router does.
    pub fn beside(&self) -> IpAddr {
        self.address(9)
    }

    /// Has the router drop all packets silently, or forward them again.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn drop_packets(&self, is_dropping: bool) {
        let verb = if is_dropping { "add" } else { "del" };
        for last in [1, 6] {
            let target = format!("{}/32", self.address(last));
            let router = self.router();
            run(&["-n", &router, "route", verb, "blackhole", &target]).unwrap();
        }
    }

    /// Starts a tunnel client in the client's namespace.
    pub fn start_client(&self, options: &ClientOptions) -> Program {
        let [before, more @ ..] = self.inside();
        let mut command = Command::new(before);
        command.args(more).arg(built("tunnel-client"));
        command.args(options.arguments());
        command.args(["--admin-listen", "off"]);
        Program::start("tunnel-client", &mut command)
    }

    /// What, put before a program and its arguments, starts it in the client's namespace.
    pub fn inside(&self) -> [String; 4] {
        ["ip", "netns", "exec", &self.client()].map(str::to_owned)
    }

    fn build(&self) -> Result<(), String> {
        let (router, client) = (self.router(), self.client());
        run(&["netns", "add", &router])?;
        run(&["netns", "add", &client])?;
        // Two links to the server by way of the router, and one beside it.
        self.link(("a", "", 1), ("b", &router, 2))?;
        self.link(("c", &router, 5), ("d", &client, 6))?;
        self.link(("e", "", 9), ("f", &client, 10))?;
        let through = |last| self.address(last).to_string();
        let to_client = format!("{}/30", self.address(4));
        run(&["route", "add", &to_client, "via", &through(2)])?;
        let to_server = format!("{}/30", self.address(0));
        run(&[
            "-n",
            &client,
            "route",
            "add",
            &to_server,
            "via",
            &through(5),
        ])?;
        let forward = ["sysctl", "-qw", "net.ipv4.ip_forward=1"];
        run(&[&["netns", "exec", &router], &forward[..]].concat())
    }

    /// A pair of links: each with its letter, its namespace (none for this machine's own) and the
    /// last number of its address.
    fn link(&self, one: (&str, &str, u8), other: (&str, &str, u8)) -> Result<(), String> {
        let name = |letter: &str| format!("{}{letter}", self.tag);
        let (first, second) = (name(one.0), name(other.0));
        run(&[
            "link", "add", &first, "type", "veth", "peer", "name", &second,
        ])?;
        for (letter, namespace, last) in [one, other] {
            let device = name(letter);
            let mut inside = Vec::new();
            if !namespace.is_empty() {
                run(&["link", "set", &device, "netns", namespace])?;
                inside.extend(["-n", namespace]);
            }
            let address = format!("{}/30", self.address(last));
            let steps: [&[&str]; 2] = [
                &["addr", "add", &address, "dev", &device],
                &["link", "set", &device, "up"],
            ];
            for step in steps {
                run(&[&inside[..], step].concat())?;
            }
        }
        Ok(())
    }

    fn address(&self, last: u8) -> IpAddr {
        format!("{}.{last}", self.prefix).parse().unwrap()
    }

    fn router(&self) -> String {
        format!("{}r", self.tag)
    }

    fn client(&self) -> String {
        format!("{}c", self.tag)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Links go with the namespace at either of their ends, and routes with their links.
        for namespace in [self.router(), self.client()] {
            drop(run(&["netns", "del", &namespace]));
        }
    }
}

/// Runs `ip` with these arguments.
fn run(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", arguments.join(" "), complaint.trim()))
}
