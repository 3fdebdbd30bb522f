//! Checks configuration, credential, path to the server and upstreams step by step, and says what is wrong and what to
//! do about it.
//!
//! ```text
//!   config ─▶ token, certificate ─▶ steps of the dial ─▶ authentication ─▶ echo ─▶ clock ─▶ upstreams
//!      │              │                     │ observer           │ session
//!      └──────────────┴────── evidence ─────┴────────────────────┘
//!                                └─▶ verdict: what is wrong, by name
//! ```
//!
//! In: what `run` is given. Out: a [`Report`], and each step as an [`Event`] when it ends. A step that fails keeps no
//! independent step from being taken; steps that were not reached are reported as such.
//!
//! The dial is that of `run` with an observer. The session gets neither the runtime nor an exchange, so that a client at
//! work is not disturbed. Nothing is tried twice.

mod certificate;
mod evidence;
mod idle_probe;
mod local;
mod observer;
mod report;
mod reporter;
mod session;
mod step;
mod text;
mod token;
mod trust;
mod upstreams;
mod verdict;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::{CertificateError, Error as TlsError};
use tokio::time::Instant;
use tunnel_ops::tls_files;
use tunnel_proto::handshake::{Greeting, InstanceSecret};
use tunnel_proto::refusal::RefusalReason;

use self::evidence::{CLOCK_BROKEN, ClockEvidence, Evidence, ResponseEvidence};
pub use self::idle_probe::IdleReport;
use self::idle_probe::Timing;
use self::observer::DialObserver;
pub use self::report::{Report, Style};
pub use self::reporter::Event;
use self::reporter::Reporter;
use self::session::{CheckSession, Checked};
pub use self::step::{StepReport, StepResult};
use self::text::{moment, printable, span};
pub use self::verdict::Verdict;
use crate::client::networks;
use crate::config::{Config, Given, ServerPath, Source};
use crate::credential::{CredentialFiles, Credentials};
use crate::dial::probe::{ProbeMode, ProbeResponse};
use crate::dial::{DialError, Dialler, RefusedLogins, StepError};
pub use crate::step::Step;

/// The longest idle time that can be requested.
pub const LONGEST_IDLE: Duration = idle_probe::LONGEST;

/// What a check does besides its usual steps.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Options {
    /// Look for the idle limit of the path, with sessions idle for up to this time.
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

