//! Errors of decoding. One variant for each rule that a message can break.
//!
//! Errors contain numbers only, never bytes that a peer sent, because they are logged and shown.

use thiserror::Error;

/// Why a message was refused. The stream cannot be used afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The message starts with framing indicator 0 or 1.
    #[error("message has the known-length form, only the indeterminate-length form is accepted")]
    KnownLength,
    /// The framing indicator is unknown in RFC 9292.
    #[error("message starts with unknown framing indicator {0}")]
    UnknownFraming(u64),
    /// A response arrived where a request was expected.
    #[error("message is a response where a request was expected")]
    RequestExpected,
    /// A request arrived where a response was expected.
    #[error("message is a request where a response was expected")]
    ResponseExpected,

    /// A head exceeds [`Limits::head_bytes`](super::Limits::head_bytes).
    #[error("head is larger than {0} bytes")]
    HeadTooLarge(usize),
    /// A trailer section exceeds [`Limits::head_bytes`](super::Limits::head_bytes).
    #[error("trailer section is larger than {0} bytes")]
    TrailersTooLarge(usize),
    /// A section exceeds [`Limits::fields`](super::Limits::fields).
    #[error("section has more than {0} fields")]
    TooManyFields(usize),
    /// A section has more pseudo-fields than any valid message.
    #[error("section has more than {0} pseudo-fields")]
    TooManyPseudoFields(usize),
    /// A response exceeds [`Limits::informational`](super::Limits::informational).
    #[error("more than {0} informational responses")]
    TooManyInformational(usize),

    /// The method is not a token.
    #[error("method is not a token")]
    Method,
    /// The scheme is neither `http` nor `https`.
    #[error("scheme is neither http nor https")]
    Scheme,
    /// The authority has a byte that is not visible ASCII.
    #[error("authority has a byte that is not visible ascii")]
    Authority,
    /// The path is neither `*` nor starts with `/`, or has a byte that is not visible ASCII or is `#`.
    #[error("path is neither * nor visible ascii that starts with / and has no #")]
    Path,
    /// The status is not within 100 to 599.
    #[error("status {0} is outside of 100 to 599")]
    Status(u64),
    /// Status 101: an upgrade is a `CONNECT` in this protocol, answered with a final status.
    #[error("status 101 is not allowed, an upgrade is a CONNECT")]
    SwitchingProtocols,

    /// A field name is not a token.
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
    /// A connection-specific field.
    #[error("field {0} is connection-specific")]
    ConnectionField(&'static str),
    /// A `host` field: the authority is part of the control data.
    #[error("field host repeats the authority")]
    HostField,
    /// `te` with another value than `trailers`.
    #[error("field te has another value than trailers")]
    Te,

    /// A pseudo-field after a regular one.
    #[error("pseudo-field after a regular field")]
    PseudoFieldAfterField,
    /// A pseudo-field is repeated.
    #[error("pseudo-field is repeated")]
    PseudoFieldRepeated,
    /// A pseudo-field such as `:method`, whose value is part of the control data.
    #[error("pseudo-field repeats control data")]
    PseudoFieldOfControl,
}
