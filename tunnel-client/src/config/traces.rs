//! Whether exchanges are traced, and where their spans are sent.

use std::ffi::OsString;

use tunnel_ops::telemetry::tracer::{GivenTracing, TracerSettings, TracingChoice};

use super::{ConfigFault, Settings, Source, setting};

/// The settings of the tracer, if it is on. `variable` looks up a variable of the environment.
pub(super) fn check(
    source: &Source,
    settings: &Settings,
    variable: impl Fn(&str) -> Option<OsString>,
    faults: &mut Vec<ConfigFault>,
) -> Option<TracerSettings> {
    let given = GivenTracing {
        collector: settings.otlp_endpoint.as_ref(),
        headers_file: settings.otlp_headers_file.as_deref(),
        ca_file: settings.otlp_ca_file.as_deref(),
        ratio: settings.trace_ratio,
    };
    match TracerSettings::check(&given, variable) {
        Ok(TracingChoice::On(settings)) => return Some(*settings),
        Ok(TracingChoice::Off) => {}
        Ok(TracingChoice::NoCollector) => {
            let unused = [
                (&setting::otlp_headers_file, given.headers_file.is_some()),
                (&setting::otlp_ca_file, given.ca_file.is_some()),
                (&setting::trace_ratio, given.ratio.is_some()),
            ];
            let unused = unused.into_iter().filter(|(_, is_given)| *is_given);
            faults.extend(unused.map(|(setting, _)| {
                let problem =
                    "it has no effect without --otlp-endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT";
                source.fault(setting, problem)
            }));
        }
        Err(more) => faults.extend(more.into_iter().map(ConfigFault::Tracer)),
    }
    None
}
