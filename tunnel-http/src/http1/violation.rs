//! The rules of HTTP/1 that a request can break, with the status and text of the response.
//!
//! A violation contains no bytes of the request, so it can be logged, counted and sent to the client.

/// A rule of HTTP/1.1, or of this gateway, that a request breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "`reason` has a sentence for each name")]
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
    ChunkLineEnding,
    ChunkDataEnding,
    TrailerForbidden,
    TrailersTooLarge,
}

impl Violation {
    /// The status of the response. The connection always closes after it, since the end of an invalid request is not known.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.status_and_reason().0
    }

    /// The description: part of a sentence, without a capital and without a full stop.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        self.status_and_reason().1
    }

    const fn status_and_reason(self) -> (u16, &'static str) {
        match self {
            Self::LeadingEmptyLine => (400, "more than one empty line before the request line"),
            Self::RequestLine => (400, "request line is not method, target and version"),
            Self::MethodSyntax => (400, "method is not a token"),
            Self::MethodTooLong => (501, "method is longer than any that is known"),
            Self::MethodRefused => (405, "method is not served here"),
            Self::TargetCharacter => (400, "target holds a character that must be encoded"),
            Self::TargetFragment => (400, "target has a fragment"),
            Self::TargetForm => (400, "target is neither a path nor an absolute http URL"),
            Self::TargetAuthority => (400, "authority in the target is not a host and port"),
            Self::TargetTooLong => (414, "target is too long"),
            Self::VersionSyntax => (400, "version of the protocol is malformed"),
            Self::VersionUnsupported => (505, "version of the protocol is not 1.0 or 1.1"),
            Self::BareCarriageReturn => (400, "carriage return without a line feed"),
            Self::BareLineFeed => (400, "line feed without a carriage return"),
            Self::HeadTooLarge => (431, "head of the request is too large"),
            Self::TooManyFields => (431, "too many header fields"),
            Self::FieldFolded => (400, "field line starts with a space"),
            Self::FieldWithoutColon => (400, "field line without a colon"),
            Self::FieldNameEmpty => (400, "field without a name"),
            Self::FieldNameSpace => (400, "space between field name and colon"),
            Self::FieldNameSyntax => (400, "field name is not a token"),
            Self::FieldNameUnderscore => (400, "field name has an underscore"),
            Self::FieldNameTooLong => (431, "field name is too long"),
            Self::FieldValueCharacter => (400, "field value holds a control character"),
            Self::HostMissing => (400, "no host field"),
            Self::HostRepeated => (400, "more than one host field"),
            Self::HostInvalid => (400, "host field is not a host and port"),
            Self::ContentLengthInvalid => (400, "content-length is not a number"),
            Self::ContentLengthRepeated => (400, "more than one content-length"),
            Self::TransferEncodingInvalid => (400, "transfer-encoding is not chunked, once"),
            Self::TransferEncodingRepeated => (400, "more than one transfer-encoding"),
            Self::TransferEncodingUnknown => (501, "transfer-encoding other than chunked"),
            Self::TransferEncodingInHttp10 => (400, "transfer-encoding in an HTTP/1.0 request"),
            Self::TwoLengths => (400, "content-length and transfer-encoding together"),
            Self::UpgradeWithBody => (400, "request for an upgrade has a body"),
            Self::ChunkSize => (400, "chunk size is not a hexadecimal number"),
            Self::ChunkSizeTooLong => (400, "chunk size has too many digits"),
            Self::ChunkExtension => (400, "chunk extension is malformed"),
            Self::ChunkExtensionTooLong => (400, "chunk extension is too long"),
            Self::ChunkLineEnding => (400, "chunk size does not end in CRLF"),
            Self::ChunkDataEnding => (400, "chunk data does not end in CRLF"),
            Self::TrailerForbidden => (400, "trailer field that may only be in a head"),
            Self::TrailersTooLarge => (431, "trailer section is too large"),
        }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Violation {}
