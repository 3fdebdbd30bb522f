//! What the request routing service of a runtime finds in its cluster: App-Proxy, workflows and
//! Event Sources, each with its name and its own address, and a trap where everything else is.
//!
//! ```text
//!   app-proxy   :3017  ◀── cap-app-proxy
//!   workflows   :2746  ◀── argo-server (TLS)                          name server
//!   push        :80    ◀── push-eventsource-svc.argo.svc.cluster.local  knows all of them
//!   trap        :80    ◀── every other name
//! ```

use std::net::IpAddr;

use tempfile::TempDir;

use crate::{
    addresses::Addresses,
    ca::Ca,
    names::NameServer,
    upstream::{Seen, Upstream},
};

/// How long a name's address may be believed, in seconds.
const BELIEVED: u32 = 1;

/// Who is behind the routing service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The App-Proxy.
    AppProxy,
    /// The server of the workflows.
    Workflows,
    /// The Event Source `push` in the namespace `argo`.
    Push,
    /// Whom no request may reach.
    Trap,
}

/// The cluster.
pub struct Cluster {
    members: Vec<(Who, Upstream)>,
    names: NameServer,
    addresses: Addresses,
    ca: Ca,
    _directory: TempDir,
}

impl Cluster {
    /// Makes one. The names by which configurations know App-Proxy and workflows are given.
    ///
    /// # Errors
    /// That this machine does not allow it, and why.
    pub async fn make(app_proxy: &str, workflows: &str) -> Result<Self, String> {
        let addresses = Addresses::take(4)?;
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let names = NameServer::start().await;
        let known = [
            (app_proxy, 0),
            (workflows, 1),
            ("push-eventsource-svc.argo.svc.cluster.local", 2),
        ];
        for (name, index) in known {
            names.set(name, &[addresses.get(index)], BELIEVED);
        }
        names.set_others(&[addresses.get(3)]);
        let certificate = ca.issue("workflows", &[workflows]);
        let members = vec![
            (
                Who::AppProxy,
                Upstream::start_on(addresses.at(0, 3017)).await,
            ),
            (
                Who::Workflows,
                Upstream::start_tls_on(addresses.at(1, 2746), &certificate).await,
            ),
            (Who::Push, Upstream::start_on(addresses.at(2, 80)).await),
            (Who::Trap, Upstream::start_on(addresses.at(3, 80)).await),
        ];
        let cluster = Self {
            members,
            names,
            addresses,
            ca,
            _directory: directory,
        };
        cluster.member(Who::AppProxy).mount("/app-proxy");
        cluster.member(Who::Push).mount("/webhooks/argo/push");
        Ok(cluster)
    }

    /// One of those who are there.
    ///
    /// # Panics
    /// When it was taken away.
    pub fn member(&self, who: Who) -> &Upstream {
        let found = self.members.iter().find(|(name, _)| *name == who);
        &found.unwrap_or_else(|| panic!("{who:?} is away")).1
    }

    /// Ends one of them; its address stays, where nobody listens then.
    pub fn take_away(&mut self, who: Who) {
        self.members.retain(|(name, _)| *name != who);
    }

    /// The name server.
    pub fn names(&self) -> &NameServer {
        &self.names
    }

    /// The addresses: App-Proxy, workflows, `push` and the trap, in this order.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The address of the trap.
    pub fn trap(&self) -> IpAddr {
        self.addresses.get(3)
    }

    /// The authority that signed the workflows' certificate.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// Every request that came up to now, with who got it.
    pub fn requests(&self) -> Vec<(Who, Seen)> {
        let members = self.members.iter();
        let requests =
            members.map(|(who, member)| member.requests().into_iter().map(|seen| (*who, seen)));
        requests.flatten().collect()
    }

    /// How many requests each got up to now: a mark for [`Cluster::since`].
    pub fn mark(&self) -> Vec<usize> {
        let members = self.members.iter();
        members.map(|(_, member)| member.requests().len()).collect()
    }

    /// The requests that came after a mark, with who got them.
    pub fn since(&self, mark: &[usize]) -> Vec<(Who, Seen)> {
        let members = self.members.iter().zip(mark);
        let requests = members.map(|((who, member), before)| {
            let requests = member.requests().into_iter().skip(*before);
            requests.map(|seen| (*who, seen))
        });
        requests.flatten().collect()
    }
}
