//! The views and operations of the admin API.
//!
//! In: parts of the server and a runtime's label. Out: plain values, which the admin API writes as JSON and the program's
//! own commands read. Only this file and the one below it use registry, tunnels and sessions. No view contains a
//! secret: a credential is shown by its kind and its public id.

mod server;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use tunnel_directory::managed::{Pair, RevokedCredentials};
use tunnel_proto::control::{RouteSummary, millis};

pub(crate) use self::server::ReadCertificates;
pub use self::server::{CertificateSource, CertificateView, ConfigView, ServerState, ServerView};
pub(super) use self::server::{certificates, config_view, server_view};
use super::nodes;
use crate::{
    auth::{
        Authenticator, CredentialKind, CredentialView,
        revocation::{self, RevocationsFull},
    },
    config::Config,
    history::{EndedSession, RefusedDial},
    registry::{Registry, Slot},
    runtimes::{HostName, ListedToken, RuntimeEntry, RuntimeLimits, Runtimes},
    timestamp::Timestamp,
    tunnel::{Directive, Member, SessionCredential, Tunnel},
};

/// One runtime. An absent field is unknown or does not apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuntimeView {
    /// Its label, which identifies it in this API.
    pub label: String,
    /// The account that it belongs to.
    pub account: String,
    /// Its name within the account.
    pub name: String,
    /// Whether this API has made it.
    #[serde(default)]
    pub managed: bool,
    /// Its tokens; absent in a list of runtimes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<TokenView>>,
    /// The hosts that it is reached at.
    pub hosts: Vec<String>,
    /// Whether a tunnel client holds it, at this server node or at another one.
    pub online: bool,
    /// Since when it is online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online_since: Option<Timestamp>,
    /// When it was last online, since the server was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_online: Option<Timestamp>,
    /// The instance that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The epoch of its claim, which grows whenever the holder changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The server nodes that have sessions of it; absent if it is offline, and for a server that stands alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The credential that authenticated the tunnel client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialView>,
    /// When the credential expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Its live sessions.
    pub sessions: Vec<SessionView>,
    /// Its open exchanges.
    pub open_exchanges: usize,
    /// Its answered requests, since this server knows it.
    pub requests: u64,
    /// Bytes of request bodies sent to it, since this server knows it.
    pub bytes_in: u64,
    /// Bytes of response bodies received from it, since this server knows it.
    pub bytes_out: u64,
    /// Requests that wait for its tunnel client to come back.
    pub waiting: usize,
    /// Its limits.
    pub limits: LimitsView,
    /// The source addresses that are allowed; absent if all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_from: Option<Vec<String>>,
    /// The last problem that a request was answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_problem: Option<ProblemView>,
    /// How its last session has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_session_end: Option<Arc<EndedSession>>,
    /// The last tunnel client of it that was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<Arc<RefusedDial>>,
    /// What its tunnel client has reported of its routes; absent in a list of runtimes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<RouteView>>,
    /// How many more routes it has; absent when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes_omitted: Option<usize>,
}

/// One token of a runtime, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its public id.
    pub id: String,
    /// When it was created; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// When it expires; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Whether it is revoked.
    pub revoked: bool,
    /// A note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl From<&ListedToken> for TokenView {
    fn from(token: &ListedToken) -> Self {
        Self {
            id: token.id.to_string(),
            created: token.created.map(Timestamp::from),
            expires: token.expires.map(Timestamp::from),
            revoked: token.revoked,
            note: token.note.clone(),
        }
    }
}

/// Runtimes in the order of their labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuntimesPage {
    /// These runtimes.
    pub runtimes: Vec<RuntimeView>,
    /// The value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server nodes that did not answer; what only they know is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<String>,
}

/// One route, as the tunnel client has reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// Its name.
    pub name: String,
    /// What it matches.
    pub matches: String,
    /// Its upstream.
    pub to: String,
    /// The upstream's state: `up`, `degraded`, `down`, `own` or `unknown`.
    pub state: String,
}

