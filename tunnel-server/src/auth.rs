//! From what a tunnel client shows to the runtime that it lets in, or a refusal by name.
//!
//! ```text
//!   tnlrt_…            ─▶ static_token   the runtimes file
//!   a JSON Web Token   ─▶ jwt ─▶ jwks    the issuer's keys         ─▶ labels ─▶ revocation ─▶ Grant
//!   any other token    ─▶ platform       asked over HTTPS
//!   a certificate      ─▶ certificate    verified by TLS before
//! ```
//!
//! Fails closed: what is not known is refused. Each token has one judge, by its form. A credential
//! names its runtime; nothing else that a tunnel client says of itself decides which runtime it is.

mod certificate;
mod credential;
mod https;
pub mod jwks;
mod jwt;
mod labels;
mod platform;
mod refusal;
pub mod revocation;
mod setup;
pub mod static_token;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::{HeaderMap, header};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tunnel_ops::tls_files::{ClientCheck, Roots};
use tunnel_proto::handshake::Greeting;

pub use self::credential::{CredentialId, CredentialKind};
use self::jwks::Jwks;
use self::jwt::{JwtJudge, SigningKey};
use self::labels::{Labels, NamedRuntime};
pub use self::platform::PlatformToken;
use self::platform::{PlatformJudge, Question};
pub use self::refusal::AuthRefusal;
use self::revocation::{Revocation, Revocations, RevocationsFull};
pub(crate) use self::setup::PreparedCredentials;
pub use self::setup::{AuthSetupError, load_platform_token};
use crate::runtimes::{AccountName, RuntimeEntry, RuntimeName, Runtimes};
use crate::token::{TokenHash, TokenId};

/// What a tunnel client shows.
#[derive(Clone, Copy)]
pub struct Presented<'a> {
    /// The whole token after `Bearer`, if there is one.
    pub bearer: Option<&'a str>,
    /// The chain that TLS has verified, the leaf first; empty without a client certificate.
    pub certificates: &'a [CertificateDer<'static>],
    /// What the client says of itself. It decides nothing.
    pub greeting: &'a Greeting,
    /// Where it connects from.
    pub peer: SocketAddr,
}

/// What a good credential gives.
#[derive(Clone)]
#[non_exhaustive]
pub struct Grant {
    /// The runtime that is let in.
    pub runtime: Arc<RuntimeEntry>,
    /// By which credential; the token's where there is a certificate too.
    pub credential: CredentialId,
    /// Until when.
    pub expires: Option<SystemTime>,
    /// When the platform is to be asked again, by [`Authenticator::renew`].
    pub renew_at: Option<SystemTime>,
    /// The end that this can put off.
    renewable_end: Option<SystemTime>,
    shown: Arc<Shown>,
    /// Where there is a certificate: which roots its chain was last found to end at.
    trusted: Option<Roots>,
}

/// What of the credentials is needed to look at them again.
struct Shown {
    named: NamedRuntime,
    parts: Vec<Part>,
    question: Option<Arc<Question>>,
}

/// One credential that was shown and found good.
#[derive(Clone)]
struct Part {
    id: CredentialId,
    issued: Option<SystemTime>,
    expires: Option<SystemTime>,
    /// For a token of the runtimes file: what must still be listed there.
    listed: Option<(TokenId, TokenHash)>,
    /// For a certificate: the chain as it was shown, itself first.
    chain: Option<Arc<[CertificateDer<'static>]>>,
    /// For a JSON Web Token: what must still be among the issuer's keys.
    signed_with: Option<SigningKey>,
}

/// What one judge found.
struct Judged {
    named: NamedRuntime,
    part: Part,
    question: Option<Arc<Question>>,
    renew_at: Option<SystemTime>,
    /// Its own end, if asking again can put that off.
    renewable_end: Option<SystemTime>,
}

/// Knows which credentials are good. Shared by all connections of the server.
pub struct Authenticator {
    runtimes: ArcSwap<Runtimes>,
    /// What the file says.
    revocations: ArcSwap<Revocations>,
    /// What the operator has said since the start.
    revoked: ArcSwap<Revocations>,
    labels: Labels,
    jwt: Option<JwtJudge>,
    platform: Option<PlatformJudge>,
    /// How clients' certificates stand now; without it none is taken.
    clients: ArcSwapOption<ClientCheck>,
    expiry_grace: Duration,
    changes: watch::Sender<u64>,
}

/// The token of the one `Authorization: Bearer` of a request.
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
    /// The runtime that the credentials let in. Where there are several, all must be good and name one runtime.
    ///
    /// # Errors
    /// When there is none, or one of them is not good.
    pub async fn authenticate(&self, presented: &Presented<'_>) -> Result<Grant, AuthRefusal> {
        let now = SystemTime::now();
        let mut judged = Vec::new();
        if let Some(token) = presented.bearer {
            judged.push(Box::pin(self.judge_token(token, presented, now)).await?);
        }
        if self.clients.load().is_some() && !presented.certificates.is_empty() {
            judged.push(certificate::judge(presented.certificates, now)?);
        }
        self.grant(judged, now)
    }

