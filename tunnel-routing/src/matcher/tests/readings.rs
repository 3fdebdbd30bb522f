//! Models of how servers and proxies read paths, as plain functions: no reading of a path that is let through is denied.

use url::Url;

use super::*;
use crate::odd::readings::{READINGS_MAX, find_reading};

/// Gives the path that a server decides by; `None` if it refuses the request.
type Model = fn(&str) -> Option<String>;

const MODELS: [(&str, Model); 17] = [
    ("as received", |path| Some(path.to_owned())),
    ("WHATWG, behind a host", |path| {
        let url = Url::parse(&format!("http://h{path}")).ok()?;
        Some(url.path().to_owned())
    }),
    ("WHATWG, on a base", |path| {
        let base = Url::parse("http://h/").ok()?;
        Some(base.join(path).ok()?.path().to_owned())
    }),
    ("RFC 3986", |path| {
        resolved(&decoded(path, is_unreserved), false)
    }),
    ("RFC 3986, dots before escapes", |path| {
        Some(decoded(&resolved(path, false)?, is_unreserved))
    }),
    ("RFC 3986, relative reference", |path| {
        resolved(&decoded(without_authority(path), is_unreserved), false)
    }),
    ("nginx, merge_slashes on", |path| nginx(path, true)),
    ("nginx, merge_slashes off", |path| nginx(path, false)),
    ("Envoy, merge_slashes alone", |path| Some(merged(path))),
    ("Envoy, normalize_path", |path| envoy(path, false, false)),
    ("Envoy, normalize_path, merge_slashes", |path| {
        envoy(path, false, true)
    }),
    ("Envoy, UNESCAPE_AND_FORWARD", |path| {
        envoy(path, true, false)
    }),
    ("Envoy, UNESCAPE_AND_FORWARD, merge_slashes", |path| {
        envoy(path, true, true)
    }),
    ("Tomcat", |path| tomcat(path, |_| true)),
    ("Tomcat, %2F passed through", |path| {
        tomcat(path, |byte| byte != '/')
    }),
    ("Python", |path| {
        Some(decoded(without_authority(path), |_| true))
    }),
    ("a file's name", |path| {
        let path = decoded(path, |_| true);
        let name = path.split('\0').next()?;
        resolved(&merged(name), false)
    }),
];

/// ngx_http_parse_complex_uri: decodes, then merges, then resolves.
fn nginx(path: &str, merges: bool) -> Option<String> {
    let path = decoded(path, |_| true);
    let path = if merges { merged(&path) } else { path };
    (!path.contains('\0')).then(|| resolved(&path, true))?
}

/// ConnectionManagerUtility::maybeNormalizePath: unescapes slashes, then normalizes, then merges.
fn envoy(path: &str, unescapes: bool, merges: bool) -> Option<String> {
    let path = decoded(path, |byte| unescapes && "/\\".contains(byte));
    let path = decoded(&path.replace('\\', "/"), is_unreserved);
    let path = resolved(&path, false)?;
    Some(if merges { merged(&path) } else { path })
}

/// CoyoteAdapter: removes parameters, decodes, turns backslashes, merges, resolves.
fn tomcat(path: &str, is_decoded: fn(char) -> bool) -> Option<String> {
    let segments = path.split('/').map(|segment| segment.split(';').next());
    let path = segments.collect::<Option<Vec<_>>>()?.join("/");
    let path = merged(&decoded(&path, is_decoded).replace('\\', "/"));
    (!path.contains('\0')).then(|| resolved(&path, true))?
}

/// The path of a relative reference (RFC 3986 section 4.2), as Python's `urlsplit` finds it.
fn without_authority(path: &str) -> &str {
    match path.strip_prefix("//") {
        Some(behind) => behind.find('/').map_or("", |at| &behind[at..]),
        None => path,
    }
}

/// Decodes bytes once. Other than ASCII is not decoded, since none of it matters.
fn decoded(path: &str, is_decoded: impl Fn(char) -> bool) -> String {
    let mut read = String::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let code = rest.get(1..3).filter(|code| !code.contains('+'));
        let code = code.filter(|_| first == '%');
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        let code = code.filter(u8::is_ascii).map(char::from);
        match code.filter(|code| is_decoded(*code)) {
            Some(code) => {
                read.push(code);
                rest = &rest[3..];
            }
            None => {
                read.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    read
}

fn merged(path: &str) -> String {
    let mut path = path.to_owned();
    while path.contains("//") {
        path = path.replace("//", "/");
    }
    path
}

/// Removes dot segments (RFC 3986 section 5.2.4); `None` above the root, where that is an error.
fn resolved(path: &str, is_strict: bool) -> Option<String> {
    let mut segments: Vec<&str> = Vec::new();
    let given: Vec<_> = path.split('/').skip(1).collect();
    for (index, segment) in given.iter().enumerate() {
        match *segment {
            "." | ".." => {
                if *segment == ".." && segments.pop().is_none() && is_strict {
                    return None;
                }
                if index + 1 == given.len() {
                    segments.push("");
                }
            }
            other => segments.push(other),
        }
    }
    Some(format!("/{}", segments.join("/")))
}

fn is_unreserved(byte: char) -> bool {
    byte.is_ascii_alphanumeric() || "-._~".contains(byte)
}

fn odd_path() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "/", "/", "/", "/", "a", "b", "x", "/..", "/.", "..", ".", "%2f", "%2F", "\\", "%5c",
        "%2e", "%2E%2e", "%61", "%62", ";", "%3b", "%00", "%0a", "%252f", "%252e", "%2561", "%5",
        "%",
    ]);
    vec(piece, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()))
}

