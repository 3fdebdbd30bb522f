//! Authenticates tunnel clients: from the credentials of a dial to the runtime that they belong to, or a refusal.
//!
//! ```text
//!   tnlrt_…            ─▶ static_token   the runtimes file
//!   a JSON Web Token   ─▶ jwt ─▶ jwks    the issuer's keys         ─▶ labels ─▶ revocation ─▶ Grant
//!   any other token    ─▶ platform       asked over HTTPS
//!   a certificate      ─▶ certificate    verified by TLS before
//! ```
//!
//! Fails closed: an unknown credential is refused. The form of a token decides which one verifier checks it. A
//! credential names its runtime; nothing else that a tunnel client sends decides which runtime it serves.

mod certificate;
mod credential;
pub mod jwks;
mod jwt;
mod labels;
mod platform;
mod refusal;
pub mod revocation;
mod setup;
pub mod static_token;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{HeaderMap, header};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tunnel_directory::{AccountName, RuntimeLabel, RuntimeName};
use tunnel_ops::tls_files::{ClientCheck, Roots};
use tunnel_proto::handshake::Greeting;

pub use self::credential::{CredentialId, CredentialKind, CredentialView};
use self::jwks::Jwks;
use self::jwt::{JwtVerifier, SigningKey};
use self::labels::NamedRuntime;
pub use self::platform::PlatformToken;
use self::platform::{PlatformQuery, PlatformVerifier};
pub use self::refusal::AuthRefusal;
use self::revocation::{Revocation, Revocations, RevocationsFull};
pub use self::setup::{AuthSetupError, load_platform_token};
pub(crate) use self::setup::{PreparedCredentials, faulty_files};
use crate::client_address::ClientAddress;
use crate::runtimes::{HostName, RuntimeEntry, Runtimes};
use crate::token::{TokenHash, TokenId};

/// The credentials that a tunnel client presents when it dials.
#[derive(Clone, Copy)]
pub struct Presented<'a> {
    /// The whole token after `Bearer`, if there is one.
    pub bearer: Option<&'a str>,
    /// The certificate chain that TLS has verified, leaf first; empty without a client certificate.
    pub certificates: &'a [CertificateDer<'static>],
    /// The client's description of itself. It is passed to the platform and decides nothing here.
    pub greeting: &'a Greeting,
    /// The address that the client connects from.
    pub peer: ClientAddress,
}

/// The result of a successful authentication.
#[derive(Clone)]
#[non_exhaustive]
pub struct Grant {
    /// The runtime that the client may serve.
    pub runtime: Arc<RuntimeEntry>,
    /// The credential that authenticates it; the token if there is a certificate too.
    pub credential: CredentialId,
    /// When the first of the credentials expires; `None` if none does.
    pub expires: Option<SystemTime>,
    /// When to call [`Authenticator::renew`], which asks the platform again.
    pub renew_at: Option<SystemTime>,
    /// The expiry that a renewal can postpone.
    renewable_end: Option<SystemTime>,
    credentials: Arc<GrantedCredentials>,
    /// With a certificate: the roots that its chain was last verified against.
    trusted: Option<Roots>,
}

/// The verified credentials of a grant, kept to check them again.
struct GrantedCredentials {
    named: NamedRuntime,
    all: Vec<VerifiedCredential>,
    query: Option<Arc<PlatformQuery>>,
}

