//! Removes cookies that a runtime sets for the hosts of all runtimes.
//!
//! In: the fields of an upstream's response. Out: those without each `Set-Cookie` whose `Domain` is the domain under
//! which runtimes have their hosts, or a parent of it. A browser would send such a cookie to every runtime: with it
//! one customer could choose another one's session, or fill every request with fields until it is too large.

use http::{HeaderMap, HeaderValue, header};

use super::PublicListener;

/// Removes the cookies for hosts of other runtimes, unless the configuration allows them.
pub(super) fn keep_apart(listener: &PublicListener, headers: &mut HeaderMap) {
    if headers.contains_key(header::SET_COOKIE) && !listener.config().settings.allow_shared_cookies
    {
        remove_shared(headers, listener.router.domain().as_str());
    }
}

fn remove_shared(headers: &mut HeaderMap, domain: &str) {
    let is_kept = |value: &&HeaderValue| !is_shared(value.as_bytes(), domain.as_bytes());
    let cookies = headers.get_all(header::SET_COOKIE);
    if cookies.iter().all(|value| is_kept(&value)) {
        return;
    }
    let kept: Vec<_> = cookies.iter().filter(is_kept).cloned().collect();
    headers.remove(header::SET_COOKIE);
    for cookie in kept {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// Whether a cookie has a `Domain` that covers the hosts of all runtimes (RFC 6265 section 5.2.3).
fn is_shared(cookie: &[u8], domain: &[u8]) -> bool {
    let attributes = cookie.split(|byte| *byte == b';').skip(1);
    let mut domains = attributes.filter_map(|attribute| {
        let equals = attribute.iter().position(|byte| *byte == b'=')?;
        let (name, value) = attribute.split_at(equals);
        let is_domain = name.trim_ascii().eq_ignore_ascii_case(b"domain");
        is_domain.then(|| value[1..].trim_ascii())
    });
    domains.any(|value| covers(value, domain))
}

/// Whether `value` is `domain` or a parent of it. Leading and trailing dots are ignored.
fn covers(value: &[u8], domain: &[u8]) -> bool {
    let value = value.strip_prefix(b".").unwrap_or(value);
    let value = value.strip_suffix(b".").unwrap_or(value);
    let Some(start) = domain.len().checked_sub(value.len()) else {
        return false;
    };
    let (before, end) = domain.split_at(start);
    !value.is_empty()
        && end.eq_ignore_ascii_case(value)
        && before.last().is_none_or(|byte| *byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_for_all_runtimes_is_known_by_its_domain() {
        let is_shared = |cookie: &str| is_shared(cookie.as_bytes(), b"tunnels.example.com");
        for cookie in [
            "a=b; Domain=tunnels.example.com",
            "a=b;domain=.Tunnels.Example.COM;path=/",
            "a=b; Secure; DOMAIN = example.com ; HttpOnly",
            "a=b; domain=com.",
            "a=b; domain=a-b.tunnels.example.com; domain=example.com",
        ] {
            assert!(is_shared(cookie), "{cookie}");
        }
        for cookie in [
            "a=b",
            "a=b; Path=/; Secure",
            "Domain=example.com",
            "a=b; domain=",
            "a=b; domain",
            "a=b; domain=a-b.tunnels.example.com",
            "a=b; domain=nels.example.com",
            "a=b; domain=other.example.com",
            "a=b; xdomain=example.com",
            "a=b; path=/;=example.com",
        ] {
            assert!(!is_shared(cookie), "{cookie}");
        }
    }

    #[test]
    fn only_cookies_for_all_runtimes_are_removed() {
        let mut headers = HeaderMap::new();
        for cookie in ["a=1", "b=2; domain=example.com", "c=3; path=/"] {
            headers.append(header::SET_COOKIE, HeaderValue::from_static(cookie));
        }
        headers.insert("x", HeaderValue::from_static("1"));
        remove_shared(&mut headers, "tunnels.example.com");
        let cookies: Vec<_> = headers.get_all(header::SET_COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1", "c=3; path=/"]);
        assert_eq!(headers["x"], "1");
    }
}