    async fn judge_token(
        &self,
        token: &str,
        presented: &Presented<'_>,
        now: SystemTime,
    ) -> Result<Judged, AuthRefusal> {
        if static_token::has_form(token) {
            let runtimes = self.runtimes.load();
            let (runtime, listed) = static_token::verify(&runtimes, token, now)?;
            return Ok(static_token::judged(runtime, listed));
        }
        if let Some(jwt) = self.jwt.as_ref().filter(|_| jwt::has_form(token)) {
            return jwt.judge(token, now).await;
        }
        let Some(platform) = self.platform.as_ref().filter(|_| !token.is_empty()) else {
            return Err(AuthRefusal::NotAToken);
        };
        let question = Question::new(token, presented.greeting, presented.peer);
        platform.judge(&Arc::new(question)).await
    }

    /// What good credentials give together.
    fn grant(&self, judged: Vec<Judged>, now: SystemTime) -> Result<Grant, AuthRefusal> {
        let mut all = judged.into_iter();
        let first = all.next().ok_or(AuthRefusal::CredentialMissing)?;
        let credential = first.part.id.clone();
        let (named, question) = (first.named, first.question);
        let (renew_at, renewable_end) = (first.renew_at, first.renewable_end);
        let mut parts = vec![first.part];
        for other in all {
            check_same(&named, &other.named)?;
            parts.push(other.part);
        }
        for part in &parts {
            self.check_revoked(part, (&named.account, &named.name))?;
        }
        let shown = Arc::new(Shown {
            named,
            parts,
            question,
        });
        // Not only by the handshake: it may be of a while ago, or have taken up an older one.
        let trusted = self.check_certificate(&shown, None, now)?;
        Ok(Grant {
            // Last, since it remembers whose the label is, and a refused client must leave nothing behind.
            runtime: self.labels.entry(&self.runtimes.load(), &shown.named)?,
            credential,
            expires: shown.parts.iter().filter_map(|part| part.expires).min(),
            renew_at,
            renewable_end,
            trusted,
            shown,
        })
    }

    /// The grant as it is by now: hosts, limits and the token's end may have been changed in the runtimes
    /// file. Cheap: to be asked for every live session after each change.
    ///
    /// # Errors
    /// When it is to be cut: its listed token is not listed any more, its key not published any more, its
    /// runtime's label another's, one of its credentials revoked, or run out for longer than the grace.
    /// [`AuthRefusal::is_revoked`] distinguishes a revocation from what is only gone.
    pub fn as_of(&self, grant: &Grant, now: SystemTime) -> Result<Grant, AuthRefusal> {
        let runtimes = self.runtimes.load();
        let mut expires: Option<SystemTime> = None;
        for part in &grant.shown.parts {
            let end = match &part.listed {
                Some((id, sha256)) => listed_end(&runtimes, *id, sha256, grant)?,
                None => part.expires,
            };
            self.check_revoked(part, (&grant.runtime.account, &grant.runtime.name))?;
            if let (Some(jwt), Some(key)) = (&self.jwt, &part.signed_with) {
                jwt.check_key(key)?;
            }
            let end_of_grace = end.and_then(|end| end.checked_add(self.expiry_grace));
            if let (Some(expired), true) = (end, end_of_grace.is_some_and(|end| end <= now)) {
                return Err(part.expired(expired, now));
            }
            expires = expires.into_iter().chain(end).min();
        }
        Ok(Grant {
            runtime: self.labels.entry(&runtimes, &grant.shown.named)?,
            expires,
            trusted: self.check_certificate(&grant.shown, grant.trusted.as_ref(), now)?,
            ..grant.clone()
        })
    }

    /// The grant for another while: the platform is asked again, the others are looked at again.
    ///
    /// # Errors
    /// When it is to be cut: [`AuthRefusal::is_no`] distinguishes a denial from a platform that is away.
    pub async fn renew(&self, grant: &Grant) -> Result<Grant, AuthRefusal> {
        let (Some(platform), Some(question)) = (&self.platform, &grant.shown.question) else {
            return self.as_of(grant, SystemTime::now());
        };
        let judged = platform.judge(question).await?;
        check_same(&grant.shown.named, &judged.named)?;
        let is_other = |part: &&Part| part.id.kind() != CredentialKind::Platform;
        let others = grant.shown.parts.iter().filter(is_other);
        let others: Vec<Judged> = others
            .map(|part| Judged {
                named: judged.named.clone(),
                part: part.clone(),
                question: None,
                renew_at: None,
                renewable_end: None,
            })
            .collect();
        let now = SystemTime::now();
        let renewed = self.grant([judged].into_iter().chain(others).collect(), now)?;
        self.as_of(&renewed, now)
    }

    /// From now on these runtimes and tokens are the listed ones.
    pub fn replace_runtimes(&self, runtimes: Runtimes) {
        self.runtimes.store(Arc::new(runtimes));
        self.changed_now();
    }

