//! A target that was started by other means: `NAME=URL[,PID...][,IP:PORT]`.

use std::{net::SocketAddr, str::FromStr};

use http::Uri;

/// A target of `--target`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTarget {
    /// Its name in tables.
    pub name: String,
    /// What is asked.
    pub url: Uri,
    /// Where to connect, if not to the URL's host.
    pub connect_to: Option<SocketAddr>,
    /// Its processes, on this machine.
    pub pids: Vec<u32>,
}

impl FromStr for NamedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=') else {
            return Err("a target is written NAME=URL[,PID...], such as \
                        frp=http://127.0.0.1:8080,4711,4712"
                .to_owned());
        };
        let name = name.trim();
        if name.is_empty() || name.contains([',', '/', ':']) {
            return Err(format!(
                "{name:?} is no name of a target: the name stands before the ="
            ));
        }
        let mut parts = rest.split(',').map(str::trim);
        let url = parts.next().unwrap_or_default();
        let url = parse_url(url).map_err(|reason| format!("{name}: {reason}"))?;
        let mut target = Self {
            name: name.to_owned(),
            url,
            connect_to: None,
            pids: Vec::new(),
        };
        for part in parts {
            if let Ok(pid) = part.parse::<u32>() {
                target.pids.push(pid);
            } else if let Ok(address) = part.parse() {
                if target.connect_to.replace(address).is_some() {
                    return Err(format!(
                        "{name}: there is more than one address to connect to"
                    ));
                }
            } else {
                return Err(format!(
                    "{name}: {part:?} is neither the id of a process nor an IP:PORT to connect to"
                ));
            }
        }
        Ok(target)
    }
}

fn parse_url(text: &str) -> Result<Uri, String> {
    let url: Uri = text
        .parse()
        .map_err(|error| format!("{text:?} is no URL: {error}"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
        return Err(format!(
            "{text:?} is no URL that starts with http:// or https://"
        ));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_name_a_url_and_maybe_processes() {
        let target: NamedTarget = "frp=http://a.example:8080/x,4711, 4712,127.0.0.1:80"
            .parse()
            .unwrap();
        assert_eq!(target.name, "frp");
        assert_eq!(target.url, "http://a.example:8080/x");
        assert_eq!(target.pids, [4711, 4712]);
        assert_eq!(target.connect_to, Some(([127, 0, 0, 1], 80).into()));
        let plain: NamedTarget = "a=https://b".parse().unwrap();
        assert!(plain.pids.is_empty() && plain.connect_to.is_none());
        // What stands after the first = belongs to the URL.
        let query: NamedTarget = "a=http://b/?c=d".parse().unwrap();
        assert_eq!(query.url, "http://b/?c=d");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let cases = [
            ("http://a:80", "NAME=URL"),
            ("=http://a", "is no name"),
            ("http://a/?b=c", "is no name"),
            ("a=b", "http:// or https://"),
            ("a=ftp://b", "http:// or https://"),
            ("a=", "a: \"\" is no URL"),
            ("a=http://b,nginx", "\"nginx\" is neither"),
            ("a=http://b,-1", "\"-1\" is neither"),
            ("a=http://b,1.2.3.4:5,1.2.3.4:5", "more than one address"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<NamedTarget>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
