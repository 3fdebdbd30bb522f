//! The rules of HTTP/1 that a request can break, with the reason and the text of the response.
//!
//! A violation contains no bytes of the request, so it can be logged, counted and sent to the client.

use tunnel_proto::problem::Reason;

/// A rule of HTTP/1.1, or of this gateway, that a request breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "`detail` says in words what each name means")]
pub enum Violation {
    // The request line.
    LeadingEmptyLine,
    RequestLine,
    MethodSyntax,
    MethodTooLong,
    MethodRefused,
    TargetCharacter,
    TargetFragment,
    TargetForm,
    TargetAuthority,
    TargetTooLong,
    VersionSyntax,
    VersionUnsupported,
    // Lines and fields.
    BareCarriageReturn,
    BareLineFeed,
    HeadTooLarge,
    TooManyFields,
    FieldFolded,
    FieldWithoutColon,
    FieldNameEmpty,
    FieldNameSpace,
    FieldNameSyntax,
    FieldNameUnderscore,
    FieldNameTooLong,
    FieldValueCharacter,
    // Fields that say where the request goes and where it ends.
    HostMissing,
    HostRepeated,
    HostInvalid,
    ContentLengthInvalid,
    ContentLengthRepeated,
    TransferEncodingInvalid,
    TransferEncodingRepeated,
    TransferEncodingUnknown,
    TransferEncodingInHttp10,
    TwoLengths,
    UpgradeWithBody,
    // The chunked body.
    ChunkSize,
    ChunkSizeTooLong,
    ChunkExtension,
    ChunkExtensionTooLong,
    ChunkExtensionsTooLong,
    ChunkLineEnding,
    ChunkDataEnding,
    TrailerForbidden,
    TrailersTooLarge,
}

impl Violation {
    /// The reason of the response. The connection always closes after it, since the end of an invalid request is not
    /// known.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::MethodTooLong => Reason::MethodUnsupported,
            Self::MethodRefused => Reason::MethodNotAllowed,
            Self::TargetTooLong => Reason::UriTooLong,
            Self::VersionUnsupported => Reason::VersionUnsupported,
            Self::TransferEncodingUnknown => Reason::CodingUnsupported,
            Self::HeadTooLarge
            | Self::TooManyFields
            | Self::FieldNameTooLong
            | Self::TrailersTooLarge => Reason::HeadTooLarge,
            _ => Reason::RequestMalformed,
        }
    }

    /// The description: part of a sentence, without a capital and without a full stop.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::LeadingEmptyLine => "more than one empty line before the request line",
            Self::RequestLine => "request line is not method, target and version",
            Self::MethodSyntax => "method is not a token",
            Self::MethodTooLong => "method is longer than any that is known",
            Self::MethodRefused => "method is not served here",
            Self::TargetCharacter => "target holds a character that must be encoded",
            Self::TargetFragment => "target has a fragment",
            Self::TargetForm => "target is neither a path nor an absolute http URL",
            Self::TargetAuthority => "authority in the target is not a host and port",
            Self::TargetTooLong => "target is too long",
            Self::VersionSyntax => "version of the protocol is malformed",
            Self::VersionUnsupported => "version of the protocol is not 1.0 or 1.1",
            Self::BareCarriageReturn => "carriage return without a line feed",
            Self::BareLineFeed => "line feed without a carriage return",
            Self::HeadTooLarge => "head of the request is too large",
            Self::TooManyFields => "too many header fields",
            Self::FieldFolded => "field line starts with a space",
            Self::FieldWithoutColon => "field line without a colon",
            Self::FieldNameEmpty => "field without a name",
            Self::FieldNameSpace => "space between field name and colon",
            Self::FieldNameSyntax => "field name is not a token",
            Self::FieldNameUnderscore => "field name has an underscore",
            Self::FieldNameTooLong => "field name is too long",
            Self::FieldValueCharacter => "field value holds a control character",
            Self::HostMissing => "no host field",
            Self::HostRepeated => "more than one host field",
            Self::HostInvalid => "host field is not a host and port",
            Self::ContentLengthInvalid => "content-length is not a number",
            Self::ContentLengthRepeated => "more than one content-length",
            Self::TransferEncodingInvalid => "transfer-encoding is not chunked, once",
            Self::TransferEncodingRepeated => "more than one transfer-encoding",
            Self::TransferEncodingUnknown => "transfer-encoding other than chunked",
            Self::TransferEncodingInHttp10 => "transfer-encoding in an HTTP/1.0 request",
            Self::TwoLengths => "content-length and transfer-encoding together",
            Self::UpgradeWithBody => "request for an upgrade has a body",
            Self::ChunkSize => "chunk size is not a hexadecimal number",
            Self::ChunkSizeTooLong => "chunk size has too many digits",
            Self::ChunkExtension => "chunk extension is malformed",
            Self::ChunkExtensionTooLong => "chunk extension is too long",
            Self::ChunkExtensionsTooLong => "chunk extensions are too long in all",
            Self::ChunkLineEnding => "chunk size does not end in CRLF",
            Self::ChunkDataEnding => "chunk data does not end in CRLF",
            Self::TrailerForbidden => "trailer field that may only be in a head",
            Self::TrailersTooLarge => "trailer section is too large",
        }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.detail())
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything else is `request_malformed`.
    #[test]
    fn a_violation_that_a_client_can_act_on_has_a_reason_of_its_own() {
        for (violation, reason) in [
            (Violation::MethodTooLong, Reason::MethodUnsupported),
            (Violation::MethodRefused, Reason::MethodNotAllowed),
            (Violation::TargetTooLong, Reason::UriTooLong),
            (Violation::VersionUnsupported, Reason::VersionUnsupported),
            (
                Violation::TransferEncodingUnknown,
                Reason::CodingUnsupported,
            ),
            (Violation::HeadTooLarge, Reason::HeadTooLarge),
            (Violation::TrailersTooLarge, Reason::HeadTooLarge),
            (Violation::ChunkSize, Reason::RequestMalformed),
        ] {
            assert_eq!(violation.reason(), reason, "{violation:?}");
        }
    }
}
