//! The settings of a server that shares its directory with other nodes.

use std::{fmt, fs, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use tokio_rustls::rustls::ClientConfig;
use tunnel_directory::NodeName;
use tunnel_etcd::{BadMemberUrl, MemberUrl, User};
use tunnel_ops::byte_order_mark::without_mark;
use tunnel_ops::tls_files::{self, Identity, Roots};

use super::{ConfigFault, Settings, Source, or_fault, setting};
use crate::peer_tls::PeerCa;

/// Time for one call of one member of etcd: more than a write takes under load, and less than an election.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// The directory that this server shares with other nodes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SharedDirectory {
    /// Where etcd is.
    pub etcd: tunnel_etcd::Settings,
    /// The name of this node.
    pub node: NodeName,
    /// How this node is linked to the others; `None` if requests are not forwarded.
    pub links: Option<PeerLinks>,
}

/// How a node is linked to the others.
#[derive(Clone)]
#[non_exhaustive]
pub struct PeerLinks {
    /// The address that other nodes are given to connect to; the port 0 stands for that of the listener.
    pub advertised: String,
    /// The CA that issued the certificates of all nodes.
    pub ca: PeerCa,
    /// The certificate of this node, and its key.
    pub identity: Identity,
}

/// The URL of a member of etcd, as a setting.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUrl(MemberUrl);

/// What the keys in etcd begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPrefix(String);

/// The text is no prefix of keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no prefix: begin and end it with a slash, as in /tunnel/v1/")]
pub struct BadKeyPrefix(String);

impl FromStr for EtcdUrl {
    type Err = BadMemberUrl;

    fn from_str(text: &str) -> Result<Self, BadMemberUrl> {
        text.parse().map(Self)
    }
}

impl FromStr for KeyPrefix {
    type Err = BadKeyPrefix;

    fn from_str(text: &str) -> Result<Self, BadKeyPrefix> {
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.len() > 1 && text.starts_with('/') && text.ends_with('/') && is_printable {
            true => Ok(Self(text.to_owned())),
            false => Err(BadKeyPrefix(text.to_owned())),
        }
    }
}

impl KeyPrefix {
    /// The default.
    pub(super) fn usual() -> String {
        "/tunnel/v1/".to_owned()
    }
}

impl SharedDirectory {
    /// A directory in this etcd, of which this node takes part without links to others.
    #[must_use]
    pub fn new(etcd: tunnel_etcd::Settings, node: NodeName) -> Self {
        Self {
            etcd,
            node,
            links: None,
        }
    }
}

impl PeerLinks {
    /// Links of a node with this certificate, where other nodes connect at `advertised`.
    #[must_use]
    pub fn new(advertised: String, ca: PeerCa, identity: Identity) -> Self {
        Self {
            advertised,
            ca,
            identity,
        }
    }
}

impl fmt::Debug for PeerLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerLinks")
            .field("advertised", &self.advertised)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

tunnel_ops::text_value!(EtcdUrl as MemberUrl, |url| url.0, MemberUrl::to_string);
tunnel_ops::text_value!(KeyPrefix as String, |prefix| prefix.0, String::clone);