fn denied_path() -> impl Strategy<Value = String> {
    let segment = select(vec!["a", "b", "{n}", "a"]);
    (vec(segment, 1..4), any::<bool>()).prop_map(|(mut segments, takes_rest)| {
        let mut names = ["{n}", "{m}", "{o}"].into_iter();
        for segment in segments.iter_mut().filter(|segment| **segment == "{n}") {
            *segment = names.next().unwrap();
        }
        segments.extend(takes_rest.then_some("*"));
        format!("/{}", segments.join("/"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    /// A request may pass a proxy before it comes to a server.
    #[test]
    fn no_reading_of_a_path_that_is_let_through_is_denied(
        denied in vec(denied_path(), 1..4),
        paths in vec(odd_path(), 1..16),
        chain in vec(select(MODELS.to_vec()), 1..4),
    ) {
        let wide = Conditions { allow_paths_with: OddParts::ALL, ..conditions(None, &[], "/*") };
        let denials = denied.iter().map(|path| denial(conditions(None, &[], path)));
        let routes: Vec<_> = [wide].into_iter().chain(denials).collect();
        for path in &paths {
            if found(&routes, "", Method::GET, path) != Ok(0) {
                continue;
            }
            let read = chain.iter().try_fold(path.clone(), |path, (_, read)| read(&path));
            for denial in read.iter().flat_map(|_| &routes[1..]) {
                let read = read.as_deref().unwrap_or_default();
                let names: Vec<_> = chain.iter().map(|(name, _)| name).collect();
                prop_assert!(
                    !denial.path.matches(read.as_bytes()),
                    "{} is {} to {:?}, denied by {}", path, read, names, denial.path
                );
            }
        }
    }
}

#[test]
fn each_reading_of_a_path_is_judged() {
    let routes = [
        Conditions {
            allow_paths_with: OddParts::ALL,
            ..conditions(None, &[], "/*")
        },
        denial(conditions(None, &[], "/admin/*")),
        denial(conditions(None, &[], "/a/b/*")),
    ];
    for (path, route) in [
        ("/y%2fz/../admin/x", 1),
        ("/y%5cz/../admin/x", 1),
        ("/y\\z/../admin/x", 1),
        ("/a//../b/x", 2),
        ("/x//../../admin", 1),
        ("/admin%00x", 1),
        ("/admin%2f%00x", 1),
        ("/ad%00min", 1),
        ("/%2561dmin", 1),
        ("/x/%252e%252e%2fadmin", 1),
        ("//host/admin/x", 1),
        ("/\\host/admin/x", 1),
        ("/x;/..;y/admin;z", 1),
        ("/y%2fadmin/x", 0),
        ("/y//admin", 0),
        ("/administrator%00", 0),
    ] {
        let found = found(&routes, "", Method::GET, path);
        assert_eq!(found, Ok(route), "{path}");
    }
}

#[test]
fn a_path_is_judged_as_the_upstream_gets_it_too() {
    let routes = [
        Conditions {
            allow_paths_with: OddParts::ALL,
            prefix: Some(Prefix::new("/app", "/v1/%61pi")),
            ..conditions(None, &[], "/app/*")
        },
        denial(conditions(None, &[], "/app/admin/*")),
        denial(conditions(None, &[], "/other")),
    ];
    for (path, route) in [
        ("/app/x/../admin", 1),
        ("/app/../api/admin/x", 1),
        ("/app/..%2f../v1/api/admin", 1),
        ("/app/../../admin", 0),
        ("/app/../other", 2),
        ("/app/../api/x", 0),
    ] {
        let found = found(&routes, "", Method::GET, path);
        assert_eq!(found, Ok(route), "{path}");
    }
}

#[test]
fn a_path_with_too_many_readings_is_refused() {
    let count = |path: &str| {
        let mut count = 0;
        let all = find_reading(path.as_bytes(), |_| {
            count += 1;
            None::<()>
        });
        all.map(|_| count)
    };
    for (path, most) in [
        ("/files/a%20b", 2),
        ("/projects/group%2Fname/issues", 2),
        ("/proxy/https:%2F%2Fexample.com%2Fa%20b//c", 16),
        ("/a/../b;c=d/e%2Ff", 24),
        ("/a//b;c/../d%2F..%5Ce%00", READINGS_MAX),
    ] {
        let count = count(path).unwrap();
        assert!(count <= most, "{path}: {count}");
    }
    let routes = [
        Conditions {
            allow_paths_with: OddParts::ALL,
            ..conditions(None, &[], "/*")
        },
        denial(conditions(None, &[], "/admin/*")),
    ];
    let long = format!("/{}%2f..", "a//".repeat(40_000));
    let nested = format!("/%{}41", "25".repeat(300));
    for path in [&*long, &*nested] {
        let found_all = found(&routes, "", Method::GET, path);
        assert_eq!(found_all, Err(NoRoute::TooManyReadings(0)));
        assert_eq!(found(&routes[..1], "", Method::GET, path), Ok(0));
    }
}
