//! The HTML page that a browser gets for a problem: the default one, or a template of the operator's.
//!
//! In: a text with placeholders such as `{{reason}}`. Out: the text with the values of one problem, each escaped, so that
//! no value can become markup. A page tells a visitor what happened and what to do, and nothing of the inside.

use std::fmt::{self, Write};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use tunnel_proto::problem::{Fault, Problem, Reason};

/// Largest template: the page is sent for each failed request of a browser.
const PAGE_BYTES: u64 = 64 * 1024;

const DEFAULT: &str = include_str!("page.html");

/// Allows the style of the default page and nothing else; a test compares the hash.
const DEFAULT_POLICY: &str = "default-src 'none'; style-src 'sha256-4F3+2TN4Vwrme0lupdln7YclX46rwpyfmIHwWdgjUN8='; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! placeholders {
    ($($variant:ident = $name:literal,)*) => {
        /// A value of one problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Placeholder {
            $($variant,)*
        }

        impl Placeholder {
            const NAMES: &[&str] = &[$($name,)*];

            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

placeholders! {
    Status = "status",
    Title = "title",
    Message = "message",
    Advice = "advice",
    Reason = "reason",
    RequestId = "request_id",
    RetryAfter = "retry_after",
}

/// A page for problems. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemPage {
    pieces: Arc<[Piece]>,
    /// `Content-Security-Policy`; `None` for an operator's page, which decides in a `meta` element what it loads.
    policy: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Value(Placeholder),
}

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadPage {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is too large.
    #[error("{}: has more than {} KiB: make the page smaller", .path.display(), PAGE_BYTES / 1024)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not UTF-8.
    #[error("{}:{line}: is not UTF-8: save the file in that encoding", .path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A placeholder without a value.
    #[error(
        "{}:{line}: unknown placeholder `{{{{{name}}}}}`: the placeholders are {}", .path.display(), all_placeholders()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The name.
        name: String,
    },
    /// A placeholder without an end.
    #[error("{}:{line}: `{{{{` begins a placeholder, which has no `}}}}` on this line", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

fn all_placeholders() -> String {
    let names = Placeholder::NAMES.iter();
    let names: Vec<String> = names.map(|name| format!("`{{{{{name}}}}}`")).collect();
    names.join(", ")
}

impl Default for ProblemPage {
    fn default() -> Self {
        // A test reads the default page.
        let pieces = pieces(DEFAULT, Path::new("page.html")).unwrap_or_default();
        Self {
            pieces: pieces.into(),
            policy: Some(DEFAULT_POLICY),
        }
    }
}