/// One credential that was presented and verified.
#[derive(Clone)]
struct VerifiedCredential {
    id: CredentialId,
    issued: Option<SystemTime>,
    expires: Option<SystemTime>,
    /// For a token of the runtimes file: the entry that must still be listed there.
    listed: Option<(TokenId, TokenHash)>,
    /// For a certificate: the presented chain, leaf first.
    chain: Option<Arc<[CertificateDer<'static>]>>,
    /// For a JSON Web Token: the key that must still be among the issuer's keys.
    signed_with: Option<SigningKey>,
}

/// The result of one verifier.
struct Verified {
    named: NamedRuntime,
    credential: VerifiedCredential,
    query: Option<Arc<PlatformQuery>>,
    renew_at: Option<SystemTime>,
    /// The credential's expiry, if a renewal can postpone it.
    renewable_end: Option<SystemTime>,
}

/// Who a tunnel client that was refused is.
#[derive(Debug, Clone)]
pub(crate) struct RefusedIdentity {
    pub(crate) runtime: RuntimeLabel,
    pub(crate) credential: CredentialId,
    /// Whether it has shown more than the credential's public id.
    pub(crate) is_proven: bool,
}

impl RefusedIdentity {
    fn new(named: NamedRuntime, credential: CredentialId, is_proven: bool) -> Option<Self> {
        Some(Self {
            runtime: named.label().ok()?,
            credential,
            is_proven,
        })
    }
}

/// Verifies credentials. Shared by all connections of the server.
pub struct Authenticator {
    runtimes: ArcSwap<Runtimes>,
    /// The revocations of the file.
    revocations: ArcSwap<Revocations>,
    /// The revocations that the operator has made through the admin API.
    revoked: ArcSwap<Revocations>,
    /// The domain of runtimes' hosts.
    domain: HostName,
    jwt: Option<JwtVerifier>,
    platform: Option<PlatformVerifier>,
    /// How client certificates are checked; `None` if they are not accepted.
    clients: ArcSwapOption<ClientCheck>,
    expiry_grace: Duration,
    changes: watch::Sender<u64>,
}

/// The token of a request's `Authorization: Bearer` field (RFC 6750, section 2.1); `None` if the field is missing,
/// repeated or of another scheme.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

impl Authenticator {
    /// Authenticates a tunnel client. If it presents several credentials, all must be valid and name one runtime.
    ///
    /// # Errors
    /// When there is no credential, one of them is not valid, or they name different runtimes.
    pub async fn authenticate(&self, presented: &Presented<'_>) -> Result<Grant, AuthRefusal> {
        let now = SystemTime::now();
        let mut verified = Vec::new();
        if let Some(token) = presented.bearer {
            verified.push(Box::pin(self.verify_token(token, presented, now)).await?);
        }
        if self.clients.load().is_some() && !presented.certificates.is_empty() {
            verified.push(certificate::verify(presented.certificates, now)?);
        }
        self.grant(verified, now)
    }

    async fn verify_token(
        &self,
        token: &str,
        presented: &Presented<'_>,
        now: SystemTime,
    ) -> Result<Verified, AuthRefusal> {
        if static_token::has_form(token) {
            let runtimes = self.runtimes.load();
            let (runtime, listed) = static_token::verify(&runtimes, token, now)?;
            return Ok(static_token::verified(runtime, listed));
        }
        if let Some(jwt) = self.jwt.as_ref().filter(|_| jwt::has_form(token)) {
            return jwt.verify(token, now).await;
        }
        let Some(platform) = self.platform.as_ref().filter(|_| !token.is_empty()) else {
            return Err(AuthRefusal::NotAToken);
        };
        let query = PlatformQuery::new(token, presented.greeting, presented.peer);
        platform.verify(&Arc::new(query)).await
    }

