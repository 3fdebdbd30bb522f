//! The access log of the servers that run in this process, kept by path.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
};

use serde_json::Value;
use tunnel_http::access_log::AccessLog;
use tunnel_ops::telemetry::{LineSink, LogFormat};

/// The path whose line makes the access log panic, on the task that writes it.
pub(crate) const PANIC_PATH: &str = "/panic-on-purpose";

/// The last line about each path.
static LOGGED: LazyLock<Mutex<HashMap<String, Line>>> = LazyLock::new(Mutex::default);

/// One line, by field.
pub(crate) type Line = HashMap<String, String>;

/// The last line of the access log about a path.
pub(crate) fn logged(path: &str) -> Option<Line> {
    LOGGED.lock().unwrap().get(path).cloned()
}

/// An access log that is kept by path, and panics on one path.
pub(crate) fn access_log() -> AccessLog {
    AccessLog::new(LineSink::to_function(LogFormat::Json, |line| {
        let line: HashMap<String, Value> = serde_json::from_slice(line).unwrap();
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let line: Line = line
            .into_iter()
            .map(|(key, value)| (key, text(value)))
            .collect();
        if let Some(path) = line.get("path") {
            assert_ne!(path, PANIC_PATH, "on purpose");
            LOGGED.lock().unwrap().insert(path.clone(), line);
        }
    }))
}
