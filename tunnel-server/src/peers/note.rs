//! The metadata that a node attaches to a request that it forwards to another one.
//!
//! `1 <label> <epoch> <address>`: the version, the runtime, the claim by which it is held, and the platform client's
//! address, for the source networks of the instance. Beside it go hints, which a node that does not know them ignores.

use std::net::IpAddr;
use tunnel_directory::{Epoch, RuntimeLabel};

/// The version of the note.
const VERSION: &str = "1";

/// What the sending node can do if the other one's sessions are silent or lost. The text is the names, with a space between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// It has a link to a further node that holds the runtime: a node whose sessions are all silent refuses the request, so
    /// that it goes there.
    pub(crate) has_other: bool,
    /// It sends the request once more if nothing was received for it.
    pub(crate) may_repeat: bool,
}

impl Hints {
    const HAS_OTHER: &str = "elsewhere";
    const MAY_REPEAT: &str = "repeat";

    pub(crate) fn text(self) -> &'static str {
        match (self.has_other, self.may_repeat) {
            (false, false) => "",
            (true, false) => Self::HAS_OTHER,
            (false, true) => Self::MAY_REPEAT,
            (true, true) => "elsewhere repeat",
        }
    }

    /// Reads a text. Unknown names are of a later version.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let has = |name: &str| {
            text.split(|byte| *byte == b' ')
                .any(|word| word == name.as_bytes())
        };
        Self {
            has_other: has(Self::HAS_OTHER),
            may_repeat: has(Self::MAY_REPEAT),
        }
    }
}

/// A note, as it is received with each forwarded request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// The runtime.
    pub(crate) label: String,
    /// The claim of the instance that is to serve the request, or a later one.
    pub(crate) epoch: Epoch,
    /// The platform client.
    pub(crate) address: IpAddr,
}

impl Note {
    /// The text of a note. `address` is that of the platform client. Made without the formatting machinery, since each
    /// forwarded request needs one.
    pub(crate) fn text(label: &RuntimeLabel, epoch: Epoch, address: &str) -> String {
        let epoch = epoch.number();
        [
            VERSION,
            label.as_str(),
            itoa::Buffer::new().format(epoch),
            address,
        ]
        .join(" ")
    }

    /// Reads a text; `None` for one of another version.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(text).ok()?.split(' ');
        let mut next = || parts.next();
        if next()? != VERSION {
            return None;
        }
        let note = Self {
            label: next()?.to_owned(),
            epoch: Epoch::from_number(next()?.parse().ok()?),
            address: next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_is_written() {
        let label = RuntimeLabel::parse("acme-prod").unwrap();
        let epoch = Epoch::from_number(1 << 48 | 7);
        let text = Note::text(&label, epoch, "2001:db8::1");
        let note = Note {
            label: "acme-prod".to_owned(),
            epoch,
            address: "2001:db8::1".parse().unwrap(),
        };
        assert_eq!(Note::parse(text.as_bytes()), Some(note));
        for bad in [
            "",
            "1 a",
            "2 a 7 ::1",
            "1 a x ::1",
            "1 a 7 host",
            "1 a 7 ::1 more",
        ] {
            assert_eq!(Note::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn hints_are_read_as_they_are_written() {
        for has_other in [false, true] {
            for may_repeat in [false, true] {
                let hints = Hints {
                    has_other,
                    may_repeat,
                };
                assert_eq!(Hints::parse(hints.text().as_bytes()), hints);
                let of_later = format!("later {} more", hints.text());
                assert_eq!(Hints::parse(of_later.as_bytes()), hints);
            }
        }
    }
}
