//! The locks under which runtimes change hands.
//!
//! In the program they are parking_lot's and nothing else. In this crate's own tests they are those
//! too, but a test may have them try every order in which several threads come to them
//! (`registry/races.rs`): so what is tried is the registry itself, and no model of it.

#[cfg(test)]
mod ordered;

#[cfg(test)]
pub(crate) use self::ordered::{Mutex, RwLock, without_after};
#[cfg(not(test))]
pub(crate) use parking_lot::{Mutex, RwLock};
