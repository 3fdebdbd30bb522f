//! Addresses of this machine that are not loopback, for upstreams that a tunnel client may only
//! reach by name.
//!
//! They belong to the loopback device, so that nothing of theirs ever leaves the machine, and go
//! when the handle goes. A test may listen on any port of them. They need root and the
//! program `ip`; without either [`Addresses::take`] fails.

use std::{
    net::{IpAddr, SocketAddr},
    process::{Command, id},
};

/// How many sets one process can have at once.
const SETS: u8 = 23;

/// How many addresses a set can have.
const MOST: u8 = 8;

/// A set of addresses.
#[derive(Debug)]
pub struct Addresses {
    all: Vec<IpAddr>,
}

impl Addresses {
    /// Takes `count` addresses.
    ///
    /// # Errors
    /// What could not be done, and what the system said.
    ///
    /// # Panics
    /// When more are wanted than a set can have.
    pub fn take(count: u8) -> Result<Self, String> {
        assert!(count <= MOST, "a set has at most {MOST} addresses");
        let process = id() % 256;
        let mut complaint = String::new();
        for set in 0..SETS {
            // For benchmarks between networks (RFC 2544), as those of `network`, which are lower.
            let address = |number| IpAddr::from([198, 18, process as u8, 64 + set * MOST + number]);
            let mut taken = Self { all: Vec::new() };
            match (0..count).try_for_each(|number| taken.add(address(number))) {
                Ok(()) => return Ok(taken),
                Err(why) => complaint = why,
            }
            // The error of addresses that are in use depends on the kernel's version.
            let is_taken =
                ["File exists", "already assigned"].map(|words| complaint.contains(words));
            if !is_taken.contains(&true) {
                break;
            }
        }
        Err(complaint)
    }

    /// One of them.
    pub fn get(&self, index: usize) -> IpAddr {
        self.all[index]
    }

    /// A place to listen at on one of them.
    pub fn at(&self, index: usize, port: u16) -> SocketAddr {
        (self.all[index], port).into()
    }

    fn add(&mut self, address: IpAddr) -> Result<(), String> {
        change("add", address)?;
        self.all.push(address);
        Ok(())
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        for address in &self.all {
            drop(change("del", *address));
        }
    }
}

fn change(verb: &str, address: IpAddr) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(["addr", verb, &format!("{address}/32"), "dev", "lo"]);
    let output = command.output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip addr {verb} {address}: {}", complaint.trim()))
}