impl From<&RouteSummary> for RouteView {
    fn from(route: &RouteSummary) -> Self {
        Self {
            name: route.name.clone(),
            matches: route.matches.clone(),
            to: route.to.clone(),
            state: route.state.name().to_owned(),
        }
    }
}

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its id, as in the logs of both ends.
    pub id: String,
    /// The server node that has it; absent for a server that stands alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its number within its instance.
    pub number: u32,
    /// The address that it was dialled from.
    pub peer: String,
    /// Version of the tunnel client.
    pub client_version: String,
    /// When it began.
    pub since: Timestamp,
    /// The round-trip time of the last ping; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
    /// Its open exchanges.
    pub open_exchanges: usize,
    /// Bytes sent through it.
    pub bytes_in: u64,
    /// Bytes received through it.
    pub bytes_out: u64,
    /// Whether it takes no new exchange.
    pub is_draining: bool,
}

/// The limits of a runtime; an absent limit is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsView {
    /// Exchanges open at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchanges: Option<u32>,
    /// Exchanges begun in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_rate: Option<u32>,
    /// Bytes of bodies in a second towards the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_rate: Option<u64>,
    /// Bytes of bodies in a second from the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_rate: Option<u64>,
    /// Upgraded connections open at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub websockets: Option<u32>,
    /// Largest head of a request, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_bytes: Option<usize>,
    /// Requests that wait for the runtime to come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// The memory of those requests together, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_bytes: Option<u64>,
}

/// A problem of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemView {
    /// Its stable name.
    pub reason: String,
    /// When it occurred.
    pub at: Timestamp,
}

/// The credentials of a runtime to revoke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevocationScope {
    /// All credentials that were issued before now.
    All,
    /// The credential with this public id, whether it has been used or not.
    Credential(String),
}

/// What an operation has done on this node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Operated {
    /// The number of affected sessions.
    pub(super) sessions: usize,
    /// Credentials that were issued before this moment are refused from now on.
    pub(super) issued_before: Option<Timestamp>,
    /// Of a revocation: whether it is kept.
    pub(super) durable: Option<bool>,
}

impl From<usize> for Operated {
    fn from(sessions: usize) -> Self {
        Self {
            sessions,
            ..Self::default()
        }
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// There is no such runtime.
    #[error(
        "no runtime has the label `{0}`: a label is ACCOUNT-RUNTIME, and `tunnel-server runtimes list` has all"
    )]
    RuntimeUnknown(String),
    /// The runtime has no such credential.
    #[error(
        "{0} has no credential with the id `{1}`: see `tunnel-server token list`, or `runtimes show` for the one in use"
    )]
    CredentialUnknown(String, String),
    /// There are too many revocations.
    #[error(transparent)]
    RevocationsFull(#[from] RevocationsFull),
}

impl From<RuntimeLimits> for LimitsView {
    fn from(limits: RuntimeLimits) -> Self {
        Self {
            exchanges: limits.exchanges,
            exchange_rate: limits.exchange_rate,
            upload_rate: limits.upload_rate,
            download_rate: limits.download_rate,
            websockets: limits.websockets,
            head_bytes: limits.head_bytes,
            waiting: limits.waiting,
            waiting_bytes: limits.waiting_bytes,
        }
    }
}

/// Every known runtime, in the order of the labels.
pub(super) fn runtime_entries(registry: &Registry) -> Vec<Arc<RuntimeEntry>> {
    let slots = registry.slots();
    let mut entries: Vec<_> = slots.iter().map(|slot| slot.entry().clone()).collect();
    entries.sort_unstable_by(|a, b| a.label.cmp(&b.label));
    entries
}

/// The runtime with this label.
///
/// # Errors
/// When there is none.
pub(super) fn runtime_entry(
    registry: &Registry,
    label: &str,
) -> Result<Arc<RuntimeEntry>, OperationError> {
    known(registry, label).map(|slot| slot.entry().clone())
}

