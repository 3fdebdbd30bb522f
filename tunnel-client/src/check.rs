//! Walks the way that a client goes, step by step, and says what is wrong and what to do about it.
//!
//! ```text
//!   config ─▶ token, certificate ─▶ the dial's own steps ─▶ authentication ─▶ echo ─▶ clock ─▶ upstreams
//!      │              │                     │ watch              │ session
//!      └──────────────┴─────── facts ───────┴────────────────────┘
//!                                └─▶ verdict: what is wrong, by name
//! ```
//!
//! What can be looked at whatever else has failed is looked at; what was not reached is told as such.
//!
//! In: what `run` is given. Out: a [`Report`], and each step at once as it is over. The dial is that of `run`,
//! watched; the session is one that the server gives neither the runtime nor an exchange, so that a client which
//! is at work does not notice. Nothing is tried twice.

mod certificate;
mod facts;
mod idle_probe;
mod local;
mod plan;
mod report;
mod session;
mod step;
mod token;
mod told;
mod trust;
mod upstreams;
mod verdict;
mod watch;
mod words;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::CertificateError;
use tokio::time::Instant;
use tunnel_ops::tls_files::TlsFilesError;
use tunnel_proto::handshake::{Greeting, InstanceSecret};
use tunnel_proto::refusal::RefusalReason;

use self::facts::{ClockFacts, Facts, Leg, TlsTrouble, Trouble};
pub use self::idle_probe::IdleReport;
use self::idle_probe::Timing;
pub use self::report::{Report, Style};
use self::session::{CheckSession, Checked};
pub use self::step::{StepName, StepReport, StepResult};
use self::told::Told;
pub use self::told::Word;
pub use self::verdict::Verdict;
use self::verdict::verdict;
use self::watch::Watch;
use self::words::{moment, printable, span};
use crate::client::networks;
use crate::config::{Config, Given, Source};
use crate::credential::{CredentialError, CredentialFiles, Credentials};
use crate::dial::glance::{Glance, Look};
use crate::dial::{DialError, Dialler};

/// Longest idle time that can be asked for.
pub const LONGEST_IDLE: Duration = idle_probe::LONGEST;

/// What a check is to do beside its steps.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Options {
    /// Find the idle limit of the way, by holding sessions idle for up to so long.
    pub idle_probe: Option<Duration>,
}

impl Options {
    /// Looks for the idle limit as well, up to `longest`.
    #[must_use]
    pub fn with_idle_probe(self, longest: Duration) -> Self {
        Self {
            idle_probe: Some(longest),
        }
    }
}

