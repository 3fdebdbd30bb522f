//! Calls, each at one member.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::stream;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use rustls::ClientConfig;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, timeout};
use tonic::{
    Request, Status,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
};
use tonic_prost::ProstCodec;

use crate::{
    call_time::CallTime,
    error::EtcdError,
    member::{Connection, Member, MemberUrl},
    messages::{
        AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse,
        LeaseKeepAliveResponse, LeaseRequest, LeaseRevokeResponse, RangeRequest, RangeResponse,
        StatusRequest, StatusResponse, TxnRequest, TxnResponse,
    },
    watch::Watch,
};

/// Largest answer, in bytes: several times a page of 20,000 keys.
const ANSWER_BYTES: usize = 16 << 20;

/// Time for one read of a range. etcd counts all keys of the range for each page: a million take it some 300 ms.
const RANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect to the cluster.
#[derive(Clone)]
pub struct Settings {
    /// The members.
    pub members: Vec<MemberUrl>,
    /// For members with an `https` URL.
    pub tls: Arc<ClientConfig>,
    /// The user, if etcd requires one.
    pub user: Option<User>,
    /// Time for one call of one member, with the dial if there has to be one. An election takes 1 to 1.5 s, in which no
    /// member answers a write; a call that is longer than this has little chance at its member. It grows, up to four times,
    /// while all members are slow.
    pub timeout: Duration,
}

/// A user of etcd.
#[derive(Clone)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: SecretString,
}

/// A client of a cluster. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    members: Vec<Member>,
    /// The member of the next call.
    preferred: AtomicUsize,
    /// For the next connections.
    tls: Arc<Mutex<Arc<ClientConfig>>>,
    user: Mutex<Option<User>>,
    /// Token of the last login.
    token: Mutex<Option<MetadataValue<Ascii>>>,
    call_time: Mutex<CallTime>,
}

/// A lease, as it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: i64,
    /// How long it lives without renewal; etcd may keep it for longer.
    pub ttl: Duration,
}

impl Client {
    /// A client that has dialled nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let members = settings.members.into_iter();
        let tls = Arc::new(Mutex::new(settings.tls));
        let shared = Shared {
            members: members.map(|url| Member::new(url, tls.clone())).collect(),
            preferred: AtomicUsize::new(0),
            tls,
            user: Mutex::new(settings.user),
            token: Mutex::default(),
            call_time: Mutex::new(CallTime::new(settings.timeout)),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Uses these for the connections and the logins that are made from now on; open connections and tokens stay.
    pub fn set_credentials(&self, tls: Arc<ClientConfig>, user: Option<User>) {
        *self.shared.tls.lock() = tls;
        *self.shared.user.lock() = user;
    }

    /// The number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.shared.members.len()
    }

    /// The member of the next call, as its number.
    #[must_use]
    pub fn preferred(&self) -> usize {
        self.shared.preferred.load(Ordering::Relaxed)
    }