impl ProblemPage {
    /// Reads a template.
    ///
    /// # Errors
    /// When the file cannot be read, or is too large, or has a placeholder that does not exist.
    pub fn load(path: &Path) -> Result<Self, BadPage> {
        let unreadable = |source| BadPage::Unreadable {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        let read = file.take(PAGE_BYTES + 1).read_to_end(&mut bytes);
        if read.map_err(unreadable)? as u64 > PAGE_BYTES {
            return Err(BadPage::TooLarge {
                path: path.to_owned(),
            });
        }
        let text = str::from_utf8(&bytes).map_err(|error| BadPage::NotUtf8 {
            path: path.to_owned(),
            line: line(&bytes[..error.valid_up_to()]),
        })?;
        Ok(Self {
            pieces: pieces(text, path)?.into(),
            policy: None,
        })
    }

    /// Value of `Content-Security-Policy`, if the page has one.
    pub(super) fn policy(&self) -> Option<HeaderValue> {
        self.policy.map(HeaderValue::from_static)
    }

    /// The page for a problem of the request with this id.
    pub(super) fn render(&self, problem: &Problem, request_id: Option<&str>) -> String {
        let status = problem.status();
        let explanation = Explanation::of(problem.reason());
        let retry_after = problem.retry_after_value();
        let retry_after = retry_after.as_ref().and_then(|value| value.to_str().ok());
        let advice = explanation.advice(retry_after);
        let mut page = String::with_capacity(2 * 1024);
        for piece in self.pieces.iter() {
            let value = match piece {
                Piece::Text(text) => {
                    page.push_str(text);
                    continue;
                }
                Piece::Value(Placeholder::Status) => status.as_str(),
                Piece::Value(Placeholder::Title) => explanation.title,
                Piece::Value(Placeholder::Message) => explanation.message,
                Piece::Value(Placeholder::Advice) => &advice,
                Piece::Value(Placeholder::Reason) => problem.reason().name(),
                Piece::Value(Placeholder::RequestId) => request_id.unwrap_or("none"),
                Piece::Value(Placeholder::RetryAfter) => retry_after.unwrap_or_default(),
            };
            // Writing into memory cannot fail.
            let _ = write!(page, "{}", Escaped(value));
        }
        page
    }
}

/// The line of what follows these bytes, from 1.
fn line(before: &[u8]) -> usize {
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

fn pieces(text: &str, path: &Path) -> Result<Vec<Piece>, BadPage> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let line = line(&text.as_bytes()[..text.len() - after.len()]);
        let within = after.lines().next().unwrap_or_default();
        let Some((name, _)) = within.split_once("}}") else {
            let path = path.to_owned();
            return Err(BadPage::Open { path, line });
        };
        let placeholder = Placeholder::from_name(name.trim()).ok_or_else(|| BadPage::Unknown {
            path: path.to_owned(),
            line,
            name: name.trim().to_owned(),
        })?;
        pieces.push(Piece::Text(before.into()));
        pieces.push(Piece::Value(placeholder));
        rest = &after[name.len() + "}}".len()..];
    }
    pieces.push(Piece::Text(rest.into()));
    Ok(pieces)
}

/// A text as content of an element or of an attribute in quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// What a visitor is told.
struct Explanation {
    title: &'static str,
    message: &'static str,
    advice: Advice,
}

/// What a visitor can do.
enum Advice {
    /// Wait, for as long as the answer says.
    Wait,
    /// Something else.
    Text(&'static str),
}

const TELL_OWNER: &str =
    "If it does not help, tell the owner of the site, and give the request id.";

impl Explanation {
    fn of(reason: Reason) -> Self {
        let (title, message, advice) = match reason {
            Reason::RuntimeUnknown | Reason::RouteUnknown | Reason::SegmentRefused => (
                "Nothing is here",
                "There is no page at this address.",
                Advice::Text("Check the address. If it is right, tell the owner of the site."),
            ),
            Reason::AddressDenied | Reason::RouteDenied => (
                "Access denied",
                "This address may not be opened, or not from your network.",
                Advice::Text("If you need it, ask the owner of the site for access."),
            ),
            Reason::HeadTooLarge | Reason::UriTooLong => (
                "The request is too large",
                "Your browser sent a longer address, or more cookies, than this site accepts.",
                Advice::Text(
                    "Delete the cookies of this site in your browser, then open it again.",
                ),
            ),
            Reason::BodyTooLarge => (
                "The upload is too large",
                "You sent more than this site accepts.",
                Advice::Text("Send less at once, or ask the owner of the site."),
            ),
            Reason::RuntimeOffline | Reason::NotHeld | Reason::UpstreamsDown => (
                "The site is offline",
                "The site is not connected at the moment.",
                Advice::Wait,
            ),
            Reason::SessionLost | Reason::PeerLost => (
                "The connection to the site was interrupted",
                "The site was lost while it worked on your request.",
                Advice::Text(
                    "Open the page again. If you sent something, check first whether it arrived.",
                ),
            ),
            Reason::DnsTimeout
            | Reason::ConnectionTimeout
            | Reason::ResponseTimeout
            | Reason::IdleTimeout => (
                "The site takes too long",
                "The site is connected, but did not answer in time.",
                Advice::Wait,
            ),
            reason if reason.proxy_error() == "connection_limit_reached" => (
                "The site is busy",
                "More is asked of the site at the moment than it can answer.",
                Advice::Wait,
            ),
            reason => match reason.fault() {
                Fault::PlatformClient => (
                    "The request cannot be answered",
                    "Your browser sent something that this site does not accept.",
                    Advice::Text("Go back and open the page again."),
                ),
                Fault::Tunnel | Fault::Upstream => (
                    "The site does not work at the moment",
                    "The site is connected, but what answers there has failed.",
                    Advice::Wait,
                ),
            },
        };
        Self {
            title,
            message,
            advice,
        }
    }

