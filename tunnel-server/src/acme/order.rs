//! One order at the ACME server, from the account to the certificate.

use std::{path::PathBuf, pin::pin, time::Duration};

use instant_acme::{
    Account, AccountCredentials, AuthorizationHandle, AuthorizationStatus, CertificateIdentifier,
    ChallengeType, ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus,
    RetryPolicy,
};
use secrecy::ExposeSecret;
use tokio::time::{sleep, timeout};
use tunnel_proto::control::millis;

use super::{
    Stop,
    hook::{self, Action, HookError},
    http::AcmeHttp,
    resolver::{ChallengeError, Digest, Resolver},
    schedule::Validity,
    store::{Key, Lock, Store, StoreError},
};
use crate::config::{AcmeChallenge, AcmeName, AcmeSettings};

/// Time for an order, with calls of the hook and the wait after it.
const ORDER_TIME: Duration = Duration::from_secs(20 * 60);

/// Time in which the ACME server checks a challenge, and in which it issues a certificate.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(3 * 60));

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("the ACME server cannot be reached or refuses: {0}")]
    Acme(#[from] instant_acme::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the account in {0} cannot be read: {1}: remove it, and another one is made")]
    Account(&'static str, serde_json::Error),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Challenge(#[from] ChallengeError),
    #[error("the ACME server offers no {0} for this name")]
    NotOffered(AcmeChallenge),
    #[error("--acme-dns-hook is not set")]
    NoHook,
    #[error("the ACME server could not verify the name by {challenge}: {problem}")]
    NotVerified {
        challenge: AcmeChallenge,
        problem: String,
    },
    #[error("the order is {0:?} at the ACME server")]
    State(OrderStatus),
    #[error("the order has not ended in {ORDER_TIME:?}")]
    TimedOut,
    #[error("another server node may order meanwhile, since etcd does not answer")]
    LockLost,
    #[error("the ACME server has sent a certificate that cannot be used: {0}")]
    Certificate(String),
    #[error(
        "the certificate that was obtained is to be renewed already, by this machine's clock: it is valid from {} to {}: set the \
         clock",
        humantime::format_rfc3339_seconds(.0.not_before), humantime::format_rfc3339_seconds(.0.not_after)
    )]
    OutOfTime(Validity),
    #[error("the server stops")]
    Stopped,
}

/// What orders need.
pub(super) struct Orders<'a> {
    pub(super) stop: &'a Stop,
    pub(super) settings: &'a AcmeSettings,
    pub(super) store: &'a Store,
    pub(super) resolver: &'a Resolver,
    pub(super) http: &'a AcmeHttp,
}

/// The proof of a name, while the ACME server may look at it.
pub(super) enum Proof {
    Handshake {
        host: String,
    },
    Record {
        hook: PathBuf,
        name: String,
        value: String,
    },
}