    /// The runtime and the credential of a tunnel client that was refused, as far as they are certain: of a listed token
    /// by its public id, with a wrong secret too; of a JSON Web Token whose signature is good; of a certificate, whose
    /// chain TLS has verified. What the platform refuses is nobody's.
    pub(crate) fn identify(
        &self,
        bearer: Option<&str>,
        certificates: &[CertificateDer<'static>],
    ) -> Option<RefusedIdentity> {
        if let Some(token) = bearer.filter(|token| static_token::has_form(token)) {
            let runtimes = self.runtimes.load();
            let (named, credential, is_proven) = static_token::identify(&runtimes, token)?;
            return RefusedIdentity::new(named, credential, is_proven);
        }
        let of_token = bearer.and_then(|token| self.jwt.as_ref()?.identify(token));
        let of_certificate = || {
            self.clients.load().as_ref()?;
            certificate::identify(certificates)
        };
        let (named, credential) = of_token.or_else(of_certificate)?;
        RefusedIdentity::new(named, credential, true)
    }

    /// The public id in a token of the form that the runtimes file lists. It may be made up: nothing is verified.
    pub(crate) fn presented_id(bearer: Option<&str>) -> Option<TokenId> {
        bearer.and_then(static_token::id_in)
    }

    /// The grant of verified credentials.
    fn grant(&self, verified: Vec<Verified>, now: SystemTime) -> Result<Grant, AuthRefusal> {
        let mut all = verified.into_iter();
        let first = all.next().ok_or(AuthRefusal::CredentialMissing)?;
        let id = first.credential.id.clone();
        let (named, query) = (first.named, first.query);
        let (renew_at, renewable_end) = (first.renew_at, first.renewable_end);
        let mut credentials = vec![first.credential];
        for other in all {
            check_same(&named, &other.named)?;
            credentials.push(other.credential);
        }
        for credential in &credentials {
            self.check_revoked(credential, (&named.account, &named.name))?;
        }
        let expires = credentials.iter().filter_map(|one| one.expires).min();
        let credentials = Arc::new(GrantedCredentials {
            named,
            all: credentials,
            query,
        });
        // TLS has verified the certificate only at the handshake, which may be long ago or a resumption.
        let trusted = self.check_certificate(&credentials, None, now)?;
        Ok(Grant {
            runtime: credentials
                .named
                .entry(&self.runtimes.load(), &self.domain)?,
            credential: id,
            expires,
            renew_at,
            renewable_end,
            trusted,
            credentials,
        })
    }

    /// Checks a grant again and returns it as it is now: hosts, limits and the token's expiry may have changed in the
    /// runtimes file. Cheap, since it is called for every live session after each change.
    ///
    /// # Errors
    /// When the session must be cut: its listed token or its signing key is gone, the runtime's label belongs to another
    /// runtime, one of its credentials is revoked, or has been expired for longer than the grace.
    /// [`AuthRefusal::is_revoked`] distinguishes a revocation from a credential that is only gone.
    pub fn recheck(&self, grant: &Grant, now: SystemTime) -> Result<Grant, AuthRefusal> {
        let runtimes = self.runtimes.load();
        let mut expires: Option<SystemTime> = None;
        for credential in &grant.credentials.all {
            let end = match &credential.listed {
                Some((id, sha256)) => listed_end(&runtimes, *id, sha256, grant)?,
                None => credential.expires,
            };
            self.check_revoked(credential, (&grant.runtime.account, &grant.runtime.name))?;
            if let (Some(jwt), Some(key)) = (&self.jwt, &credential.signed_with) {
                jwt.check_key(key)?;
            }
            let end_of_grace = end.and_then(|end| end.checked_add(self.expiry_grace));
            if let (Some(expired), true) = (end, end_of_grace.is_some_and(|end| end <= now)) {
                return Err(credential.expired(expired, now));
            }
            expires = expires.into_iter().chain(end).min();
        }
        let runtime = grant.credentials.named.entry(&runtimes, &self.domain)?;
        Ok(Grant {
            // All sessions keep the entry that they have, as long as nothing of it changes.
            runtime: match *runtime == *grant.runtime {
                true => grant.runtime.clone(),
                false => runtime,
            },
            expires,
            trusted: self.check_certificate(&grant.credentials, grant.trusted.as_ref(), now)?,
            ..grant.clone()
        })
    }

    /// Renews a grant: asks the platform again, and checks the other credentials again.
    ///
    /// # Errors
    /// When the session must be cut: [`AuthRefusal::is_denial`] distinguishes a denial from a platform that does not answer.
    pub async fn renew(&self, grant: &Grant) -> Result<Grant, AuthRefusal> {
        let (Some(platform), Some(query)) = (&self.platform, &grant.credentials.query) else {
            return self.recheck(grant, SystemTime::now());
        };
        let verified = platform.verify(query).await?;
        check_same(&grant.credentials.named, &verified.named)?;
        let is_other =
            |credential: &&VerifiedCredential| credential.id.kind() != CredentialKind::Platform;
        let others = grant.credentials.all.iter().filter(is_other);
        let others: Vec<Verified> = others
            .map(|credential| Verified {
                named: verified.named.clone(),
                credential: credential.clone(),
                query: None,
                renew_at: None,
                renewable_end: None,
            })
            .collect();
        let now = SystemTime::now();
        let renewed = self.grant([verified].into_iter().chain(others).collect(), now)?;
        self.recheck(&renewed, now)
    }

    /// Replaces the runtimes and tokens of the runtimes file.
    pub fn replace_runtimes(&self, runtimes: impl Into<Arc<Runtimes>>) {
        self.runtimes.store(runtimes.into());
        self.changed_now();
    }

    /// The runtimes in force, with their tokens.
    pub(crate) fn runtimes(&self) -> Arc<Runtimes> {
        self.runtimes.load_full()
    }

    /// Replaces the revocations of the file. Those that the operator has made stay.
    pub fn replace_revocations(&self, revocations: Revocations) {
        self.revocations.store(Arc::new(revocations));
        self.changed_now();
    }

    /// Replaces the keys that JSON Web Tokens are checked with. Without effect if the keys come from a URL.
    pub fn replace_jwks(&self, keys: Jwks) {
        if let Some(jwt) = &self.jwt {
            jwt.replace(keys);
            self.changed_now();
        }
    }

    /// Replaces the token by which this server authenticates to the platform.
    pub fn replace_platform_token(&self, token: PlatformToken) {
        if let Some(platform) = &self.platform {
            platform.replace_token(token);
        }
    }

    /// Revokes credentials for the operator, until the server is restarted.
    ///
    /// # Errors
    /// When there are too many revocations already.
    pub fn revoke(&self, revocations: &[Revocation]) -> Result<(), RevocationsFull> {
        let mut is_full = Ok(());
        self.revoked.rcu(|revoked| match revoked.with(revocations) {
            Ok(more) => {
                is_full = Ok(());
                Arc::new(more)
            }
            Err(full) => {
                is_full = Err(full);
                Arc::clone(revoked)
            }
        });
        is_full?;
        self.changed_now();
        Ok(())
    }

    /// Takes over revocations that the operator has made before, or at another node.
    pub(crate) fn add_revoked(&self, revocations: &[Revocation]) {
        let more = Revocations::of(revocations);
        if self.revoked.load().includes(&more) {
            return;
        }
        self.revoked
            .rcu(|revoked| Revocations::clone(revoked).with_all(&more));
        self.changed_now();
    }

    /// Whether a runtime may have a credential with this id. All are known only where none but listed tokens are accepted.
    pub(crate) fn may_exist(&self, runtime: (&AccountName, &RuntimeName), id: &str) -> bool {
        let has_unlisted =
            self.jwt.is_some() || self.platform.is_some() || self.clients.load().is_some();
        let runtimes = self.runtimes.load();
        let listed = id.parse().ok().and_then(|id| runtimes.token(id));
        let is_listed = listed.is_some_and(|(entry, _)| (&entry.account, &entry.name) == runtime);
        has_unlisted || is_listed
    }

    /// Counts the changes after which the grants of live sessions must be checked again. The receiver is marked as
    /// changed from the beginning, since a change may have happened between the grant and this call.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changed = self.changes.subscribe();
        changed.mark_changed();
        changed
    }

