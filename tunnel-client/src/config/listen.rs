//! The checked configuration of `serve`: a listener and routes, without a tunnel.
//!
//! In: a [`Source`], as for a tunnel, so that one file can be used for both. Settings that only a tunnel needs are ignored.

use tunnel_http::answer::ProblemPage;
use tunnel_ops::telemetry::tracer::TracerSettings;
use tunnel_ops::tls_files::Identity;
use tunnel_routing::config::{RouteList, UpstreamOptions};
use tunnel_routing::url::UpstreamUrl;

use super::{
    CertificateFiles, ConfigError, ConfigFault, Settings, Source, check_dns_servers, defaults,
    reload, setting, traces,
};

/// The configuration of `serve`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeConfig {
    /// The value of each setting. Those that only a tunnel needs are unused.
    pub settings: Settings,
    /// The listener's certificate, read again when it changes; `None` for plain HTTP. Default none.
    pub certificate: Option<CertificateFiles>,
    /// The page that browsers get for a problem. Default: the built-in one.
    pub problem_page: ProblemPage,
    /// All routes, with that of `--upstream`.
    pub routes: RouteList,
    /// How exchanges are traced; `None` if they are not. Default none.
    pub tracer: Option<TracerSettings>,
}

impl ServeConfig {
    /// A configuration with all defaults, and one route for everything.
    #[must_use]
    pub fn new(upstream: UpstreamUrl) -> Self {
        let settings = Settings::default();
        let options = UpstreamOptions::of(&defaults(&settings), None);
        Self {
            settings,
            certificate: None,
            problem_page: ProblemPage::default(),
            routes: RouteList::default().with_default(upstream, options),
            tracer: None,
        }
    }

    /// Checks all settings that `serve` needs, and reads the files that they name.
    ///
    /// # Errors
    /// Contains all faults.
    pub fn check(source: &Source) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let certificate = certificate(source, &mut faults);
        check_dns_servers(source, &mut faults);
        let settings = source.settings();
        let problem_page = problem_page(source, &settings, &mut faults);
        let variable = |name: &str| std::env::var_os(name);
        let tracer = traces::check(source, &settings, variable, &mut faults);
        match (reload::check(source), problem_page) {
            (Ok(routes), Some(problem_page)) if faults.is_empty() => Ok(Self {
                settings,
                certificate,
                problem_page,
                routes,
                tracer,
            }),
            (Ok(_), _) => Err(source.faults(faults)),
            (Err(more), _) => {
                faults.extend(more.into_vec());
                Err(source.faults(faults))
            }
        }
    }
}

fn problem_page(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<ProblemPage> {
    let Some(path) = &settings.problem_page else {
        return Some(ProblemPage::default());
    };
    let page = ProblemPage::load(path);
    page.map_err(|error| faults.push(source.fault(&setting::problem_page, error.to_string())))
        .ok()
}

fn certificate(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<CertificateFiles> {
    let (alone, problem) = match (&source.listen_cert, &source.listen_key) {
        (None, None) => return None,
        (Some(cert), Some(key)) => {
            Identity::load_or_fault(cert, key, faults)?;
            let (cert, key) = (cert.clone(), key.clone());
            return Some(CertificateFiles { cert, key });
        }
        (Some(_), None) => (
            &setting::listen_cert,
            "its key is missing: give --listen-key as well",
        ),
        (None, Some(_)) => (
            &setting::listen_key,
            "its certificate is missing: give --listen-cert as well",
        ),
    };
    faults.push(source.fault(alone, problem));
    None
}