    /// Reads keys.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        let (index, path) = (self.preferred(), "/etcdserverpb.KV/Range");
        self.call_member(index, path, request, RANGE_TIMEOUT).await
    }

    /// Makes a transaction.
    ///
    /// # Errors
    /// See [`EtcdError`]. After a time-out or a lost connection the transaction may have been made.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    /// Gets a lease.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn grant(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let request = LeaseGrantRequest { ttl: seconds };
        let granted: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok(Lease {
            id: granted.id,
            ttl: seconds_of(granted.ttl),
        })
    }

    /// Ends a lease, and the keys on it.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let request = LeaseRequest { id: lease };
        let revoked = self.call("/etcdserverpb.Lease/LeaseRevoke", request).await;
        revoked.map(|LeaseRevokeResponse {}| ())
    }

    /// Renews a lease once. Returns how long it lives from now.
    ///
    /// # Errors
    /// [`EtcdError::LeaseEnded`] when it has expired; else see [`EtcdError`].
    pub async fn keep_alive(&self, lease: i64) -> Result<Duration, EtcdError> {
        let index = self.preferred();
        let member = self.member(index);
        let renew = |mut grpc: Grpc<Connection>, _: Connection| async move {
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let request = self.request(stream::iter([LeaseRequest { id: lease }]));
            let answers = grpc.streaming(request, path, ProstCodec::default()).await;
            let mut answers = answers
                .map_err(|status| self.failed(member, &status))?
                .into_inner();
            let answer: Option<LeaseKeepAliveResponse> = answers
                .message()
                .await
                .map_err(|status| self.failed(member, &status))?;
            match answer {
                Some(LeaseKeepAliveResponse { ttl }) if ttl > 0 => Ok(seconds_of(ttl)),
                // etcd answers so for a lease that has ended.
                Some(_) => Err(EtcdError::LeaseEnded),
                None => Err(EtcdError::Unreachable {
                    member: member.name().to_owned(),
                    reason: "the renewal was not answered".to_owned(),
                }),
            }
        };
        let timeout = self.shared.call_time.lock().get();
        self.bounded(index, timeout, renew).await
    }

    /// The state of one member.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn status(&self, index: usize) -> Result<StatusResponse, EtcdError> {
        let path = "/etcdserverpb.Maintenance/Status";
        let timeout = self.shared.call_time.lock().get();
        self.call_member(index, path, StatusRequest {}, timeout)
            .await
    }

    /// Watches all keys of a range from a revision on, at the member with this number. The watch ends with
    /// `etcdserver: no leader` when that member has lost the others.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn watch(
        &self,
        index: usize,
        (key, range_end): (bytes::Bytes, bytes::Bytes),
        start_revision: i64,
    ) -> Result<Watch, EtcdError> {
        let member = self.member(index);
        let watch = |mut grpc: Grpc<Connection>, connection| async move {
            let (requests, stream) = Watch::requests(key, range_end, start_revision);
            let mut request = self.request(stream);
            let yes = MetadataValue::from_static("true");
            request.metadata_mut().insert("hasleader", yes);
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let answers = grpc.streaming(request, path, ProstCodec::default()).await;
            let answers = answers.map_err(|status| self.failed(member, &status))?;
            let member = member.name().to_owned();
            Ok(Watch::new(
                member,
                requests,
                answers.into_inner(),
                connection,
            ))
        };
        let timeout = self.shared.call_time.lock().get();
        self.bounded(index, timeout, watch).await
    }

    /// Calls the preferred member.
    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let timeout = self.shared.call_time.lock().get();
        self.call_member(self.preferred(), path, request, timeout)
            .await
    }

    async fn call_member<Q, A>(
        &self,
        index: usize,
        path: &'static str,
        request: Q,
        timeout: Duration,
    ) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let member = self.member(index);
        let call = |mut grpc: Grpc<Connection>, _: Connection| async move {
            self.unary(member, &mut grpc, path, self.request(request))
                .await
        };
        self.bounded(index, timeout, call).await
    }

    async fn unary<Q, A>(
        &self,
        member: &Member,
        grpc: &mut Grpc<Connection>,
        path: &'static str,
        request: Request<Q>,
    ) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(request, path, ProstCodec::default()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| self.failed(member, &status))
    }

    /// Waits until a client of the member's connection is ready for a call, and logs in if a user is given.
    async fn ready(
        &self,
        member: &Member,
        mut grpc: Grpc<Connection>,
    ) -> Result<Grpc<Connection>, EtcdError> {
        let unready = |error: hyper::Error| EtcdError::Unreachable {
            member: member.name().to_owned(),
            reason: error.to_string(),
        };
        grpc.ready().await.map_err(unready)?;
        grpc = grpc.max_decoding_message_size(ANSWER_BYTES);
        let user = self.shared.user.lock().clone();
        if let Some(user) = user
            && self.shared.token.lock().is_none()
        {
            let login = Request::new(AuthenticateRequest {
                name: user.name,
                password: user.password.expose_secret().to_owned(),
            });
            let path = "/etcdserverpb.Auth/Authenticate";
            let answer: AuthenticateResponse = self.unary(member, &mut grpc, path, login).await?;
            let token = MetadataValue::try_from(answer.token).ok();
            *self.shared.token.lock() = token;
            grpc.ready().await.map_err(unready)?;
        }
        Ok(grpc)
    }

    /// A request with the user's token.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.shared.token.lock().clone() {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    fn failed(&self, member: &Member, status: &Status) -> EtcdError {
        if EtcdError::is_stale_token(status) {
            *self.shared.token.lock() = None;
        }
        EtcdError::of_status(member.name(), status)
    }

    /// Makes a call on the connection to a member within `time`, which includes a dial and a login. If the member is at
    /// fault, the next call goes to the next one.
    async fn bounded<T, F>(
        &self,
        index: usize,
        time: Duration,
        call: impl FnOnce(Grpc<Connection>, Connection) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let member = self.member(index);
        let mut used = None;
        // Boxed, since the future of a call is large.
        let called = Box::pin(async {
            let (grpc, connection) = member.grpc().await?;
            used = Some(connection.clone());
            let grpc = self.ready(member, grpc).await?;
            call(grpc, connection).await
        });
        let began = Instant::now();
        let ended = timeout(time, called).await;
        let now = Instant::now();
        let result = match ended {
            Ok(result) => {
                if result.is_ok() {
                    self.shared.call_time.lock().on_answer(now - began);
                }
                result
            }
            Err(_) => {
                let (number, members) = (index % self.members().max(1), self.members());
                let (began, now) = (began.into_std(), now.into_std());
                let call_time = &self.shared.call_time;
                call_time.lock().on_time_out(number, members, began, now);
                // A connection may be lost without a sign.
                if let Some(connection) = &used {
                    member.drop_connection(connection);
                }
                Err(EtcdError::TimedOut {
                    member: member.name().to_owned(),
                })
            }
        };
        if result.as_ref().is_err_and(EtcdError::is_of_member) {
            let next = (index + 1) % self.members().max(1);
            let preferred = &self.shared.preferred;
            let _ = preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        result
    }

    fn member(&self, index: usize) -> &Member {
        &self.shared.members[index % self.shared.members.len()]
    }
}

fn seconds_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("members", &self.shared.members)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