/// A runtime as it is now. `listed` are those in force.
pub(super) fn runtime_view(
    registry: &Registry,
    config: &Config,
    listed: &Runtimes,
    entry: &RuntimeEntry,
) -> RuntimeView {
    let slot = registry.slot(entry.label.as_str());
    let tunnel = slot.as_ref().and_then(|slot| slot.tunnel());
    let tunnel = tunnel.as_deref();
    let members = tunnel.map(Tunnel::members).unwrap_or_default();
    let credential = members
        .last()
        .map(|member| member.peer.credential.lock().clone());
    let node = registry.directory().node_name();
    let sessions = session_views(tunnel, &members, node.as_deref());
    let mut nodes = nodes::holders(registry.directory(), &entry.label);
    nodes.extend(node.clone().filter(|_| tunnel.is_some()));
    nodes.sort_unstable();
    let history = slot.as_ref().map(|slot| slot.history().get());
    let history = history.unwrap_or_default();
    let carrying = slot.as_ref().map(|slot| slot.carrying());
    let carried = history.carried + carrying.unwrap_or_default();
    let own = HostName::of_runtime(&entry.label, &config.settings.domain).ok();
    let hosts = own.iter().chain(&entry.hosts);
    let allow_from = entry.allow_from.as_deref();
    RuntimeView {
        label: entry.label.to_string(),
        account: entry.account.to_string(),
        name: entry.name.to_string(),
        managed: config.runtimes.get(&entry.label).is_none() && listed.get(&entry.label).is_some(),
        tokens: None,
        hosts: hosts.map(ToString::to_string).collect(),
        online: tunnel.is_some() || !nodes.is_empty(),
        online_since: slot
            .as_ref()
            .and_then(|slot| Some(slot.online_since()?.into())),
        last_online: slot
            .as_ref()
            .and_then(|slot| Some(slot.last_online()?.into())),
        instance: tunnel.map(|tunnel| tunnel.claim().instance.to_string()),
        epoch: tunnel.map(|tunnel| tunnel.claim().epoch.number()),
        nodes,
        expires: credential
            .as_ref()
            .and_then(|credential| Some(credential.expires?.into())),
        credential: credential.map(|credential| CredentialView {
            kind: credential.kind.to_owned(),
            id: credential.id,
        }),
        open_exchanges: sessions.iter().map(|session| session.open_exchanges).sum(),
        sessions,
        requests: carried.requests,
        bytes_in: carried.bytes_in,
        bytes_out: carried.bytes_out,
        waiting: slot.map_or(0, |slot| slot.budget().waiting()),
        limits: entry.limits.or(config.limits()).into(),
        allow_from: allow_from.map(|from| from.iter().map(ToString::to_string).collect()),
        last_problem: history.problem.map(|(reason, at)| ProblemView {
            reason: reason.name().to_owned(),
            at,
        }),
        last_session_end: history.session_end,
        last_refusal: history.refusal,
        routes: None,
        routes_omitted: None,
    }
}

/// A runtime as it is now, with its tokens, and the routes that its tunnel client has reported.
pub(super) fn runtime_in_full(
    registry: &Registry,
    config: &Config,
    listed: &Runtimes,
    entry: &RuntimeEntry,
) -> RuntimeView {
    let mut view = runtime_view(registry, config, listed, entry);
    let tokens = listed.tokens_of(&entry.label);
    view.tokens = Some(tokens.map(TokenView::from).collect());
    let tunnel = registry.slot(entry.label.as_str());
    let members = tunnel.and_then(|slot| Some(slot.tunnel()?.members()));
    // A client with a new table of routes reports it to its latest session first.
    let members = members.into_iter().flatten().rev();
    let reports = members.filter_map(|member| member.peer.routes.lock().clone());
    if let Some(summary) = reports.into_iter().next() {
        view.routes = Some(summary.routes().iter().map(RouteView::from).collect());
        view.routes_omitted = Some(summary.omitted()).filter(|omitted| *omitted > 0);
    }
    view
}

fn session_views(
    tunnel: Option<&Tunnel>,
    members: &[Member],
    node: Option<&str>,
) -> Vec<SessionView> {
    let Some(tunnel) = tunnel else {
        return Vec::new();
    };
    let claim = tunnel.claim();
    let instance = claim.instance.to_string();
    let views = members.iter().map(|member| SessionView {
        node: node.map(ToOwned::to_owned),
        ..session_view(&instance, member)
    });
    views.collect()
}