    /// Starts to fetch keys from URLs, on the current tokio runtime, which should live as long as the server. Call it
    /// once, before clients connect. Otherwise, or if that runtime has ended, fetching starts with the first token that
    /// needs a key. The task ends when this is dropped.
    pub fn start(&self) {
        if let Some(jwt) = &self.jwt {
            jwt.start();
        }
    }

    /// The number of keys that JSON Web Tokens are checked with; `None` if they are not accepted.
    #[must_use]
    pub fn key_count(&self) -> Option<usize> {
        self.jwt.as_ref().map(JwtVerifier::key_count)
    }

    /// The number of open queries to the platform.
    pub(crate) fn open_platform_queries(&self) -> usize {
        self.platform
            .as_ref()
            .map_or(0, PlatformVerifier::open_queries)
    }

    /// The number of cached answers of the platform.
    pub(crate) fn cached_platform_answers(&self) -> usize {
        let platform = self.platform.as_ref();
        platform.map_or(0, PlatformVerifier::cached_answers)
    }

    /// Whether the configured revocation list has an entry.
    pub(crate) fn has_revocation_list(&self) -> bool {
        !self.revocations.load().is_empty()
    }

    /// Whether the last request to the platform was not answered; `None` if no platform is configured.
    #[must_use]
    pub fn is_platform_away(&self) -> Option<bool> {
        self.platform.as_ref().map(PlatformVerifier::is_unreachable)
    }

