//! The settings of a tracer: those of the program, and the standard variables of OpenTelemetry for what these leave open.
//!
//! In: the given settings, and the environment. Out: checked settings, or all faults. The standard variables are read
//! only if there is a collector: without one, they are for other programs. No error repeats a header's value.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::Sampler;
use crate::byte_order_mark::without_mark;
use crate::config_value::{ValueError, one_of};
use crate::faults::FaultyFile;
use crate::tls_files::{Roots, TlsFilesError};

/// The part of the exchanges that is traced unless set: a node with 10,000 exchanges in a second sends about 200 spans in a
/// second then, which any collector can take, and which costs the node next to nothing.
const DEFAULT_RATIO: f64 = 0.01;

/// Where a collector takes spans, below the URL that is configured for all signals.
const TRACES_PATH: &str = "/v1/traces";

/// Largest file of headers, in bytes.
const HEADERS_BYTES: u64 = 16 * 1024;

const COLLECTOR: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_COLLECTOR: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// The URL of an OpenTelemetry collector that takes OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl(Uri);

/// A part of all: from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio(f64);

/// What the settings of a program say.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivenTracing<'a> {
    /// The collector.
    pub collector: Option<&'a CollectorUrl>,
    /// The file with header fields for it.
    pub headers_file: Option<&'a Path>,
    /// CA certificates beside the system's.
    pub ca_file: Option<&'a Path>,
    /// The part of the exchanges that is traced.
    pub ratio: Option<f64>,
}

/// Whether there is tracing.
#[derive(Debug)]
pub enum TracingChoice {
    /// It is on.
    On(Box<TracerSettings>),
    /// A standard variable turns it off.
    Off,
    /// No collector is named.
    NoCollector,
}

/// The checked settings of a tracer.
#[derive(Debug, Clone)]
pub struct TracerSettings {
    /// Where spans are posted.
    pub(super) url: Uri,
    /// What is sent along, all of it sensitive.
    pub(super) headers: HeaderMap,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) sampler: Sampler,
    /// Attributes of the program, by which it is known to the collector.
    pub(super) attributes: Vec<(String, String)>,
}

/// One fault of the settings of a tracer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracerFault {
    /// A standard variable.
    #[error("the environment variable {name}: {problem}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The file with header fields.
    #[error("{}: {problem}", .path.display())]
    Headers {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The CA file.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
}

impl TracerFault {
    /// The file at fault, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<FaultyFile<'_>> {
        match self {
            Self::Headers { path, .. } => Some(path.as_path().into()),
            Self::Tls(error) => error.file(),
            Self::Variable { .. } => None,
        }
    }
}

impl TracerSettings {
    /// Where spans are sent; contains no secret.
    #[must_use]
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// Which exchanges are traced.
    #[must_use]
    pub fn sampler(&self) -> Sampler {
        self.sampler
    }

    /// Checks the settings, and reads the files that they name. `variable` looks up a variable of the environment.
    ///
    /// # Errors
    /// All faults.
    pub fn check(
        given: &GivenTracing<'_>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<TracingChoice, Vec<TracerFault>> {
        let mut variables = Variables {
            look_up: &variable,
            faults: Vec::new(),
        };
        let Some(url) = variables.traces_url(given.collector) else {
            return match variables.faults.is_empty() {
                true => Ok(TracingChoice::NoCollector),
                false => Err(variables.faults),
            };
        };
        if variables.is_off() {
            return Ok(TracingChoice::Off);
        }
        variables.check_protocol();
        let mut headers = variables.headers();
        let sampler = variables.sampler(given.ratio);
        let attributes = variables.attributes();
        let mut faults = variables.faults;
        if let Some(path) = given.headers_file {
            match read_headers(path) {
                Ok(more) => headers.extend(more),
                Err(problem) => faults.push(TracerFault::Headers {
                    path: path.to_owned(),
                    problem,
                }),
            }
        }
        if let Some(path) = given.ca_file
            && let Err(fault) = Roots::load(Some(path))
        {
            faults.push(fault.into());
        }
        match faults.is_empty() {
            true => Ok(TracingChoice::On(Box::new(Self {
                url,
                headers,
                ca_file: given.ca_file.map(Path::to_owned),
                sampler,
                attributes,
            }))),
            false => Err(faults),
        }
    }
}

