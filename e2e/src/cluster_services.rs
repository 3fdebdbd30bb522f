//! The services of a cluster to which a runtime's routes lead: App-Proxy, workflows and Event Sources, each with its name
//! and its own address; and a trap, to which all other names resolve.
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
    upstream::{ReceivedRequest, Upstream},
};

/// TTL of the names, in seconds.
const TTL: u32 = 1;

/// A service of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterService {
    /// The App-Proxy.
    AppProxy,
    /// The server of the workflows.
    Workflows,
    /// The Event Source `push` in the namespace `argo`.
    Push,
    /// An upstream that no request may reach.
    Trap,
}

/// The running services, and the name server that knows them.
pub struct ClusterServices {
    members: Vec<(ClusterService, Upstream)>,
    names: NameServer,
    addresses: Addresses,
    ca: Ca,
    _directory: TempDir,
}

impl ClusterServices {
    /// Starts the services. `app_proxy` and `workflows` are their names in configurations.
    ///
    /// # Errors
    /// When this machine does not allow further addresses, see [`Addresses::take`].
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
            names.set(name, &[addresses.get(index)], TTL);
        }
        names.set_others(&[addresses.get(3)]);
        let certificate = ca.issue("workflows", &[workflows]);
        let members = vec![
            (
                ClusterService::AppProxy,
                Upstream::start_on(addresses.at(0, 3017)).await,
            ),
            (
                ClusterService::Workflows,
                Upstream::start_tls_on(addresses.at(1, 2746), &certificate).await,
            ),
            (
                ClusterService::Push,
                Upstream::start_on(addresses.at(2, 80)).await,
            ),
            (
                ClusterService::Trap,
                Upstream::start_on(addresses.at(3, 80)).await,
            ),
        ];
        let cluster = Self {
            members,
            names,
            addresses,
            ca,
            _directory: directory,
        };
        cluster.member(ClusterService::AppProxy).mount("/app-proxy");
        cluster
            .member(ClusterService::Push)
            .mount("/webhooks/argo/push");
        Ok(cluster)
    }

    /// A running service.
    ///
    /// # Panics
    /// When it was stopped.
    pub fn member(&self, service: ClusterService) -> &Upstream {
        let found = self.members.iter().find(|(name, _)| *name == service);
        &found.unwrap_or_else(|| panic!("{service:?} was stopped")).1
    }

    /// Stops a service; connections to its address are then refused.
    pub fn stop(&mut self, service: ClusterService) {
        self.members.retain(|(name, _)| *name != service);
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

    /// All requests up to now, each with the service that received it.
    pub fn requests(&self) -> Vec<(ClusterService, ReceivedRequest)> {
        let members = self.members.iter();
        let requests = members
            .map(|(service, member)| member.requests().into_iter().map(|seen| (*service, seen)));
        requests.flatten().collect()
    }

    /// How many requests each service has received: a mark for [`ClusterServices::since`].
    pub fn mark(&self) -> Vec<usize> {
        let members = self.members.iter();
        members.map(|(_, member)| member.requests().len()).collect()
    }

    /// The requests after a mark, each with the service that received it.
    pub fn since(&self, mark: &[usize]) -> Vec<(ClusterService, ReceivedRequest)> {
        let members = self.members.iter().zip(mark);
        let requests = members.map(|((service, member), before)| {
            let requests = member.requests().into_iter().skip(*before);
            requests.map(|seen| (*service, seen))
        });
        requests.flatten().collect()
    }
}