/// Takes all steps, and calls `notify` as each of them ends. Each step has a time-out.
pub async fn check(
    given: Given,
    options: Options,
    notify: &mut (dyn FnMut(Event<'_>) + Send),
) -> Report {
    let mut reporter = Reporter::new(notify);
    // Before the step of TLS is timed.
    tls_files::seed_random();
    let Some(read) = local::config(given, &mut reporter) else {
        reporter.path_ends();
        reporter.not_reached(&[Step::Clock, Step::Upstream]);
        return reporter.report;
    };
    let local::Read {
        mut config,
        mut has_credential,
        source,
        targets,
        mut evidence,
    } = read;
    let is_usable = local::credential(&source, &mut evidence, &mut reporter);
    if !has_credential && reporter.report.is_ok() {
        // The credential's files were replaced between the two reads.
        config = read_again(&source, &mut reporter);
        has_credential = config.is_some();
    }
    if let Some(config) = &config {
        let is_one_of_several = targets.len() > 1;
        let refused = RefusedLogins::new(config.settings.refusal_wait);
        for (path, target) in config.servers.iter().zip(targets) {
            reporter.path = target.path;
            if is_one_of_several {
                reporter.begin_server(target.url.to_string());
            }
            let evidence = Evidence {
                token: evidence.token.clone(),
                ..target.evidence
            };
            if let Some(server) = Server::new(config, path, &refused, &source, &mut reporter) {
                match has_credential && is_usable {
                    true => Box::pin(server.check(evidence, options, &mut reporter)).await,
                    false => Box::pin(server.check_path(evidence, &mut reporter)).await,
                }
            }
            reporter.path_ends();
        }
    }
    reporter.path_ends();
    if !reporter.report.is_ok() {
        reporter.not_reached(&[Step::Clock]);
        if options.idle_probe.is_some() {
            reporter.not_reached(&[Step::Idle]);
        }
    }
    upstreams::check(&source, &mut reporter).await;
    reporter.report
}

fn read_again(source: &Source, reporter: &mut Reporter<'_>) -> Option<Config> {
    let failed = |error: &crate::config::ConfigError| {
        let faults: Vec<_> = error.faults().iter().map(ToString::to_string).collect();
        let verdict = verdict::config(&faults);
        reporter.failed(Step::Config, error.to_string(), verdict);
    };
    Config::check(source).inspect_err(failed).ok()
}

/// The server, as it is dialled for a check.
struct Server {
    dialler: Dialler,
    greeting: Greeting,
    /// The time-out of the echo, as of each step of a dial.
    limit: Duration,
    /// As it is configured.
    ping_interval: Duration,
}

impl Server {
    /// Reports the step `config` as failed, and returns `None`, if CA files or the client's certificate cannot be used.
    fn new(
        config: &Config,
        path: &ServerPath,
        refused: &RefusedLogins,
        source: &Source,
        reporter: &mut Reporter<'_>,
    ) -> Option<Self> {
        let mut random = [0; 16];
        // A check's instance is not registered, so the secret needs no strength.
        let _ = getrandom::fill(&mut random);
        let files = CredentialFiles {
            token: config.settings.token_file.clone(),
            certificate: config.client_certificate.clone(),
        };
        let dialler = Dialler::new(config, path, Arc::new(Credentials::new(files)), refused);
        let dialler = dialler.inspect_err(|error| {
            let verdict = verdict::trust(&trust::failure(error, source));
            reporter.failed(Step::Config, error.to_string(), verdict);
        });
        Some(Self {
            dialler: dialler.ok()?,
            greeting: Greeting {
                instance: InstanceSecret::from_random(random),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                session_number: 1,
                allow_from: networks(config.settings.allow_from.as_deref().unwrap_or_default()),
                is_check: true,
                stands_by: false,
                placement: None,
            },
            limit: config.settings.dial_timeout,
            ping_interval: config.settings.ping_interval,
        })
    }

    /// Checks the path to the server without a credential, up to TLS.
    async fn check_path(&self, evidence: Evidence, reporter: &mut Reporter<'_>) {
        let mut observer = DialObserver::new(evidence, Some(&mut *reporter), false);
        let probing = self
            .dialler
            .probe_observed(ProbeMode::Verified, &mut observer);
        let probed = Box::pin(probing).await;
        let (mut evidence, failed) = (observer.evidence, observer.failed);
        match probed {
            Ok(response) => add_probe(response, &mut evidence),
            Err(error) => {
                self.probe(probe_after(&error), &mut evidence).await;
                if let Some(step) = failed {
                    report_failed(step, verdict::step(&evidence, &error), reporter);
                }
            }
        }
        reporter.path_ends();
        report_clock(&evidence, reporter);
    }

    /// Checks the path to the server, a session there, and the idle limit if that is requested.
    async fn check(&self, mut evidence: Evidence, options: Options, reporter: &mut Reporter<'_>) {
        if !evidence.is_token_in_time() {
            // Such a token is not sent. Only the server's response shows whether the clock is wrong.
            self.probe(Some(ProbeMode::Unverified), &mut evidence).await;
            let token = evidence.token.as_ref();
            let words = token.map_or_else(String::new, |token| token.line(evidence.now));
            reporter.failed(Step::Token, words, verdict::token_time(&evidence));
            reporter.path_ends();
            return report_clock(&evidence, reporter);
        }
        let mut observer = DialObserver::new(evidence, Some(&mut *reporter), true);
        let dialling = self.dialler.dial_observed(&self.greeting, &mut observer);
        let dialled = Box::pin(dialling).await;
        let (mut evidence, failed) = (observer.evidence, observer.failed);
        match dialled {
            Ok(connected) => {
                let session = CheckSession::begin(connected.io, connected.unread);
                self.echo(session, &evidence, reporter).await;
            }
            Err(error) => {
                // A credential that cannot be read fails before the first step that is observed.
                let step = failed.unwrap_or_else(|| {
                    let words = printable(&error.to_string());
                    StepReport::new(error.step(), StepResult::Failed, words)
                });
                self.report_dial(step, &error, &mut evidence, reporter)
                    .await;
            }
        }
        reporter.path_ends();
        report_clock(&evidence, reporter);
        if let Some(longest) = options.idle_probe
            && reporter.report.is_ok()
        {
            Box::pin(self.idle(longest, &evidence, reporter)).await;
        }
    }

    /// Reports the step at which a dial failed.
    async fn report_dial(
        &self,
        mut step: StepReport,
        error: &DialError,
        evidence: &mut Evidence,
        reporter: &mut Reporter<'_>,
    ) {
        let probe = match error {
            DialError::Step { error, .. } => probe_after(error),
            DialError::Refused { .. } if evidence.is_response_of_another() => {
                Some(ProbeMode::Verified)
            }
            _ => None,
        };
        self.probe(probe, evidence).await;
        if matches!(error, DialError::Refused { .. }) && is_about_credential(evidence) {
            // The step to the tunnel server succeeded, and the next one failed.
            let words = std::mem::replace(&mut step.words, "the tunnel server answers".to_owned());
            let took = step.took;
            reporter.step(step);
            step = StepReport::new(Step::Authentication, StepResult::Failed, words);
            step.took = took;
        }
        report_failed(step, verdict::dial(evidence, error), reporter);
    }

    /// Sends a request without a credential and for no session, if there is a reason to, and adds the response to the
    /// evidence. A probe that fails adds nothing.
    async fn probe(&self, mode: Option<ProbeMode>, evidence: &mut Evidence) {
        if let Some(mode) = mode
            && let Ok(response) = Box::pin(self.dialler.probe(mode)).await
        {
            add_probe(response, evidence);
        }
    }

    /// Reports the echo through the session, and what the server says of the credential.
    async fn echo(
        &self,
        mut session: CheckSession,
        evidence: &Evidence,
        reporter: &mut Reporter<'_>,
    ) {
        let began = Instant::now();
        let checked = session.checked(self.limit).await;
        let took = began.elapsed();
        let echo = match checked {
            Ok(checked) => {
                reporter.step(authentication(&checked));
                let round_trip = match session.round_trip().await {
                    Some(time) => format!("round trip {:.1} ms, ", time.as_secs_f64() * 1e3),
                    None => String::new(),
                };
                let Checked {
                    version,
                    session,
                    node,
                    ..
                } = checked;
                let node = node.map_or_else(String::new, |node| format!(", node {node}"));
                let words =
                    format!("{round_trip}server version {version}, session {session}{node}");
                StepReport::new(Step::Echo, StepResult::Held, words)
            }
            Err(failure) => {
                let words = "the server accepts the credential";
                let step = Step::Authentication;
                reporter.step(StepReport::new(step, StepResult::Held, words));
                let verdict = verdict::session(evidence, &failure);
                StepReport::failed(Step::Echo, "no echo came back", verdict)
            }
        };
        reporter.step(echo.took(took));
        session.close().await;
    }

    /// Reports the idle limit of the path.
    async fn idle(&self, longest: Duration, evidence: &Evidence, reporter: &mut Reporter<'_>) {
        let began = Instant::now();
        reporter.progress(&format!(
            "sessions are kept idle, the longest for {}: please wait",
            span(longest)
        ));
        let times = idle_probe::times(longest);
        let sessions = idle_probe::sessions(times, async || self.session(evidence).await).await;
        let found = match sessions {
            Ok(sessions) => {
                let mut progress = |line: String| reporter.progress(&line);
                let probing = idle_probe::probe(sessions, Timing::default(), &mut progress);
                (probing.await).map_err(|reason| verdict::ended(evidence, reason))
            }
            Err(verdict) => Err(verdict),
        };
        let step = match found {
            Ok(found) => {
                let result = match found.is_too_slow(self.ping_interval) {
                    true => StepResult::Warning,
                    false => StepResult::Held,
                };
                let words = found.line(self.ping_interval);
                reporter.report.idle = Some(found);
                StepReport::new(Step::Idle, result, words)
            }
            Err(verdict) => StepReport::failed(Step::Idle, "no session was idle", verdict),
        };
        reporter.step(step.took(began.elapsed()));
    }

    /// Dials a further session, on a path that was reported already.
    async fn session(&self, evidence: &Evidence) -> Result<CheckSession, Verdict> {
        let evidence = Evidence {
            response: None,
            ..evidence.clone()
        };
        let mut observer = DialObserver::new(evidence, None, true);
        let dialling = self.dialler.dial_observed(&self.greeting, &mut observer);
        let dialled = Box::pin(dialling).await;
        let evidence = observer.evidence;
        let connected = dialled.map_err(|error| verdict::dial(&evidence, &error))?;
        let mut session = CheckSession::begin(connected.io, connected.unread);
        match session.checked(self.limit).await {
            Ok(_) => Ok(session),
            Err(failure) => Err(verdict::session(&evidence, &failure)),
        }
    }
}

/// The probe that tells more after a step failed: a peer without a valid certificate, or without TLS, may still say
/// what it is.
fn probe_after(error: &StepError) -> Option<ProbeMode> {
    if error.step() != Step::Tls {
        return None;
    }
    match error.inner()? {
        TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer
            | CertificateError::NotValidForName
            | CertificateError::NotValidForNameContext { .. }
            | CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
            | CertificateError::Other(_),
        ) => Some(ProbeMode::Unverified),
        TlsError::InvalidMessage(_) => Some(ProbeMode::Plain),
        _ => None,
    }
}

fn add_probe((status, fields, content): ProbeResponse, evidence: &mut Evidence) {
    let response = ResponseEvidence::read_probe(status, &fields, &content);
    let clock = ClockEvidence::read(&response, &fields, SystemTime::now());
    evidence.clock = evidence.clock.or(clock);
    evidence.probe = Some(response);
}

fn report_failed(step: StepReport, verdict: Verdict, reporter: &mut Reporter<'_>) {
    reporter.step(StepReport {
        result: StepResult::Failed,
        verdict: Some(verdict),
        ..step
    });
}

/// Whether the server has looked at the credential before it refused.
fn is_about_credential(evidence: &Evidence) -> bool {
    let response = evidence.response.as_ref();
    let response = response.filter(|response| !response.is_public);
    let refusal = response.and_then(|response| response.refusal.as_ref());
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
                    | RefusalReason::TlsRequired
                    | RefusalReason::HandshakeQueue
                    | RefusalReason::ServerDraining
                    | RefusalReason::Elsewhere
            )
        )
    })
}

