//! The locks of the registry, the directory and the tunnels.
//!
//! In the program they are parking_lot's. In this crate's tests they are too, but a test may run them under a race checker
//! that tries different thread schedules (`registry/races.rs`), so that the registry itself is checked and not a model.

#[cfg(test)]
mod ordered;

#[cfg(test)]
pub(crate) use self::ordered::{Mutex, RwLock, without_after};
#[cfg(not(test))]
pub(crate) use parking_lot::{Mutex, RwLock};