    /// From now on these are the revocations of the file. What the operator said goes on.
    pub fn replace_revocations(&self, revocations: Revocations) {
        self.revocations.store(Arc::new(revocations));
        self.changed_now();
    }

    /// From now on JSON Web Tokens are checked with these keys, where they come from a file.
    pub fn replace_jwks(&self, keys: Jwks) {
        if let Some(jwt) = &self.jwt {
            jwt.replace(keys);
            self.changed_now();
        }
    }

    /// From now on the platform knows this server by this token.
    pub fn replace_platform_token(&self, token: PlatformToken) {
        if let Some(platform) = &self.platform {
            platform.replace_token(token);
        }
    }

    /// Takes credentials back, until the server starts anew.
    ///
    /// # Errors
    /// When that was done too often.
    pub fn revoke(&self, revocation: &Revocation) -> Result<(), RevocationsFull> {
        let mut is_full = Ok(());
        self.revoked.rcu(|revoked| match revoked.and(revocation) {
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

    /// Counts the changes after which live sessions are to be looked at again. The first time it is
    /// changed already, since something may have come between a grant and this.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changed = self.changes.subscribe();
        changed.mark_changed();
        changed
    }

    /// Begins to fetch what is behind URLs, on the tokio runtime that this is called in, which is to live
    /// as long as the server: call it once, before anybody is let in. Without it, or where that runtime
    /// has ended, it begins with the first token that needs it. The task holds nothing of this, and ends
    /// with it.
    pub fn start(&self) {
        if let Some(jwt) = &self.jwt {
            jwt.start();
        }
    }

    /// How many keys JSON Web Tokens are checked with now; `None` where none are taken.
    #[must_use]
    pub fn key_count(&self) -> Option<usize> {
        self.jwt.as_ref().map(JwtJudge::key_count)
    }

    /// Labels remembered of runtimes that only credentials have named.
    pub(crate) fn labels_known(&self) -> usize {
        self.labels.len()
    }

    /// Questions to the platform whose answer is awaited.
    pub(crate) fn questions(&self) -> usize {
        self.platform.as_ref().map_or(0, PlatformJudge::questions)
    }

    /// Answers of the platform that are remembered.
    pub(crate) fn answers_known(&self) -> usize {
        let platform = self.platform.as_ref();
        platform.map_or(0, PlatformJudge::answers_known)
    }

    /// Whether the list of revocations that the configuration names has an entry.
    pub(crate) fn has_revocation_list(&self) -> bool {
        !self.revocations.load().is_empty()
    }

    /// Whether the platform gave no answer when it was asked last; `None` where it is not asked.
    #[must_use]
    pub fn is_platform_away(&self) -> Option<bool> {
        self.platform.as_ref().map(PlatformJudge::is_away)
    }

    fn check_revoked(
        &self,
        part: &Part,
        runtime: (&AccountName, &RuntimeName),
    ) -> Result<(), AuthRefusal> {
        let covered = |revocations: &ArcSwap<Revocations>| {
            revocations.load().cover(&part.id, part.issued, runtime)
        };
        match covered(&self.revocations) || covered(&self.revoked) {
            true => Err(AuthRefusal::CredentialRevoked(part.id.clone())),
            false => Ok(()),
        }
    }

    /// Checks that the certificate among the credentials, if there is one, still chains to a trusted issuer and is on
    /// none of the issuer's revocation lists. `trusted` are the roots that its chain was found to end at before;
    /// returns those that it ends at now.
    fn check_certificate(
        &self,
        shown: &Shown,
        trusted: Option<&Roots>,
        now: SystemTime,
    ) -> Result<Option<Roots>, AuthRefusal> {
        let Some((part, chain)) = shown.certificate() else {
            return Ok(None);
        };
        let clients = self.clients.load();
        let clients = clients.as_ref().ok_or(AuthRefusal::CertificateUntrusted)?;
        if chain.first().is_some_and(|leaf| clients.is_revoked(leaf)) {
            return Err(AuthRefusal::CredentialRevoked(part.id.clone()));
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
    /// Whether the platform is to be asked before the end, and may put that off: not where the end is that of
    /// another credential, or of the time for which the platform may be away.
    #[must_use]
    pub fn can_be_put_off(&self) -> bool {
        self.renewable_end.is_some()
            && self.renewable_end == self.expires
            && self.renew_at < self.expires
    }

    /// The client certificate's chain, without which a newer token would not do; empty where none was
    /// shown.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        self.shown.certificate().map_or(&[], |(_, chain)| chain)
    }
}

impl Shown {
    fn certificate(&self) -> Option<(&Part, &[CertificateDer<'static>])> {
        let mut parts = self.parts.iter();
        parts.find_map(|part| Some((part, part.chain.as_deref()?)))
    }
}

impl Part {
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

/// When a token of the runtimes file runs out, if it is still the runtime's.
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
