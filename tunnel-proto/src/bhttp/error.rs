//! Why received bytes are not a message of the wire. One variant for each fact.
//!
//! Numbers only, never bytes that a peer sent: the errors are logged and shown.

use thiserror::Error;

/// Why a message was refused. The stream cannot be used after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The message starts with framing indicator 0 or 1.
    #[error("message has the known-length form, this wire uses the indeterminate-length form")]
    KnownLength,
    /// The framing indicator is none of RFC 9292.
    #[error("message starts with unknown framing indicator {0}")]
    UnknownFraming(u64),
    /// A response came where a request was due.
    #[error("message is a response where a request was due")]
    RequestExpected,
    /// A request came where a response was due.
    #[error("message is a request where a response was due")]
    ResponseExpected,

    /// [`Limits::head_bytes`](super::Limits::head_bytes) passed by a head.
    #[error("head is larger than {0} bytes")]
    HeadTooLarge(usize),
    /// [`Limits::head_bytes`](super::Limits::head_bytes) passed by a trailer section.
    #[error("trailer section is larger than {0} bytes")]
    TrailersTooLarge(usize),
    /// [`Limits::fields`](super::Limits::fields) passed.
    #[error("section has more than {0} fields")]
    TooManyFields(usize),
    /// More pseudo-fields than any message of the wire has.
    #[error("section has more than {0} pseudo-fields")]
    TooManyPseudoFields(usize),
    /// [`Limits::informational`](super::Limits::informational) passed.
    #[error("more than {0} informational responses")]
    TooManyInformational(usize),

    /// The method is no token.
    #[error("method is not a token")]
    Method,
    /// The scheme is neither `http` nor `https`.
    #[error("scheme is neither http nor https")]
    Scheme,
    /// The authority has a byte that is not visible ASCII.
    #[error("authority has a byte that is not visible ascii")]
    Authority,
    /// The path is empty, starts with neither `/` nor is `*`, or has a byte that may not be sent.
    #[error("path is neither * nor visible ascii that starts with / and has no #")]
    Path,
    /// The status is outside of 100 to 599.
    #[error("status {0} is outside of 100 to 599")]
    Status(u64),
    /// Status 101: an upgrade is a `CONNECT` on this wire, answered by a final status.
    #[error("status 101 does not exist on this wire")]
    SwitchingProtocols,

    /// A field name is no token.
    #[error("field name is not a token")]
    FieldName,
    /// A field name has upper-case letters.
    #[error("field name is not lower case")]
    FieldNameCase,
    /// A field value has a control byte other than a tab.
    #[error("field value has a control byte")]
    FieldValue,
    /// A field value has white space around it.
    #[error("field value starts or ends with white space")]
    FieldValueSpace,
    /// A field that belongs to one connection and never travels.
    #[error("field {0} belongs to a connection and cannot travel")]
    ConnectionField(&'static str),
    /// A `host` field: the authority stands in the control data.
    #[error("field host stands beside the authority")]
    HostField,
    /// `te` with another value than `trailers`.
    #[error("field te has another value than trailers")]
    Te,

    /// A pseudo-field after a regular one.
    #[error("pseudo-field after a regular field")]
    PseudoFieldAfterField,
    /// The same pseudo-field twice.
    #[error("pseudo-field is repeated")]
    PseudoFieldRepeated,
    /// A pseudo-field that says what control data says.
    #[error("pseudo-field repeats control data")]
    PseudoFieldOfControl,
}