/// Checks the settings; `None` for a server that stands alone, or after a fault.
pub(super) fn check(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<SharedDirectory> {
    if settings.etcd.is_empty() {
        check_alone(source, faults);
        return None;
    }
    let node = settings.node.clone();
    if node.is_none() {
        faults.push(ConfigFault::Missing {
            setting: &setting::node,
            purpose: "the name of this node among those that share the directory, such as a pod's name",
        });
    }
    let user = user(source, settings, faults);
    let tls = tls(source, settings, faults);
    let links = links(source, settings, faults);
    Some(SharedDirectory {
        etcd: tunnel_etcd::Settings {
            members: settings.etcd.clone(),
            tls: tls?,
            user,
            timeout: CALL_TIMEOUT,
        },
        node: node?,
        links,
    })
}

/// Settings that mean nothing without --etcd are a mistake.
fn check_alone(source: &Source, faults: &mut Vec<ConfigFault>) {
    let given = [
        (source.node.is_some(), &setting::node),
        (source.zone.is_some(), &setting::zone),
        (source.etcd_ca.is_some(), &setting::etcd_ca),
        (source.etcd_cert.is_some(), &setting::etcd_cert),
        (source.etcd_key.is_some(), &setting::etcd_key),
        (source.etcd_user.is_some(), &setting::etcd_user),
        (source.etcd_prefix.is_some(), &setting::etcd_prefix),
        (source.peer_listen.is_some(), &setting::peer_listen),
        (
            source.without_directory.is_some(),
            &setting::without_directory,
        ),
    ];
    for (_, setting) in given.into_iter().filter(|(is_given, _)| *is_given) {
        let problem = "without --etcd this server stands alone: name the members of etcd";
        faults.push(source.fault(setting, problem));
    }
}

/// The links to other nodes. All four settings are needed, or none: without links a request is served only if it reaches
/// a node that has a session of its runtime.
fn links(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) -> Option<PeerLinks> {
    let listen = settings.peer_listen?;
    let mut file = |path: &Option<PathBuf>, setting, purpose| {
        if path.is_none() {
            faults.push(ConfigFault::Missing { setting, purpose });
        }
        path.clone()
    };
    let ca = file(
        &settings.peer_ca,
        &setting::peer_ca,
        "the CA of the nodes' certificates",
    );
    let cert = file(
        &settings.peer_cert,
        &setting::peer_cert,
        "this node's certificate for the others",
    );
    let key = file(
        &settings.peer_key,
        &setting::peer_key,
        "the key of --peer-cert",
    );
    let advertised = match &settings.peer_advertise {
        Some(address) => address.clone(),
        None if listen.ip().is_unspecified() => {
            let problem =
                "it listens on all addresses: tell other nodes one of them by --peer-advertise";
            faults.push(source.fault(&setting::peer_listen, problem));
            return None;
        }
        None => listen.to_string(),
    };
    let (ca, cert, key) = (ca?, cert?, key?);
    let authority = or_fault(faults, PeerCa::load(&ca));
    let identity = Identity::load_or_fault(&cert, &key, faults);
    let (ca, identity) = (authority?, identity?);
    if let Some(node) = &settings.node {
        or_fault(faults, ca.check_own(&cert, node))?;
    }
    Some(PeerLinks {
        advertised,
        ca,
        identity,
    })
}

fn tls(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<Arc<ClientConfig>> {
    let is_plain = settings.etcd.iter().any(|url| !url.is_tls());
    if is_plain && settings.etcd.iter().any(MemberUrl::is_tls) {
        let problem =
            "some URLs begin with http and some with https: use one of them for all members";
        faults.push(source.fault(&setting::etcd, problem));
    }
    let roots = match &settings.etcd_ca {
        Some(path) => Roots::load_only(path),
        None if is_plain => Ok(Roots::none()),
        None => Roots::load(None),
    };
    let roots = or_fault(faults, roots);
    let identity = match (&settings.etcd_cert, &settings.etcd_key) {
        (Some(cert), Some(key)) => Identity::load_or_fault(cert, key, faults),
        (None, None) => None,
        (Some(_), None) => {
            let problem = "its key is missing: give --etcd-key as well";
            faults.push(source.fault(&setting::etcd_cert, problem));
            None
        }
        (None, Some(_)) => {
            let problem = "its certificate is missing: give --etcd-cert as well";
            faults.push(source.fault(&setting::etcd_key, problem));
            None
        }
    };
    or_fault(
        faults,
        tls_files::client_config(&roots?, identity.as_ref(), &[b"h2"]),
    )
}

fn user(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) -> Option<User> {
    let name = settings.etcd_user.clone()?;
    let Some(path) = &settings.etcd_password_file else {
        faults.push(ConfigFault::Missing {
            setting: &setting::etcd_password_file,
            purpose: "the file with the password of --etcd-user",
        });
        return None;
    };
    match fs::read_to_string(path) {
        Ok(password) => Some(User {
            name,
            password: without_mark(&password)
                .trim_end_matches(['\r', '\n'])
                .to_owned()
                .into(),
        }),
        Err(error) => {
            let problem = format!("{}: cannot be read: {error}", PathBuf::from(path).display());
            faults.push(source.fault(&setting::etcd_password_file, problem));
            None
        }
    }
}