fn session_view(instance: &str, Member { session, peer, .. }: &Member) -> SessionView {
    let (bytes_in, bytes_out) = session.bytes();
    SessionView {
        id: format!("{instance}/{}", peer.number),
        node: None,
        number: peer.number,
        peer: peer.address.to_string(),
        client_version: peer.version.clone(),
        since: peer.since.into(),
        round_trip_ms: session.round_trip().map(milliseconds),
        open_exchanges: session.outstanding(),
        bytes_in,
        bytes_out,
        is_draining: !session.is_open(),
    }
}

/// Ends all sessions of a runtime, and with them the open exchanges; its tunnel client dials again. Returns how many
/// sessions there were.
///
/// # Errors
/// When there is no such runtime.
pub(super) fn disconnect(registry: &Registry, label: &str) -> Result<usize, OperationError> {
    direct(registry, label, Directive::Disconnect)
}

/// Makes a runtime's tunnel client replace its sessions by new ones; open exchanges finish. Returns the number of
/// sessions.
///
/// # Errors
/// When there is no such runtime.
pub(super) fn drain(registry: &Registry, label: &str) -> Result<usize, OperationError> {
    direct(registry, label, Directive::Drain)
}

fn direct(registry: &Registry, label: &str, directive: Directive) -> Result<usize, OperationError> {
    let slot = known(registry, label)?;
    Ok(slot.tunnel().map_or(0, |tunnel| tunnel.direct(directive)))
}

/// What a revocation revokes of a runtime, and how many sessions are authenticated by that. A repeated call says 0 once they have
/// ended.
///
/// # Errors
/// When there is no such runtime, or no such credential as far as that can be known.
pub(super) fn revocation(
    registry: &Registry,
    authenticator: &Authenticator,
    label: &str,
    scope: &RevocationScope,
) -> Result<(Operated, Pair, RevokedCredentials), OperationError> {
    let slot = known(registry, label)?;
    let entry = slot.entry();
    let (account, name) = (entry.account.clone(), entry.name.clone());
    let members = slot.tunnel().map(|tunnel| tunnel.members());
    let members = members.unwrap_or_default();
    let is_covered = |member: &&Member| match scope {
        RevocationScope::All => true,
        RevocationScope::Credential(id) => is_named(&member.peer.credential.lock(), id),
    };
    let sessions = members.iter().filter(is_covered).count();
    if let RevocationScope::Credential(id) = scope
        && sessions == 0
        && !authenticator.may_exist((&account, &name), id)
    {
        return Err(OperationError::CredentialUnknown(
            label.to_owned(),
            id.clone(),
        ));
    }
    let (revoked, before) = match scope {
        // Credentials that are issued from then on stay valid: the operator means those in use.
        RevocationScope::All => {
            let before = next_second(SystemTime::now());
            let since = before.duration_since(SystemTime::UNIX_EPOCH);
            let before_ms = millis(since.unwrap_or_default());
            (RevokedCredentials::before(before_ms), Some(before))
        }
        // Kept for ever: another credential with this id would be one of the same holder.
        RevocationScope::Credential(id) => (RevokedCredentials::of_id(id, None), None),
    };
    let operated = Operated {
        sessions,
        issued_before: before.map(Timestamp::from),
        durable: None,
    };
    Ok((operated, Pair::new(&account, &name), revoked))
}

/// The first whole second that is not before `now`: credentials say in whole seconds when they were issued.
fn next_second(now: SystemTime) -> SystemTime {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let whole = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(whole)
}

/// Whether this is the credential's id; a certificate's serial number may be written in several ways.
fn is_named(credential: &SessionCredential, id: &str) -> bool {
    match credential.kind == CredentialKind::Certificate.name() {
        true => revocation::serial(id).is_some_and(|serial| serial == credential.id),
        false => credential.id == id,
    }
}

fn known(registry: &Registry, label: &str) -> Result<Arc<Slot>, OperationError> {
    let unknown = || OperationError::RuntimeUnknown(label.to_owned());
    registry.known(label).ok_or_else(unknown)
}

/// A time in milliseconds, of whole microseconds: it has no digits that are noise of a float.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}