/// Reads the standard variables, and collects their faults.
struct Variables<'a> {
    look_up: &'a dyn Fn(&str) -> Option<OsString>,
    faults: Vec<TracerFault>,
}

impl Variables<'_> {
    /// The value of a variable. An empty one counts as not set, as the standard has it.
    fn get(&mut self, name: &'static str) -> Option<String> {
        let value = (self.look_up)(name).filter(|value| !value.is_empty())?;
        match value.into_string() {
            Ok(value) => Some(value),
            Err(_) => self.fault(name, "it is not valid UTF-8"),
        }
    }

    fn fault<T>(&mut self, name: &'static str, problem: impl Into<String>) -> Option<T> {
        self.faults.push(TracerFault::Variable {
            name,
            problem: problem.into(),
        });
        None
    }

    fn parsed<T: FromStr<Err = ValueError>>(&mut self, name: &'static str) -> Option<T> {
        match self.get(name)?.parse() {
            Ok(value) => Some(value),
            Err(error) => self.fault(name, error.to_string()),
        }
    }

    /// Where spans are posted: what the program's setting says, then the variable for spans, then that for all signals.
    fn traces_url(&mut self, given: Option<&CollectorUrl>) -> Option<Uri> {
        if let Some(given) = given {
            return Some(given.for_traces());
        }
        if let Some(CollectorUrl(exact)) = self.parsed(TRACES_COLLECTOR) {
            return Some(exact);
        }
        let all: CollectorUrl = self.parsed(COLLECTOR)?;
        Some(all.for_traces())
    }

    fn is_off(&mut self) -> bool {
        let is_disabled = match self.get(DISABLED).as_deref() {
            None => false,
            Some(text) if text.eq_ignore_ascii_case("true") => true,
            Some(text) if text.eq_ignore_ascii_case("false") => false,
            Some(_) => {
                let expected = format!("expected {}", one_of(&["true", "false"]));
                self.fault::<()>(DISABLED, expected);
                false
            }
        };
        let is_none = match self.get(EXPORTER).as_deref() {
            None | Some("otlp") => false,
            Some("none") => true,
            Some(_) => {
                let expected = format!("expected {}", one_of(&["otlp", "none"]));
                self.fault::<()>(EXPORTER, expected);
                false
            }
        };
        is_disabled || is_none
    }

    fn check_protocol(&mut self) {
        for name in [TRACES_PROTOCOL, PROTOCOL] {
            let protocol = self.get(name);
            if protocol.is_some_and(|protocol| protocol != "http/protobuf") {
                let problem = "only `http/protobuf` is spoken, for which collectors have the port 4318: name it in \
                               --otlp-endpoint, and set this variable to `http/protobuf`, or OTEL_SDK_DISABLED to `true`";
                self.fault::<()>(name, problem);
            }
        }
    }

    fn headers(&mut self) -> HeaderMap {
        let name = match self.get(TRACES_HEADERS) {
            Some(_) => TRACES_HEADERS,
            None => HEADERS,
        };
        let mut headers = HeaderMap::new();
        for (key, value) in self.pairs(name) {
            match header(&key, &value) {
                Some((key, value)) => {
                    headers.insert(key, value);
                }
                None => {
                    let problem = format!("`{}` cannot be sent as a header", key.escape_debug());
                    self.fault::<()>(name, problem);
                }
            }
        }
        headers
    }

    fn sampler(&mut self, ratio: Option<f64>) -> Sampler {
        let (follows_parent, fixed) = match self.get(SAMPLER).as_deref() {
            None | Some("parentbased_traceidratio") => (true, None),
            Some("traceidratio") => (false, None),
            Some("always_on") => (false, Some(1.0)),
            Some("always_off") => (false, Some(0.0)),
            Some("parentbased_always_on") => (true, Some(1.0)),
            Some("parentbased_always_off") => (true, Some(0.0)),
            Some(_) => {
                let words = one_of(&[
                    "always_on",
                    "always_off",
                    "traceidratio",
                    "parentbased_always_on",
                    "parentbased_always_off",
                    "parentbased_traceidratio",
                ]);
                self.fault::<()>(SAMPLER, format!("expected {words}"));
                (true, None)
            }
        };
        let ratio = ratio.or(fixed);
        let ratio = ratio.or_else(|| self.parsed(SAMPLER_ARGUMENT).map(|Ratio(ratio)| ratio));
        Sampler {
            follows_parent,
            ratio: ratio.unwrap_or(DEFAULT_RATIO),
        }
    }

    fn attributes(&mut self) -> Vec<(String, String)> {
        let mut attributes = self.pairs(ATTRIBUTES);
        if let Some(name) = self.get(SERVICE_NAME) {
            attributes.retain(|(key, _)| key != "service.name");
            attributes.push(("service.name".to_owned(), name));
        }
        attributes
    }

    /// A list `key=value,key=value` whose values are percent-encoded.
    fn pairs(&mut self, name: &'static str) -> Vec<(String, String)> {
        let list = self.get(name).unwrap_or_default();
        let mut pairs = Vec::new();
        for entry in list
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let pair = entry
                .split_once('=')
                .filter(|(key, _)| !key.trim().is_empty());
            let pair = pair.and_then(|(key, value)| {
                let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
                Some((key.trim().to_owned(), value.into_owned()))
            });
            match pair {
                Some(pair) => pairs.push(pair),
                None => {
                    let problem = "expected `key=value`, with commas between several, and values percent-encoded";
                    self.fault::<()>(name, problem);
                }
            }
        }
        pairs
    }
}

