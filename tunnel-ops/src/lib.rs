//! What both programs need in order to be run: configuration files and their values, TLS files,
//! logs, the admin listener, signals, files that change, owned tasks, timers.
//!
//! In come files, flags, signals and HTTP requests of the operator; out go checked values, TLS
//! configurations, log lines and handles. Nothing here knows of sessions, routes or runtimes, and a
//! file enters only when both programs use it and its name says one job.

pub mod admin;
pub mod alarm;
pub mod authority;
pub mod config_file;
pub mod config_value;
pub mod connect;
pub mod descriptors;
pub mod faults;
pub mod flags;
pub mod setting_origin;
pub mod settings;
pub mod signals;
pub mod task;
pub mod telemetry;
pub mod tls_files;
pub mod watch;
