//! The text of a page of a proxy, or of another program between client and server, for a terminal or a log.
//!
//! In: the first bytes of a response's content. Out: one line of plain text of limited length, without tags and control
//! characters. Pure.

use secrecy::{ExposeSecret, SecretString};

/// Longest text, in characters: a few sentences.
const CHARACTERS: usize = 300;

/// Elements without readable content.
const HIDDEN: [&str; 3] = ["script", "style", "head"];

/// Shortest part of a secret that is redacted, in bytes: shorter ones occur in ordinary text.
const REDACTED_PART: usize = 6;

/// Replaces secrets in a text.
#[derive(Default)]
pub(super) struct Redactor(Vec<SecretString>);

impl Redactor {
    /// Adds a secret, and its parts between punctuation, which pages escape in many ways. Parts shorter than
    /// [`REDACTED_PART`] are not redacted.
    pub(super) fn add(&mut self, secret: &str) {
        let parts = secret.split(|c: char| !c.is_alphanumeric());
        let all = [secret].into_iter().chain(parts);
        let long = all.filter(|part| part.len() >= REDACTED_PART);
        self.0.extend(long.map(SecretString::from));
    }

    /// The text with all secrets replaced by `***`.
    pub(super) fn redact(&self, text: &str) -> String {
        let hide =
            |text: String, secret: &SecretString| text.replace(secret.expose_secret(), "***");
        self.0.iter().fold(text.to_owned(), hide)
    }
}

/// The text of some content, which may be HTML, on one line.
pub(super) fn page_text(body: &[u8], redactor: &Redactor) -> String {
    let text = String::from_utf8_lossy(body);
    let text = match looks_like_html(&text) {
        true => entities(&without_tags(&text)),
        false => text.into_owned(),
    };
    // Before the text is cut, or the beginning of a secret would remain.
    one_line(&redactor.redact(&text))
}

/// The text of content as [`page_text`] makes it, from a sender that has received no secret.
pub(crate) fn plain_page_text(body: &[u8]) -> String {
    page_text(body, &Redactor::default())
}

/// Text of a peer on one line of at most [`CHARACTERS`], without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let is_unfit = |c: char| c.is_control() || c.is_whitespace() || is_invisible(c);
    let mut line = String::new();
    for word in text.split(is_unfit).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Characters that change the direction of text, and others without width.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn looks_like_html(text: &str) -> bool {
    let start = text.trim_start().get(..1);
    start == Some("<") || text.contains("</")
}

fn without_tags(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        // A tag separates the words on its two sides.
        text.push(' ');
        if let Some(comment) = tag.strip_prefix("!--") {
            rest = comment.split_once("-->").map_or("", |(_, rest)| rest);
            continue;
        }
        rest = tag.split_once('>').map_or("", |(_, rest)| rest);
        let is_name = |c: &char| c.is_ascii_alphanumeric();
        let name: String = tag.chars().take_while(is_name).collect();
        if let Some(hidden) = HIDDEN
            .iter()
            .find(|hidden| name.eq_ignore_ascii_case(hidden))
        {
            rest = after_end(rest, hidden);
        }
    }
    text.push_str(rest);
    text
}

/// The text after the end tag of this element.
fn after_end<'a>(html: &'a str, element: &str) -> &'a str {
    let end = format!("</{element}");
    let is_end = |at: &usize| {
        html.as_bytes()
            .get(*at..*at + end.len())
            .is_some_and(|part| part.eq_ignore_ascii_case(end.as_bytes()))
    };
    match html.match_indices('<').map(|(at, _)| at).find(is_end) {
        Some(at) => html.get(at..).unwrap_or_default(),
        None => "",
    }
}

/// Replaces the few HTML entities that pages of proxies contain.
fn entities(text: &str) -> String {
    let known = [
        ("&nbsp;", " "),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&apos;", "'"),
        // Last, so that nothing is replaced twice.
        ("&amp;", "&"),
    ];
    known.iter().fold(text.to_owned(), |text, (entity, plain)| {
        text.replace(entity, plain)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(body: &[u8]) -> String {
        page_text(body, &Redactor::default())
    }

    #[test]
    fn a_page_becomes_a_line() {
        let page = "<!DOCTYPE html>\n<html><head><title>ERROR</title><style>p { color: red }</style></head>\n\
             <body><!-- <b>x</b> --><h1>Access&nbsp;Denied.</h1><p>Ask <a href=\"mailto:a@b\">Tom &amp; Co</a>\
             <script>alert('<p>no</p>')</script>.</p>\n</body></html>";
        assert_eq!(plain(page.as_bytes()), "Access Denied. Ask Tom & Co .");
        assert_eq!(
            plain(b"plain < text\r\nof two lines\n"),
            "plain < text of two lines"
        );
        assert_eq!(plain(b""), "");
        assert_eq!(plain(b"<p>cut off <styl"), "cut off");
        assert_eq!(plain(b"<style>cut off"), "");
    }

    #[test]
    fn nothing_moves_the_cursor_and_nothing_is_endless() {
        assert_eq!(plain(b"a\x1b[2J\x00b\xff"), "a [2J b\u{fffd}");
        assert_eq!(one_line("a\u{202e}b\u{200b}"), "a b");
        let long = plain("ä ".repeat(10_000).as_bytes());
        assert_eq!(long.chars().count(), CHARACTERS + 1);
    }

    proptest! {
        #[test]
        fn any_bytes_become_a_bounded_line(body in proptest::collection::vec(any::<u8>(), 0..200), html in "(<|</?(style|script|head|p)>|-->|<!--|&|a| ){0,40}") {
            for body in [body, html.into_bytes()] {
                let line = plain(&body);
                prop_assert!(line.chars().count() <= CHARACTERS + 1);
                prop_assert!(!line.contains(char::is_control));
            }
        }
    }
}
