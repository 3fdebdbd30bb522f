//! The error of a step of a dial.

use tunnel_ops::connect::step;

use super::proxy_error::ProxyError;
use super::upgrade::NotATunnel;
use crate::step::Step;

/// A step that failed.
pub(crate) type StepError = step::StepError<Step>;

/// The proxy's error, if the step failed by one.
pub(crate) fn proxy_error(error: &StepError) -> Option<&ProxyError> {
    error.inner()
}

/// Whether the server switched to another protocol than the tunnel's.
pub(crate) fn is_not_a_tunnel(error: &StepError) -> bool {
    error.inner::<NotATunnel>().is_some()
}