/// Takes all steps, and tells each as it is over. It ends: each step has its limit.
pub async fn check(
    given: Given,
    options: Options,
    tell: &mut (dyn FnMut(Word<'_>) + Send),
) -> Report {
    let mut told = Told::new(tell);
    let Some(read) = local::config(given, &mut told) else {
        told.way_ends();
        told.not_reached(&[StepName::Clock, StepName::Upstream]);
        return told.report;
    };
    let local::Read {
        mut config,
        mut has_credential,
        source,
        mut facts,
    } = read;
    let is_shown = local::credential(&source, &mut facts, &mut told);
    if !has_credential && told.report.is_ok() {
        // What was wrong a moment ago is not any more: such files are replaced at any time.
        config = again(&source, &facts, &mut told);
        has_credential = config.is_some();
    }
    if let Some(config) = &config {
        let (source, facts) = (&source, facts.clone());
        match has_credential && is_shown {
            true => Box::pin(way(config, source, facts, options, &mut told)).await,
            false => Box::pin(way_without(config, source, facts, &mut told)).await,
        }
    }
    told.way_ends();
    if !told.report.is_ok() {
        told.not_reached(&[StepName::Clock]);
        if options.idle_probe.is_some() {
            told.not_reached(&[StepName::Idle]);
        }
    }
    // Whatever is wrong on the way to the server, these are to be mended as well.
    upstreams::check(&source, &facts, &mut told).await;
    told.report
}

/// The configuration, once more.
fn again(source: &Source, facts: &Facts, told: &mut Told<'_>) -> Option<Config> {
    let error = match Config::check(source) {
        Ok(config) => return Some(config),
        Err(error) => error,
    };
    let faults = error.faults().iter().map(ToString::to_string).collect();
    let verdict = verdict(facts, &Trouble::Config(faults));
    told.step(StepReport::failed(
        StepName::Config,
        error.to_string(),
        verdict,
    ));
    None
}

/// What is needed to dial for a check.
struct Dialling {
    dialler: Dialler,
    greeting: Greeting,
    /// For the echo, as for each step of a dial.
    limit: Duration,
}

impl Dialling {
    fn new(config: &Config) -> Result<Self, TlsFilesError> {
        let mut random = [0; 16];
        // Nobody takes it for an instance that is at work: any will do.
        let _ = getrandom::fill(&mut random);
        let files = CredentialFiles {
            token: config.settings.token_file.clone(),
            certificate: config.client_certificate.clone(),
        };
        let credentials = Arc::new(Credentials::new(files));
        let dialler = Dialler::from_config(config, credentials);
        Ok(Self {
            dialler: dialler?,
            greeting: Greeting {
                instance: InstanceSecret::from_random(random),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                session_number: 1,
                allow_from: networks(config.settings.allow_from.as_deref().unwrap_or_default()),
                is_check: true,
            },
            limit: config.settings.dial_timeout,
        })
    }

    /// A further session on a way that was told of already.
    async fn session(&self, facts: &Facts) -> Result<CheckSession, Verdict> {
        let facts = Facts {
            answer: None,
            ..facts.clone()
        };
        let mut watch = Watch::new(facts, None);
        let dialled = Box::pin(self.dialler.dial_observed(&self.greeting, &mut watch)).await;
        let connected = dialled.map_err(|error| {
            let trouble = watch.ended(&error);
            verdict(&watch.facts, &trouble)
        })?;
        let mut session = CheckSession::begin(connected.io, connected.unread);
        match session.checked(self.limit).await {
            Ok(_) => Ok(session),
            Err(trouble) => Err(verdict(&watch.facts, &trouble)),
        }
    }
}

fn dialling(
    config: &Config,
    source: &Source,
    facts: &Facts,
    told: &mut Told<'_>,
) -> Option<Dialling> {
    let error = match Dialling::new(config) {
        Ok(dialling) => return Some(dialling),
        Err(error) => error,
    };
    let verdict = verdict(facts, &Trouble::Trust(trust::trouble(&error, source)));
    told.step(StepReport::failed(
        StepName::Config,
        error.to_string(),
        verdict,
    ));
    None
}

/// The way to the server as far as it can be gone with nothing to show there.
async fn way_without(config: &Config, source: &Source, facts: Facts, told: &mut Told<'_>) {
    let Some(dialling) = dialling(config, source, &facts, told) else {
        return;
    };
    let mut watch = Watch::without_session(facts, told);
    let glance = dialling.dialler.glance_observed(Look::Proven, &mut watch);
    let seen = Box::pin(glance).await;
    let trouble = seen.as_ref().err().map(|error| watch.trouble(error));
    let failed = watch.failed.take();
    let mut facts = watch.facts;
    match (seen, trouble) {
        (Err(_), Some(trouble)) => {
            glance_again(&dialling, &mut facts, &trouble).await;
            if let Some(failed) = failed {
                ended(Some(failed), &facts, &trouble, told);
            }
        }
        (Ok(page), _) => see_page(page, &mut facts),
        (Err(_), None) => {}
    }
    told.way_ends();
    tell_clock(&facts, told);
}

/// The way to the server and back.
async fn way(
    config: &Config,
    source: &Source,
    facts: Facts,
    options: Options,
    told: &mut Told<'_>,
) {
    let Some(dialling) = dialling(config, source, &facts, told) else {
        return;
    };
    let mut facts = facts;
    if !facts.is_token_in_time() {
        // Whose clock is right only the server's answer can tell.
        look_once_more(&dialling, &mut facts, Look::Unproven).await;
        return out_of_time(&facts, told);
    }
    let mut watch = Watch::new(facts, Some(&mut *told));
    let dialled = dialling
        .dialler
        .dial_observed(&dialling.greeting, &mut watch);
    let dialled = Box::pin(dialled).await;
    let trouble = dialled.as_ref().err().map(|error| watch.ended(error));
    let failed = watch.failed.or_else(|| untold(dialled.as_ref().err()?));
    let mut facts = watch.facts;
    match (dialled, trouble) {
        (Ok(connected), _) => {
            let session = CheckSession::begin(connected.io, connected.unread);
            echo(session, &facts, &dialling, told).await;
        }
        (Err(_), trouble) => {
            let trouble = trouble.unwrap_or(Trouble::Refused);
            glance_again(&dialling, &mut facts, &trouble).await;
            ended(failed, &facts, &trouble, told);
        }
    }
    told.way_ends();
    tell_clock(&facts, told);
    if let Some(longest) = options.idle_probe
        && told.report.is_ok()
    {
        Box::pin(idle(&dialling, config, longest, &facts, told)).await;
    }
}

/// The step that failed before it had begun.
fn untold(error: &DialError) -> Option<StepReport> {
    let step = match error {
        DialError::Step { error, .. } => watch::name(error.step()),
        DialError::Credential(CredentialError::Token(_)) => StepName::Token,
        DialError::Credential(CredentialError::Certificate(_)) => StepName::Certificate,
        DialError::Refused { .. } => return None,
    };
    let words = printable(&error.to_string());
    Some(StepReport::new(step, StepResult::Failed, words))
}

/// Looks once more at whoever has answered, where that tells more: without a credential, and without asking
/// for a session.
async fn glance_again(dialling: &Dialling, facts: &mut Facts, trouble: &Trouble) {
    let look = match trouble {
        // Who cannot prove who he is may still say it. Nothing is told to him.
        Trouble::Certificate(
            Leg::Server,
            CertificateError::UnknownIssuer
            | CertificateError::NotValidForName
            | CertificateError::NotValidForNameContext { .. }
            | CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
            | CertificateError::Other(_),
        ) => Look::Unproven,
        Trouble::Tls(Leg::Server, TlsTrouble::NotTls) => Look::Plain,
        Trouble::Refused if is_by_another(facts) => Look::Proven,
        _ => return,
    };
    look_once_more(dialling, facts, look).await;
}

async fn look_once_more(dialling: &Dialling, facts: &mut Facts, look: Look) {
    // That it brings nothing is no news.
    if let Ok(page) = Box::pin(dialling.dialler.glance(look)).await {
        see_page(page, facts);
    }
}

fn see_page((status, fields, text): Glance, facts: &mut Facts) {
    let plain = watch::plain_answer(status, &fields, &text);
    let clock = watch::clock(&plain, &fields, SystemTime::now());
    facts.clock = facts.clock.or(clock);
    facts.plain = Some(plain);
}

/// Nobody is asked for a session with a token whose time is over, or has not come.
fn out_of_time(facts: &Facts, told: &mut Told<'_>) {
    let words = match &facts.token {
        Some(token) => token.line(facts.now),
        None => String::new(),
    };
    let verdict = verdict(facts, &Trouble::TokenTime);
    told.step(StepReport::failed(StepName::Token, words, verdict));
    told.way_ends();
    tell_clock(facts, told);
}

/// Tells where the way ended.
fn ended(failed: Option<StepReport>, facts: &Facts, trouble: &Trouble, told: &mut Told<'_>) {
    let mut step = failed
        .unwrap_or_else(|| StepReport::new(StepName::Upgrade, StepResult::Failed, "no session"));
    if matches!(trouble, Trouble::Refused) && is_about_credential(facts) {
        // The tunnel server was reached, and said no by itself.
        let words = std::mem::replace(&mut step.words, "the tunnel server answers".to_owned());
        let took = step.took;
        step.result = StepResult::Held;
        told.step(step);
        step = StepReport::new(StepName::Authentication, StepResult::Failed, words);
        step.took = took;
    }
    step.result = StepResult::Failed;
    step.verdict = Some(verdict(facts, trouble));
    told.step(step);
}

/// Whether what was answered is not the tunnel server's own word.
fn is_by_another(facts: &Facts) -> bool {
    let answer = facts.answer.as_ref();
    answer.is_some_and(|answer| answer.refusal.is_none())
}

/// Whether the server has looked at the credential before it refused.
fn is_about_credential(facts: &Facts) -> bool {
    let answer = facts.answer.as_ref().filter(|answer| !answer.is_public);
    let refusal = answer.and_then(|answer| answer.refusal.as_ref());
    refusal.is_some_and(|refusal| {
        !matches!(
            refusal.known(),
            Some(
                RefusalReason::PathUnknown
                    | RefusalReason::MethodNotAllowed
                    | RefusalReason::OriginNotAllowed
                    | RefusalReason::UpgradeRequired
                    | RefusalReason::VersionUnsupported
                    | RefusalReason::GreetingMalformed
                    | RefusalReason::AllowFromMalformed
                    | RefusalReason::HandshakeQueue
                    | RefusalReason::ServerDraining
            )
        )
    })
}

/// The echo through the session, and what the server says of the credential.
async fn echo(mut session: CheckSession, facts: &Facts, dialling: &Dialling, told: &mut Told<'_>) {
    let began = Instant::now();
    match session.checked(dialling.limit).await {
        Ok(checked) => {
            let took = began.elapsed();
            told.step(authentication(&checked, facts));
            let round_trip = match session.round_trip().await {
                Some(time) => format!("a round trip takes {:.1} ms, ", time.as_secs_f64() * 1e3),
                None => String::new(),
            };
            let words = format!(
                "{round_trip}server version {}, session {}",
                checked.version, checked.session
            );
            let echo = StepReport::new(StepName::Echo, StepResult::Held, words);
            told.step(echo.took(took));
        }
        Err(trouble) => {
            let words = "the server takes the credential";
            told.step(StepReport::new(
                StepName::Authentication,
                StepResult::Held,
                words,
            ));
            let verdict = verdict(facts, &trouble);
            let echo = StepReport::failed(StepName::Echo, "nothing came back", verdict);
            told.step(echo.took(began.elapsed()));
        }
    }
    session.close().await;
}

/// Whose the runtime is, and whether a client that is started now would get it.
fn authentication(checked: &Checked, facts: &Facts) -> StepReport {
    let (account, runtime) = (&checked.account, &checked.runtime);
    let mut words = format!("runtime {runtime} of account {account}");
    if let Some(left) = checked.expires_in {
        words += &format!(", the credential is good for {} more", span(left));
    }
    if let Some(conflict) = &checked.conflict {
        let verdict = verdict(facts, &Trouble::Conflict(conflict.clone()));
        return StepReport::failed(StepName::Authentication, words, verdict);
    }
    if let Some(holder) = &checked.holder {
        words += &format!(
            "; the instance {holder} has it now, and would lose it to a client that is started"
        );
    }
    StepReport::new(StepName::Authentication, StepResult::Held, words)
}

/// The clock beside the server's, which only the server's own answer tells.
fn tell_clock(facts: &Facts, told: &mut Told<'_>) {
    if let Some(clock) = facts.clock.filter(|clock| clock.is_servers) {
        told.step(clock_step(clock, facts));
    }
}

fn clock_step(clock: ClockFacts, facts: &Facts) -> StepReport {
    let which = if clock.is_ahead() {
        "ahead of"
    } else {
        "behind"
    };
    let words = format!(
        "{} {which} the server's, which says {}",
        span(clock.difference()),
        moment(clock.there)
    );
    if clock.difference() >= facts::CLOCK_BROKEN {
        return StepReport::failed(StepName::Clock, words, verdict(facts, &Trouble::Clock));
    }
    match clock.is_off() {
        true => StepReport::new(StepName::Clock, StepResult::Warning, words),
        false => StepReport::new(
            StepName::Clock,
            StepResult::Held,
            "as the server's, to within half a minute",
        ),
    }
}

/// For how long the way bears silence.
async fn idle(
    dialling: &Dialling,
    config: &Config,
    longest: Duration,
    facts: &Facts,
    told: &mut Told<'_>,
) {
    let began = Instant::now();
    let times = idle_probe::times(longest);
    told.progress(&format!(
        "sessions are held idle, the longest for {}: wait",
        span(longest)
    ));
    let sessions = idle_probe::sessions(times, async || dialling.session(facts).await).await;
    let found = match sessions {
        Ok(sessions) => {
            let mut tell = |line: String| told.progress(&line);
            let found = idle_probe::probe(sessions, Timing::default(), &mut tell).await;
            found.map_err(|reason| verdict(facts, &Trouble::Ended(reason)))
        }
        Err(verdict) => Err(verdict),
    };
    let step = match found {
        Ok(found) => {
            let result = match found.is_too_slow(config.settings.ping_interval) {
                true => StepResult::Warning,
                false => StepResult::Held,
            };
            let words = found.line(config.settings.ping_interval);
            told.report.idle = Some(found);
            StepReport::new(StepName::Idle, result, words)
        }
        Err(verdict) => StepReport::failed(StepName::Idle, "no session could be held", verdict),
    };
    told.step(step.took(began.elapsed()));
}