    fn check_revoked(
        &self,
        credential: &VerifiedCredential,
        runtime: (&AccountName, &RuntimeName),
    ) -> Result<(), AuthRefusal> {
        let (id, issued) = (&credential.id, credential.issued);
        // The operator means what is in use now. A JSON Web Token says when it was issued by a clock that may be ahead of this
        // one by the leeway.
        let jwt = self.jwt.as_ref();
        let leeway = jwt.filter(|_| id.kind() == CredentialKind::Jwt);
        let leeway = leeway.map_or(Duration::ZERO, JwtVerifier::leeway);
        let by_this_clock = issued.map(|issued| issued.checked_sub(leeway).unwrap_or(issued));
        let is_revoked = self.revocations.load().cover(id, issued, runtime)
            || self.revoked.load().cover(id, by_this_clock, runtime);
        match is_revoked {
            true => Err(AuthRefusal::CredentialRevoked(credential.id.clone())),
            false => Ok(()),
        }
    }

    /// Checks that the certificate among the credentials, if there is one, still chains to a trusted issuer and is on
    /// none of the issuer's revocation lists. `trusted` are the roots that the chain was verified against before;
    /// returns those that it was verified against now.
    fn check_certificate(
        &self,
        credentials: &GrantedCredentials,
        trusted: Option<&Roots>,
        now: SystemTime,
    ) -> Result<Option<Roots>, AuthRefusal> {
        let Some((certificate, chain)) = credentials.certificate() else {
            return Ok(None);
        };
        let clients = self.clients.load();
        let clients = clients.as_ref().ok_or(AuthRefusal::CertificateUntrusted)?;
        if chain.first().is_some_and(|leaf| clients.is_revoked(leaf)) {
            return Err(AuthRefusal::CredentialRevoked(certificate.id.clone()));
        }
        if trusted != Some(clients.roots()) && !clients.is_trusted(chain, now) {
            return Err(AuthRefusal::CertificateUntrusted);
        }
        Ok(Some(clients.roots().clone()))
    }

    fn changed_now(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Grant {
    /// Whether a renewal before the expiry can postpone it. False if another credential expires first, or if the
    /// expiry is that of the time for which the platform may be away.
    #[must_use]
    pub fn is_renewable(&self) -> bool {
        self.renewable_end.is_some()
            && self.renewable_end == self.expires
            && self.renew_at < self.expires
    }

    /// The client certificate's chain, which a refresh with a newer token must be combined with; empty if the client
    /// presented none.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        self.credentials
            .certificate()
            .map_or(&[], |(_, chain)| chain)
    }
}

impl GrantedCredentials {
    fn certificate(&self) -> Option<(&VerifiedCredential, &[CertificateDer<'static>])> {
        let mut all = self.all.iter();
        all.find_map(|one| Some((one, one.chain.as_deref()?)))
    }
}

impl VerifiedCredential {
    fn expired(&self, expired: SystemTime, now: SystemTime) -> AuthRefusal {
        match self.chain {
            Some(_) => AuthRefusal::CertificateExpired { expired, now },
            None => AuthRefusal::TokenExpired { expired, now },
        }
    }
}

fn check_same(one: &NamedRuntime, other: &NamedRuntime) -> Result<(), AuthRefusal> {
    if (&one.account, &one.name) == (&other.account, &other.name) {
        return Ok(());
    }
    let label = |named: &NamedRuntime| {
        let label = named.label();
        label.map_err(|error| AuthRefusal::TokenMalformed(error.to_string()))
    };
    Err(AuthRefusal::CredentialsDisagree(label(one)?, label(other)?))
}

/// When a token of the runtimes file expires.
///
/// # Errors
/// When it is not listed any more, or listed for another runtime.
fn listed_end(
    runtimes: &Runtimes,
    id: TokenId,
    sha256: &TokenHash,
    grant: &Grant,
) -> Result<Option<SystemTime>, AuthRefusal> {
    let pair = (&grant.runtime.account, &grant.runtime.name);
    let (_, token) = runtimes
        .token(id)
        .filter(|(runtime, token)| {
            token.sha256 == *sha256 && (&runtime.account, &runtime.name) == pair
        })
        .ok_or(AuthRefusal::TokenRefused)?;
    match token.revoked {
        true => Err(AuthRefusal::CredentialRevoked(grant.credential.clone())),
        false => Ok(token.expires),
    }
}

impl fmt::Debug for Presented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented")
            .field("bearer", &self.bearer.is_some())
            .field("certificates", &self.certificates.len())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("runtime", &self.runtime.label)
            .field("credential", &self.credential)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("tokens", &self.runtimes.load().token_count())
            .field("keys", &self.key_count())
            .field("platform_away", &self.is_platform_away())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