    fn advice(&self, retry_after: Option<&str>) -> String {
        let advice = match (&self.advice, retry_after) {
            (Advice::Text(text), _) => (*text).to_owned(),
            (Advice::Wait, Some(seconds)) => format!("Try again in {seconds} s."),
            (Advice::Wait, None) => "Try again in a minute.".to_owned(),
        };
        match self.advice {
            Advice::Wait => format!("{advice} {TELL_OWNER}"),
            Advice::Text(_) => advice,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};
    use tunnel_proto::problem::Hop;

    use super::*;

    fn offline() -> Problem {
        let detail = "http://10.0.0.7:80 is away";
        Problem::new(Hop::Server, Reason::RuntimeOffline, detail)
            .retry_after(Duration::from_secs(7))
    }

    fn template(text: &str) -> Result<ProblemPage, BadPage> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.html");
        std::fs::write(&path, text).unwrap();
        ProblemPage::load(&path)
    }

    #[test]
    fn a_visitor_learns_what_to_do_and_nothing_of_the_inside() {
        let page = ProblemPage::default().render(&offline(), Some("r-1"));
        for words in [
            "is offline",
            "Try again in 7 s.",
            "runtime_offline",
            "r-1",
            "503",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(
            !page.contains("10.0.0.7") && !page.contains("<script"),
            "{page}"
        );
        assert!(!page.contains("{{"), "{page}");
    }

    #[test]
    fn the_policy_allows_the_style_of_the_page() {
        let style = DEFAULT.split("<style>").nth(1).unwrap();
        let style = style.split("</style>").next().unwrap();
        let hash = BASE64_STANDARD.encode(Sha256::digest(style));
        let allowed = format!("'sha256-{hash}'");
        assert!(DEFAULT_POLICY.contains(&allowed), "{allowed}");
    }

    #[test]
    fn a_value_is_no_markup() {
        let page = template("<p title=\"{{ request_id }}\">{{title}}").unwrap();
        let text = page.render(&offline(), Some("\"><script>&'"));
        let expected = "<p title=\"&quot;&gt;&lt;script&gt;&amp;&#39;\">The site is offline";
        assert_eq!(text, expected);
        assert_eq!(page.policy(), None);
    }

    #[test]
    fn a_fault_names_file_and_line() {
        let fault = |text: &str| {
            let error = template(text).unwrap_err().to_string();
            error.rsplit('/').next().unwrap().to_owned()
        };
        let unknown = fault("<p>\n{{reason}}\n{{reasons}}");
        let expected =
            "p.html:3: unknown placeholder `{{reasons}}`: the placeholders are `{{status}}`, ";
        assert!(unknown.starts_with(expected), "{unknown}");
        let open = "p.html:2: `{{` begins a placeholder, which has no `}}` on this line";
        assert_eq!(fault("<p>\n{{reason\n}}"), open);
        let large = "x".repeat(PAGE_BYTES as usize + 1);
        assert_eq!(
            fault(&large),
            "p.html: has more than 64 KiB: make the page smaller"
        );
    }

    #[test]
    fn each_reason_has_an_explanation_in_sentences() {
        for &reason in Reason::ALL {
            let explanation = Explanation::of(reason);
            assert!(explanation.message.ends_with('.'), "{reason:?}");
            assert!(explanation.advice(None).ends_with('.'), "{reason:?}");
        }
    }

    proptest! {
        #[test]
        fn text_without_placeholders_stays(text in "[^{]{0,200}") {
            let pieces = pieces(&text, Path::new("p")).unwrap();
            prop_assert_eq!(pieces, [Piece::Text(text.into())]);
        }
    }
}
