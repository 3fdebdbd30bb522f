//! What every program needs for its operation: configuration files and values, TLS files, logs, the admin
//! listener, signals, watched files, owned tasks, permits.
//!
//! In: files, flags, signals and HTTP requests of the operator. Out: checked values, TLS configurations,
//! log lines and handles. Nothing here knows of sessions, routes or runtimes. A module is added only when
//! two crates use it and it has a single purpose.

pub mod admin;
pub mod alarm;
pub mod authority;
pub mod build;
pub mod byte_order_mark;
pub mod config_file;
pub mod config_value;
pub mod connect;
pub mod descriptors;
pub mod evicting;
pub mod faults;
pub mod flags;
pub mod https;
pub mod inherited;
pub mod metrics;
pub mod read_ahead;
pub mod settings;
pub mod shell;
pub mod signals;
pub mod socket;
pub mod task;
pub mod telemetry;
pub mod terminal;
pub mod timestamp;
pub mod tls_files;
pub mod watch;
mod write_through;
