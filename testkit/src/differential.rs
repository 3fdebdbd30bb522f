//! Ambiguous requests, and readers that say what is in them.
//!
//! [`random_http1`] and [`random_http2`] make the bytes of a client that keeps or breaks every rule, from a seed.
//! [`strict`] and [`strict_http2`] read what an origin may read of them; [`lenient`] reads as origins do that forgive
//! one thing or another. What a gateway forwards has to be among what the strict reader reads of its input, and all
//! readers have to agree about it.

pub mod lenient;
pub mod random_http1;
pub mod random_http2;
pub mod strict;
pub mod strict_http2;

use std::collections::BTreeSet;

use self::strict::{Field, Message, members, values};

/// What a request means, whatever way it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The method.
    pub method: String,
    /// Host and port; none where the request names none.
    pub authority: Option<String>,
    /// Path and query, byte for byte.
    pub path: String,
    /// The content.
    pub content: Vec<u8>,
    /// The fields that a gateway may neither add nor change, by name and, for one name, in their order.
    pub fields: Vec<Field>,
    /// The trailer fields, in their order.
    pub trailers: Vec<Field>,
}

impl Meaning {
    /// What a request means.
    pub fn of(message: &Message) -> Self {
        let (authority, path) = split_target(&message.target);
        let host = values(&message.fields, "host").next();
        let host = host.map(|host| String::from_utf8_lossy(host).into_owned());
        let nominated = members(&message.fields, "connection");
        let nominated: BTreeSet<_> = nominated.into_iter().collect();
        let is_kept = |field: &&Field| is_passed(&field.0) && !nominated.contains(&field.0);
        let mut fields: Vec<_> = message.fields.iter().filter(is_kept).cloned().collect();
        fields.sort_by(|one, other| one.0.cmp(&other.0));
        Self {
            method: message.method.clone(),
            authority: authority.or(host),
            path,
            content: message.content.clone(),
            fields,
            trailers: message.trailers.clone(),
        }
    }

    /// Whether an origin that reads `other` reads this request. A gateway may drop trailers, and names a host where
    /// there was none.
    pub fn is_forwarded_as(&self, other: &Self) -> bool {
        let mut trailers = self.trailers.iter();
        let is_known = |trailer| trailers.any(|other| other == trailer);
        self.method == other.method
            && (self.authority.is_none() || self.authority == other.authority)
            && self.path == other.path
            && self.content == other.content
            && self.fields == other.fields
            && other.trailers.iter().all(is_known)
    }
}

/// Whether a field of this name is one that the random requests have and a gateway passes as it is.
fn is_passed(name: &str) -> bool {
    name.starts_with("x-") && !name.starts_with("x-forwarded-") && name != "x-request-id"
}

/// Takes the authority out of an absolute target. A path that is empty becomes `/`.
fn split_target(target: &str) -> (Option<String>, String) {
    let lower = target.to_ascii_lowercase();
    let Some(scheme) = ["http://", "https://"]
        .into_iter()
        .find(|scheme| lower.starts_with(scheme))
    else {
        return (None, target.to_owned());
    };
    let rest = &target[scheme.len()..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let slash = if path.starts_with('/') { "" } else { "/" };
    (Some(authority.to_owned()), format!("{slash}{path}"))
}
