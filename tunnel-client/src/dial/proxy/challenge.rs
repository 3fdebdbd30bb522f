//! The challenges of a proxy: `Proxy-Authenticate`, RFC 9110 section 11.
//!
//! In: the values of the field. Out: the challenges with their parameters, as far as they can be parsed. Pure; what
//! exceeds the limits is left out.

/// Most challenges of one response, and parameters of one challenge.
const CHALLENGES: usize = 16;
const PARAMETERS: usize = 32;

/// One offered authentication scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Challenge {
    /// Its name as the proxy wrote it, such as `Basic`.
    pub(super) scheme: String,
    /// Names in lower case, values without quotes.
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// Whether it has this scheme.
    pub(super) fn is(&self, scheme: &str) -> bool {
        self.scheme.eq_ignore_ascii_case(scheme)
    }

    /// The first value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// All challenges in these values of the field.
pub(super) fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Vec<Challenge> {
    let mut challenges = Vec::new();
    for value in values {
        parse_value(value, &mut challenges);
    }
    challenges
}

/// Parses one value: a list in which commas separate challenges and parameters. A token before `=` is a parameter, any
/// other begins a challenge.
fn parse_value(value: &str, challenges: &mut Vec<Challenge>) {
    let mut rest = value;
    let mut has_begun = false;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (word, after) = token(rest);
        if word.is_empty() {
            match rest.find(',') {
                // Skip what cannot be parsed, up to the next comma.
                Some(comma) => rest = rest.get(comma..).unwrap_or_default(),
                None => return,
            }
            continue;
        }
        rest = after;
        match parameter_value(after) {
            Some((value, after)) if has_begun => {
                rest = after;
                if let Some(challenge) = challenges.last_mut()
                    && challenge.parameters.len() < PARAMETERS
                {
                    let parameter = (word.to_ascii_lowercase(), value);
                    challenge.parameters.push(parameter);
                }
            }
            _ if challenges.len() == CHALLENGES => return,
            _ => {
                has_begun = true;
                challenges.push(Challenge {
                    scheme: word.to_owned(),
                    parameters: Vec::new(),
                });
                rest = after_token68(rest);
            }
        }
    }
}

/// The token at the beginning, and the rest.
fn token(text: &str) -> (&str, &str) {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let end = text.find(|c| !is_token(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// The value after a parameter's name, and the rest; `None` if this is not a parameter.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start_matches([' ', '\t']).strip_prefix('=')?;
    let text = text.trim_start_matches([' ', '\t']);
    let Some(quoted) = text.strip_prefix('"') else {
        let (word, rest) = token(text);
        return (!word.is_empty()).then(|| (word.to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, quoted.get(at + 1..).unwrap_or_default())),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(c),
        }
    }
    // Without the closing quote the value takes the rest.
    Some((value, ""))
}

/// Skips a `token68`, which some schemes have in place of parameters.
fn after_token68(text: &str) -> &str {
    let Some(begin) = text.strip_prefix([' ', '\t']) else {
        return text;
    };
    let begin = begin.trim_start_matches([' ', '\t']);
    let is_token68 = |c: char| c.is_ascii_alphanumeric() || "-._~+/".contains(c);
    let end = begin.find(|c| !is_token68(c)).unwrap_or(begin.len());
    let after = begin.get(end..).unwrap_or_default();
    let after = after
        .trim_start_matches('=')
        .trim_start_matches([' ', '\t']);
    match end > 0 && (after.is_empty() || after.starts_with(',')) {
        true => after,
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schemes(values: &[&str]) -> Vec<String> {
        let challenges = parse(values.iter().copied());
        challenges.into_iter().map(|one| one.scheme).collect()
    }

    #[test]
    fn a_list_of_challenges_is_taken_apart() {
        let challenges = parse([
            "Newauth realm=\"apps\", type=1, title=\"Login to \\\"apps\\\", now\", Basic realm = \"simple\"",
            "Digest realm=\"a\",qop=\"auth, auth-int\" , NONCE=abc",
        ]);
        let of = |index: usize, name: &str| challenges[index].parameter(name);
        assert_eq!(challenges.len(), 3);
        assert!(challenges[1].is("basic") && challenges[2].is("digest"));
        assert_eq!(of(0, "title"), Some("Login to \"apps\", now"));
        assert_eq!((of(0, "type"), of(1, "realm")), (Some("1"), Some("simple")));
        assert_eq!(
            (of(2, "qop"), of(2, "nonce")),
            (Some("auth, auth-int"), Some("abc"))
        );
        assert_eq!(of(2, "opaque"), None);
    }

    #[test]
    fn schemes_without_parameters_and_with_a_word_are_known() {
        assert_eq!(schemes(&["Negotiate, NTLM"]), ["Negotiate", "NTLM"]);
        assert_eq!(
            schemes(&["Negotiate a/b+c==, Basic realm=x", "NTLM"]),
            ["Negotiate", "Basic", "NTLM"]
        );
        assert_eq!(schemes(&["", ",, ,", "Basic"]), ["Basic"]);
    }

    #[test]
    fn what_is_broken_ends_at_a_comma_and_there_is_a_bound() {
        assert_eq!(schemes(&["@, Basic realm=\"x"]), ["Basic"]);
        assert_eq!(schemes(&[&"A,".repeat(1000)]).len(), CHALLENGES);
        let many = format!("A {}", "a=1,".repeat(1000));
        let challenges = parse([many.as_str()]);
        assert_eq!(
            (challenges.len(), challenges[0].parameters.len()),
            (1, PARAMETERS)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "\\PC{0,60}|[ABasic=\",\\\\ /]{0,40}") {
            prop_assert!(parse([text.as_str()]).len() <= CHALLENGES);
        }

        #[test]
        fn what_is_quoted_reads_back(value in "[ -~]{0,20}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let text = format!("Digest a=\"{quoted}\", b=c");
            let challenges = parse([text.as_str()]);
            prop_assert_eq!(challenges[0].parameter("a"), Some(value.as_str()));
            prop_assert_eq!(challenges[0].parameter("b"), Some("c"));
        }
    }
}