impl Orders<'_> {
    /// The account in the store; `None` if there is none yet.
    pub(super) async fn known_account(&self) -> Result<Option<Account>, OrderError> {
        let Some(text) = self.store.get(Key::Account).await? else {
            return Ok(None);
        };
        let place = match self.store {
            Store::Folder(_) => "--acme-dir",
            Store::Etcd(_) => "etcd",
        };
        let credentials: AccountCredentials =
            serde_json::from_str(&text).map_err(|error| OrderError::Account(place, error))?;
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        Ok(Some(builder.from_credentials(credentials).await?))
    }

    /// The account in the store, which is made if there is none.
    pub(super) async fn account(&self) -> Result<Account, OrderError> {
        if let Some(account) = self.known_account().await? {
            return Ok(account);
        }
        let contacts: Vec<&str> = self.settings.contacts.iter().map(String::as_str).collect();
        let new = NewAccount {
            contact: &contacts,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let external = self.settings.external_account.as_ref().map(|external| {
            ExternalAccountKey::new(external.kid.clone(), external.key.expose_secret())
        });
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let directory = self.settings.directory.clone();
        let (account, credentials) = builder.create(&new, directory, external.as_ref()).await?;
        let text = serde_json::to_string(&credentials)
            .map_err(|error| OrderError::Account("memory", error))?;
        self.store.put(Key::Account, text).await?;
        tracing::info!(
            account = account.id(),
            "an account at the ACME server was made"
        );
        Ok(account)
    }

    /// Orders a certificate for a name, in place of `replaced`. Returns chain and key, PEM. Whatever was set up to prove the
    /// name is in `proofs`, to be removed by [`Self::remove`], which may take minutes.
    pub(super) async fn certificate(
        &self,
        account: &Account,
        name: &AcmeName,
        replaced: Option<CertificateIdentifier<'static>>,
        lock: &Lock,
        proofs: &mut Vec<Proof>,
    ) -> Result<String, OrderError> {
        // Boxed, since the future of an order is large.
        let order = Box::pin(self.order(account, name, replaced, lock, proofs));
        tokio::select! {
            ended = timeout(ORDER_TIME, order) => ended.unwrap_or(Err(OrderError::TimedOut)),
            () = lock.lost() => Err(OrderError::LockLost),
            () = self.stop.requested() => Err(OrderError::Stopped),
        }
    }

    async fn order(
        &self,
        account: &Account,
        name: &AcmeName,
        replaced: Option<CertificateIdentifier<'static>>,
        lock: &Lock,
        proofs: &mut Vec<Proof>,
    ) -> Result<String, OrderError> {
        let identifiers = [Identifier::Dns(name.to_string())];
        let mut new = NewOrder::new(&identifiers);
        if let Some(replaced) = replaced {
            new = new.replaces(replaced);
        }
        let mut order = account.new_order(&new).await?;
        tracing::info!(%name, order = order.url(), "a certificate was ordered");
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            self.prove(authorization?, name, lock, proofs).await?;
        }
        let challenge = self.settings.challenge_of(name);
        match order.poll_ready(&POLLS).await {
            Ok(OrderStatus::Ready) => {}
            Ok(OrderStatus::Invalid) | Err(instant_acme::Error::Api(_)) => {
                return Err(not_verified(&mut order, challenge).await);
            }
            Ok(status) => return Err(OrderError::State(status)),
            Err(error) => return Err(error.into()),
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&POLLS).await?;
        Ok(format!("{}\n{key}", chain.trim_end()))
    }

    /// Sets up the proof of a name, and has the ACME server look at it.
    async fn prove(
        &self,
        mut authorization: AuthorizationHandle<'_>,
        name: &AcmeName,
        lock: &Lock,
        proofs: &mut Vec<Proof>,
    ) -> Result<(), OrderError> {
        // Proven lately for another order.
        if authorization.status == AuthorizationStatus::Valid {
            return Ok(());
        }
        let challenge = self.settings.challenge_of(name);
        let kind = match challenge {
            AcmeChallenge::TlsAlpn => ChallengeType::TlsAlpn01,
            AcmeChallenge::Dns => ChallengeType::Dns01,
        };
        let offered = authorization.challenge(kind);
        let mut offered = offered.ok_or(OrderError::NotOffered(challenge))?;
        let key = offered.key_authorization();
        let host = name.domain().as_str();
        match challenge {
            AcmeChallenge::TlsAlpn => {
                let mut digest = Digest::default();
                digest.copy_from_slice(key.digest().as_ref());
                self.resolver.set_challenge(host, &digest)?;
                proofs.push(Proof::Handshake {
                    host: host.to_owned(),
                });
                sleep(lock.share_challenge(host, &digest).await?).await;
            }
            AcmeChallenge::Dns => {
                let hook = self.settings.dns_hook.clone().ok_or(OrderError::NoHook)?;
                let (record, value) = (format!("_acme-challenge.{host}"), key.dns_value());
                // Before the call: one that fails may have set it.
                proofs.push(Proof::Record {
                    hook: hook.clone(),
                    name: record.clone(),
                    value: value.clone(),
                });
                hook::call(&hook, Action::Present, &record, &value).await?;
                tracing::info!(%name, record, wait_ms = millis(self.settings.dns_wait), "the record in DNS was set");
                sleep(self.settings.dns_wait).await;
            }
        }
        offered.set_ready().await?;
        tracing::info!(%name, %challenge, "the ACME server verifies the name");
        Ok(())
    }

    /// Removes what was set up to prove a name, also when the server stops meanwhile. The lock is kept until then.
    pub(super) async fn remove(&self, proofs: Vec<Proof>, lock: &Lock) {
        let mut removal = pin!(async {
            for proof in proofs {
                self.remove_one(proof).await;
            }
        });
        tokio::select! {
            () = &mut removal => {}
            () = lock.lost() => removal.await,
        }
    }

    async fn remove_one(&self, proof: Proof) {
        match proof {
            // Other nodes forget it with the lock.
            Proof::Handshake { host } => self.resolver.remove_challenge(&host),
            Proof::Record { hook, name, value } => {
                if let Err(error) = hook::call(&hook, Action::Cleanup, &name, &value).await {
                    tracing::warn!(record = name, %error, "the record in DNS was not removed: remove it");
                }
            }
        }
    }
}

/// What the ACME server says of the challenges of an order that it has refused.
async fn not_verified(order: &mut Order, challenge: AcmeChallenge) -> OrderError {
    let mut problems = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if let Ok(state) = authorization.refresh().await {
            let found = state.challenges.iter();
            problems.extend(
                found
                    .filter_map(|challenge| challenge.error.as_ref())
                    .map(ToString::to_string),
            );
        }
    }
    if problems.is_empty() {
        let error = order.state().error.as_ref();
        problems.extend(error.map(ToString::to_string));
    }
    OrderError::NotVerified {
        challenge,
        problem: match problems.is_empty() {
            true => "it does not say why".to_owned(),
            false => problems.join("; "),
        },
    }
}