/// The runtime of the credential, and whether a client that is started now would get it.
fn authentication(checked: &Checked) -> StepReport {
    let (account, runtime) = (&checked.account, &checked.runtime);
    let mut words = format!("runtime {runtime} of account {account}");
    if let Some(left) = checked.expires_in {
        words += &format!(", the credential is valid for {} more", span(left));
    }
    if let Some(conflict) = &checked.conflict {
        let verdict = verdict::conflict(conflict);
        return StepReport::failed(Step::Authentication, words, verdict);
    }
    if let Some(holder) = &checked.holder {
        words += &format!(
            "; the instance {holder} has it now, and would lose it to a client that is started"
        );
    }
    StepReport::new(Step::Authentication, StepResult::Held, words)
}

/// Reports this clock beside the server's, if the server itself has answered.
fn report_clock(evidence: &Evidence, reporter: &mut Reporter<'_>) {
    let Some(clock) = evidence.clock.filter(|clock| clock.is_servers) else {
        return;
    };
    let side = if clock.is_ahead() {
        "ahead of"
    } else {
        "behind"
    };
    let (difference, there) = (span(clock.difference()), moment(clock.there));
    let words = format!("{difference} {side} the server's, which says {there}");
    if clock.difference() >= CLOCK_BROKEN {
        let verdict = verdict::clock_off(evidence, "this machine's clock is not the server's");
        return reporter.failed(Step::Clock, words, verdict);
    }
    let (result, words) = match clock.is_off() {
        true => (StepResult::Warning, words),
        false => (
            StepResult::Held,
            "differs from the server's by less than half a minute".to_owned(),
        ),
    };
    reporter.step(StepReport::new(Step::Clock, result, words));
}