/// A header field for the collector, of which no log shows the value.
fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// Reads `Name: value` from each line of a file.
fn read_headers(path: &Path) -> Result<HeaderMap, String> {
    let unreadable = |error: std::io::Error| format!("the headers cannot be read: {error}");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(HEADERS_BYTES + 1).read_to_string(&mut text);
    if read.map_err(unreadable)? as u64 > HEADERS_BYTES {
        return Err(format!("the file is larger than {HEADERS_BYTES} bytes"));
    }
    let mut headers = HeaderMap::new();
    for (index, line) in without_mark(&text).lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let field = line.split_once(':');
        let field = field.and_then(|(name, value)| header(name.trim(), value.trim()));
        let (name, value) = field.ok_or_else(|| {
            format!(
                "line {}: expected a header such as `Authorization: Bearer …`",
                index + 1
            )
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

impl CollectorUrl {
    fn for_traces(&self) -> Uri {
        let base = self.0.path().trim_end_matches('/');
        let mut parts = self.0.clone().into_parts();
        parts.path_and_query = PathAndQuery::try_from(format!("{base}{TRACES_PATH}")).ok();
        Uri::from_parts(parts).unwrap_or_else(|_| self.0.clone())
    }
}

impl FromStr for CollectorUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = |reason: &str| {
            ValueError::new(format!(
                "expected a URL such as `http://collector:4318`: {reason}"
            ))
        };
        let uri: Uri = text.parse().map_err(|_| expected("this is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| expected("it has no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(expected(
                "it must have neither a password nor a query; put credentials into --otlp-headers-file",
            ));
        }
        match uri.scheme_str() {
            Some("http" | "https") => Ok(Self(uri)),
            _ => Err(expected("the scheme must be `http` or `https`")),
        }
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Ratio {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let ratio = text.parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        let expected = || ValueError::new("expected a number from 0 to 1, such as `0.05`");
        ratio.map(Self).ok_or_else(expected)
    }
}

crate::text_value!(CollectorUrl);
crate::text_value!(
    Ratio as f64,
    |ratio| ratio.0,
    f64::to_string,
    "0 to 1".to_owned()
);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn check(
        given: &GivenTracing<'_>,
        variables: &[(&str, &str)],
    ) -> Result<TracingChoice, Vec<String>> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let look_up = |name: &str| variables.get(name).map(OsString::from);
        let faults = |faults: Vec<TracerFault>| faults.iter().map(ToString::to_string).collect();
        TracerSettings::check(given, look_up).map_err(faults)
    }

    fn on(given: &GivenTracing<'_>, variables: &[(&str, &str)]) -> TracerSettings {
        match check(given, variables) {
            Ok(TracingChoice::On(settings)) => *settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_collector_no_variable_matters() {
        let choice = check(
            &GivenTracing::default(),
            &[(SAMPLER, "mine"), (COLLECTOR, "")],
        );
        assert!(matches!(choice, Ok(TracingChoice::NoCollector)));
    }

    #[test]
    fn the_setting_comes_before_the_variable_for_spans_and_that_before_the_one_for_all() {
        let all = (COLLECTOR, "http://all:4318/base/");
        let traces = (TRACES_COLLECTOR, "https://traces/exact");
        let none = GivenTracing::default();
        assert_eq!(on(&none, &[all]).url, "http://all:4318/base/v1/traces");
        assert_eq!(on(&none, &[all, traces]).url, "https://traces/exact");
        let own = "http://own:4318".parse().unwrap();
        let given = GivenTracing {
            collector: Some(&own),
            ..none
        };
        assert_eq!(on(&given, &[all, traces]).url, "http://own:4318/v1/traces");
        for off in [(DISABLED, "true"), (EXPORTER, "none")] {
            assert!(matches!(check(&given, &[off]), Ok(TracingChoice::Off)));
        }
    }

    #[test]
    fn the_sampler_is_parent_based_with_a_small_ratio_unless_set() {
        let own = "http://own:4318".parse().unwrap();
        for (sampler, argument, ratio, expected) in [
            ("", "", None, (true, DEFAULT_RATIO)),
            ("", "0.5", None, (true, 0.5)),
            ("traceidratio", "0.5", Some(0.25), (false, 0.25)),
            ("always_on", "0.5", None, (false, 1.0)),
            ("parentbased_always_off", "", None, (true, 0.0)),
        ] {
            let given = GivenTracing {
                collector: Some(&own),
                ratio,
                ..GivenTracing::default()
            };
            let settings = on(&given, &[(SAMPLER, sampler), (SAMPLER_ARGUMENT, argument)]);
            let Sampler {
                follows_parent,
                ratio,
            } = settings.sampler;
            assert_eq!((follows_parent, ratio), expected, "{sampler}");
        }
    }

    #[test]
    fn headers_come_from_the_variable_and_the_file_and_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        std::fs::write(&path, "Authorization: Bearer s3cret\n\nx-b: 3\n").unwrap();
        let own = "http://own:4318".parse().unwrap();
        let given = GivenTracing {
            collector: Some(&own),
            headers_file: Some(&path),
            ..GivenTracing::default()
        };
        let settings = on(&given, &[(HEADERS, "x-a=s3cret%201, x-b=2")]);
        assert_eq!(settings.headers["authorization"], "Bearer s3cret");
        assert_eq!(settings.headers["x-a"], "s3cret 1");
        assert_eq!(settings.headers["x-b"], "3");
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn the_name_of_the_service_overrides_the_attribute() {
        let collector = (COLLECTOR, "http://all:4318");
        let attributes = (ATTRIBUTES, "service.name=a,zone=eu%2C1");
        let settings = on(
            &GivenTracing::default(),
            &[collector, attributes, (SERVICE_NAME, "b")],
        );
        let expected = [("zone", "eu,1"), ("service.name", "b")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(settings.attributes, expected);
    }

    #[test]
    fn each_fault_names_its_variable_or_file_and_no_secret() {
        let none = GivenTracing::default();
        let faults = check(&none, &[(COLLECTOR, "collector:4317")]).unwrap_err();
        assert!(faults[0].starts_with("the environment variable OTEL_EXPORTER_OTLP_ENDPOINT: "));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        std::fs::write(&path, "x: 1\ns3cret\n").unwrap();
        let given = GivenTracing {
            headers_file: Some(&path),
            ..none
        };
        let variables = [
            (COLLECTOR, "http://all:4318"),
            (DISABLED, "yes"),
            (EXPORTER, "jaeger"),
            (PROTOCOL, "grpc"),
            (HEADERS, "s3cret"),
            (SAMPLER, "mine"),
            (SAMPLER_ARGUMENT, "2"),
            (ATTRIBUTES, "=x"),
        ];
        let faults = check(&given, &variables).unwrap_err();
        for (name, _) in &variables[1..] {
            assert!(
                faults.iter().any(|fault| fault.contains(name)),
                "{name}: {faults:?}"
            );
        }
        let of_file = faults
            .iter()
            .find(|fault| fault.contains("headers: line 2"));
        assert!(of_file.is_some(), "{faults:?}");
        assert!(!faults.concat().contains("s3cret"), "{faults:?}");
        for url in ["ftp://a", "http://u:p@a", "http://a/?key=x", "a"] {
            assert!(url.parse::<CollectorUrl>().is_err(), "{url}");
        }
    }
}
