//! What no linter sees: module docs, length of files, names, import arrows, words, dead links.
//!
//! Every check reads the files of the project as they lie there and lists all that it finds, each
//! with its place. To learn why a rule is there, see its test's first line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use e2e::program::root;

/// The longest a file may be, without its tests, blank lines and comments.
const CODE_LINES: usize = 500;

/// The longest a file of tests may be: a list of cases is read one case at a time.
const TEST_LINES: usize = 800;

/// Module names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 7] = [
    "common", "helper", "helpers", "misc", "mod", "util", "utils",
];

/// Directories that hold no sources of ours.
const NOT_OURS: [&str; 6] = [
    ".git",
    "target",
    "node_modules",
    "artifacts",
    "corpus",
    "__pycache__",
];

/// Which crate of the workspace may know which, tests included. The tests of every crate may know `testkit`.
const ARROWS: [(&str, &[&str]); 14] = [
    ("tunnel-proto", &[]),
    ("tunnel-ops", &[]),
    ("tunnel-http", &["tunnel-proto", "tunnel-ops"]),
    ("tunnel-etcd", &["tunnel-ops"]),
    (
        "tunnel-directory",
        &["tunnel-proto", "tunnel-etcd", "tunnel-ops"],
    ),
    (
        "tunnel-server",
        &[
            "tunnel-proto",
            "tunnel-http",
            "tunnel-etcd",
            "tunnel-directory",
            "tunnel-ops",
        ],
    ),
    (
        "tunnel-routing",
        &["tunnel-proto", "tunnel-http", "tunnel-ops"],
    ),
    (
        "tunnel-client",
        &[
            "tunnel-proto",
            "tunnel-http",
            "tunnel-ops",
            "tunnel-routing",
        ],
    ),
    (
        "demo",
        &[
            "tunnel-server",
            "tunnel-client",
            "tunnel-http",
            "tunnel-etcd",
            "tunnel-ops",
        ],
    ),
    ("testkit", &["tunnel-proto", "tunnel-ops"]),
    (
        "simulation",
        &["tunnel-proto", "tunnel-etcd", "tunnel-directory", "testkit"],
    ),
    (
        "e2e",
        &[
            "tunnel-server",
            "tunnel-client",
            "tunnel-http",
            "tunnel-ops",
            "testkit",
        ],
    ),
    ("loadtest", &["tunnel-proto"]),
    ("fuzz", &["tunnel-proto", "tunnel-http", "tunnel-routing"]),
];

/// Words that would be a second name for what the design has a name for.
const SYNONYMS: [(&str, &str); 8] = [
    ("agent", "tunnel client"),
    ("agents", "tunnel clients"),
    ("backend", "upstream"),
    ("backends", "upstreams"),
    ("endpoint", "route, upstream or listener"),
    ("endpoints", "routes, upstreams or listeners"),
    ("tenant", "account or runtime"),
    ("tenants", "accounts or runtimes"),
];

/// Text that belongs to one machine, or to where packages come from.
const PLACES: [&str; 9] = [
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("py", "pi.org"),
    concat!("python", "hosted.org"),
    concat!("registry.npm", "js.org"),
];

/// A file's path within the project, and its text.
type Source = (PathBuf, String);

#[test]
fn every_source_file_opens_with_what_it_is() {
    // A reader who lands in any file must be able to tell where they are.
    check(sources("rs"), |text| {
        let complaint = (1, "does not open with `//!`".to_owned());
        if text.starts_with("//!") {
            Vec::new()
        } else {
            vec![complaint]
        }
    });
}

#[test]
fn no_file_is_long() {
    // A long file has more than one reason to change.
    let is_test = |path: &Path| {
        path.file_stem().is_some_and(|stem| stem == "tests")
            || path.iter().any(|part| part == "tests" || part == "benches")
    };
    let (tests, code) = sources("rs")
        .into_iter()
        .partition(|(path, _)| is_test(path));
    for (files, most) in [(code, CODE_LINES), (tests, TEST_LINES)] {
        check(files, |text| {
            let lines = code_lines(text);
            let complaint = (
                1,
                format!("has {lines} lines of code, at most {most} are allowed"),
            );
            if lines > most {
                vec![complaint]
            } else {
                Vec::new()
            }
        });
    }
}

#[test]
fn no_module_has_an_empty_name() {
    // Such modules collect what nobody wanted to think about.
    let found = sources("rs").into_iter().filter(|(path, _)| {
        let stem = path.file_stem().unwrap_or_default();
        EMPTY_NAMES.iter().any(|name| stem == *name)
    });
    let found: Vec<_> = found.map(|(path, _)| path).collect();
    assert!(found.is_empty(), "names that say nothing: {found:?}");
}

#[test]
fn crates_depend_only_on_those_that_the_table_allows() {
    // The wire knows no program, the programs do not know each other; measuring knows the wire.
    let members: Vec<_> = ARROWS.iter().map(|(name, _)| *name).collect();
    for (path, text) in sources("toml") {
        let manifest: toml::Table = match toml::from_str(&text) {
            Ok(manifest) if path.ends_with("Cargo.toml") => manifest,
            _ => continue,
        };
        let Some(name) = manifest
            .get("package")
            .and_then(|package| package.get("name"))
        else {
            continue;
        };
        let name = name.as_str().unwrap();
        let directory = path
            .parent()
            .and_then(Path::file_name)
            .unwrap()
            .to_str()
            .unwrap();
        let known = ARROWS.iter().find(|(member, _)| *member == directory);
        let (_, allowed) = known.unwrap_or_else(|| panic!("{directory} has no arrows yet"));
        for (kind, other) in dependencies(&manifest) {
            let ours = members.contains(&other) && other != name;
            let is_testkit = kind == "dev-dependencies" && other == "testkit";
            assert!(
                !ours || is_testkit || allowed.contains(&other),
                "{name} must not know {other}"
            );
        }
    }
}

#[test]
fn no_module_imports_itself_through_others() {
    // The modules of a circle can only be read, tested and moved together.
    for (member, _) in ARROWS {
        for (parent, mut imports) in imports(member) {
            keep_circles(&mut imports);
            assert!(imports.is_empty(), "{member}, {parent}: {imports:#?}");
        }
    }
}

#[test]
fn things_are_called_by_the_design_s_words() {
    // Two names for one thing make two things of it.
    // A command of etcdctl has one of the words for a name.
    let exempt =
        |path: &Path| path.ends_with("tests/it/tidy.rs") || path.ends_with("testkit/src/etcd.rs");
    let sources = sources("rs").into_iter().filter(|(path, _)| !exempt(path));
    check(sources.collect(), |text| {
        lines(text, |line| {
            let found = SYNONYMS.iter().find(|(word, _)| has_word(line, word));
            found.map(|(word, instead)| format!("says {word}; here it is {instead}"))
        })
    });
}

#[test]
fn bodies_of_hyper_are_read_in_one_place() {
    // hyper ends a body of HTTP/2 in order when its stream is reset with NO_ERROR: platform clients have theirs from h2.
    // Where HTTP/1 alone is spoken (to servers and proxies that the client dials, at and to the admin listener, at the
    // tunnel listener) hyper's own body will do.
    let allowed = |path: &Path| {
        let path = path.to_string_lossy();
        path.starts_with("tunnel-client/src/dial/")
            || path.contains("tests")
            || [
                "tunnel-client/src/http1.rs",
                "tunnel-server/src/connect.rs",
                "tunnel-ops/src/admin/client.rs",
                "tunnel-ops/src/admin.rs",
                "tunnel-http/src/received.rs",
            ]
            .contains(&&*path)
    };
    let programs = [
        "tunnel-client/src",
        "tunnel-routing/src",
        "tunnel-server/src",
        "tunnel-http/src",
        "tunnel-ops/src",
    ];
    let mut sources = sources("rs");
    sources
        .retain(|(path, _)| programs.iter().any(|root| path.starts_with(root)) && !allowed(path));
    check(sources, |text| {
        lines(text, |line| {
            let is_it = line.contains("body::") && has_word(line, "Incoming");
            is_it.then(|| "reads a body of hyper's: use tunnel_http::received".to_owned())
        })
    });
}

#[test]
fn programs_print_in_one_place() {
    // `println!` and `eprintln!` panic where the reader has gone: `tunnel-client routes test … | head -1`.
    let programs = [
        "tunnel-client/src",
        "tunnel-routing/src",
        "tunnel-server/src",
        "tunnel-http/src",
        "tunnel-ops/src",
        "demo/src",
    ];
    let mut sources = sources("rs");
    sources.retain(|(path, _)| {
        let is_test = path
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        let is_program = programs.iter().any(|root| path.starts_with(root));
        is_program && !is_test && !path.ends_with("tunnel-ops/src/terminal.rs")
    });
    check(sources, |text| {
        let code = text.split("#[cfg(test)]\nmod tests {").next();
        lines(code.unwrap_or_default(), |line| {
            let prints = line.contains("println!(") || line.contains("print!(");
            let writes = line.contains("stdout()") && !line.contains("is_terminal");
            let is_it = (prints || writes) && !line.trim_start().starts_with("//");
            is_it.then(|| "prints: use tunnel_ops::terminal::print or print_note!".to_owned())
        })
    });
}

#[test]
fn nothing_names_a_machine() {
    // What is committed must be true on every machine.
    let exempt = ["Cargo.lock", "tidy.rs"];
    let mut files = Vec::new();
    for extension in [
        "rs", "md", "toml", "py", "html", "css", "js", "yaml", "yml", "sh", "",
    ] {
        files.extend(sources(extension));
    }
    files.retain(|(path, _)| !exempt.iter().any(|name| path.ends_with(name)));
    check(files, |text| {
        lines(text, |line| {
            let found = PLACES.iter().find(|place| line.contains(**place));
            found.map(|place| format!("names {place}"))
        })
    });
}

#[test]
fn links_lead_to_files() {
    // A link that leads nowhere says that nobody has read this for a while.
    for (path, text) in sources("md") {
        for target in links(&text) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if elsewhere || file.is_empty() {
                continue;
            }
            let from = root().join(&path);
            let to = from.parent().unwrap().join(file);
            assert!(
                to.exists(),
                "{}: the link to {target} leads nowhere",
                path.display()
            );
        }
    }
}

#[test]
fn the_architecture_names_files_that_exist() {
    // A reader looks for these names, so they must change with the files.
    let without_src = |path: &str| format!("/{}", path.replace("/src/", "/"));
    let files = sources("rs").into_iter();
    let files: Vec<_> = files
        .map(|(path, _)| without_src(&path.to_string_lossy()))
        .collect();
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let is_separator = |c: char| !c.is_alphanumeric() && !"_-/.".contains(c);
    let names = text
        .split(is_separator)
        .filter(|name| name.ends_with(".rs"));
    let missing: Vec<_> = names
        .filter(|name| !files.iter().any(|file| file.ends_with(&without_src(name))))
        .collect();
    assert!(missing.is_empty(), "there are no files {missing:?}");
}

/// Fails with all that `inspect` finds in all sources, as `path:line: complaint`.
fn check(sources: Vec<Source>, inspect: impl Fn(&str) -> Vec<(usize, String)>) {
    assert!(
        !sources.is_empty(),
        "no sources were found, so nothing was checked"
    );
    let mut complaints = String::new();
    for (path, text) in sources {
        for (line, complaint) in inspect(&text) {
            complaints.push_str(&format!("{}:{line}: {complaint}\n", path.display()));
        }
    }
    assert!(complaints.is_empty(), "\n{complaints}");
}

fn lines(text: &str, inspect: impl Fn(&str) -> Option<String>) -> Vec<(usize, String)> {
    let lines = text.lines().zip(1..);
    lines
        .filter_map(|(line, number)| inspect(line).map(|found| (number, found)))
        .collect()
}

/// Lines that are neither blank nor comments, before the file's own tests.
fn code_lines(text: &str) -> usize {
    let before_tests = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = before_tests.lines().map(str::trim_start);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

/// Whether `line` has `word` as a word of its own. `User-Agent` and what libraries call things are
/// not ours to name: they are written with a capital, or after a hyphen or an underscore.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let joined = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(joined) && !after.is_some_and(|c| c.is_alphanumeric())
    })
}

/// All targets of inline links in a Markdown text, code blocks left out.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|prose| prose.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split(')').next())
        .map(str::trim)
        .collect()
}

/// A module's path within its crate, or that of an item.
type ModulePath = Vec<String>;

/// Which modules of a crate import which of their siblings, tests left out, by the parent of both.
fn imports(member: &str) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let modules = modules(member);
    let mut all = BTreeMap::<_, BTreeMap<_, BTreeSet<_>>>::new();
    for (module, text) in &modules {
        for used in used_paths(module, text) {
            let shared = module.iter().zip(&used).take_while(|(a, b)| a == b);
            let depth = shared.count();
            let is_sibling = depth < module.len().min(used.len());
            if is_sibling && modules.contains_key(&used[..=depth]) {
                let siblings = all.entry(module[..depth].join("::")).or_default();
                let used = used[depth].clone();
                siblings
                    .entry(module[depth].clone())
                    .or_default()
                    .insert(used);
            }
        }
    }
    all
}

/// The modules of a crate with their code, tests left out.
fn modules(member: &str) -> BTreeMap<ModulePath, String> {
    let src = Path::new(member).join("src");
    let mut modules = BTreeMap::new();
    for (path, text) in sources("rs") {
        let Ok(inner) = path.strip_prefix(&src) else {
            continue;
        };
        let inner = inner.with_extension("");
        let mut module: ModulePath = inner
            .iter()
            .map(|part| part.to_string_lossy().into())
            .collect();
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        if module == ["lib"] || module == ["main"] {
            module.clear();
        }
        modules.insert(module, text);
    }
    modules
}

/// The paths within its crate that a module's code names, before the file's own tests.
fn used_paths(module: &[String], text: &str) -> BTreeSet<ModulePath> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut used = BTreeSet::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && !"_:$".contains(c)) {
                let mut paths = Vec::new();
                read_paths(&code[at..], &[], &mut paths);
                used.extend(paths.iter().filter_map(|path| absolute(module, path)));
            }
        }
    }
    used
}

/// Reads the path, or the paths of a group, at the start of a text; returns the length read.
fn read_paths(text: &str, prefix: &[String], paths: &mut Vec<ModulePath>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        if text[at..].starts_with('{') {
            loop {
                at += 1;
                at += read_paths(&text[at..], &path, paths);
                match text[at..].find([',', '}']) {
                    Some(next) => at += next,
                    None => return text.len(),
                }
                if text[at..].starts_with('}') {
                    return at + 1;
                }
            }
        }
        let name = first_name(&text[at..]);
        at += name.len();
        if !name.is_empty() {
            path.push(name);
        }
        if !text[at..].starts_with("::") {
            break;
        }
        at += 2;
    }
    if path.len() > prefix.len() {
        paths.push(path);
    }
    at
}

/// The path from the crate's root, of one that begins with `crate`, `self` or `super`.
fn absolute(module: &[String], path: &[String]) -> Option<ModulePath> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let base = match path[0].as_str() {
        "crate" => &module[..0],
        _ => module.get(..module.len().checked_sub(ups)?)?,
    };
    Some([base, &path[ups.max(1)..]].concat())
}

fn first_name(text: &str) -> String {
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    text.trim_start().chars().take_while(is_name).collect()
}

/// Keeps only the modules of circles, and those on the way from one circle to another.
fn keep_circles(imports: &mut BTreeMap<String, BTreeSet<String>>) {
    loop {
        let before = imports.len();
        let imported: BTreeSet<_> = imports.values().flatten().cloned().collect();
        imports.retain(|module, used| !used.is_empty() && imported.contains(module));
        let left: BTreeSet<_> = imports.keys().cloned().collect();
        imports
            .values_mut()
            .for_each(|used| used.retain(|module| left.contains(module)));
        if imports.len() == before {
            return;
        }
    }
}

fn dependencies(manifest: &toml::Table) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let table = manifest.get(kind).and_then(toml::Value::as_table);
        let names = table.into_iter().flat_map(toml::Table::keys);
        found.extend(names.map(|name| (kind, name.as_str())));
    }
    found
}

/// All text files with this extension (none for those without), in order.
fn sources(extension: &str) -> Vec<Source> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if NOT_OURS.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().unwrap_or_default() == extension
                && let Ok(text) = fs::read_to_string(&path)
            {
                found.insert(path.strip_prefix(root()).unwrap().to_owned(), text);
            }
        }
    }
    found.into_iter().collect()
}

#[test]
fn the_checks_see_what_they_look_for() {
    assert_eq!(
        code_lines("//! a\n\nfn a() {\n    // why\n}\n#[cfg(test)]\nmod tests {\n}\n"),
        2
    );
    assert!(has_word("an agent dials", "agent") && has_word("agent.rs", "agent"));
    assert!(!has_word(
        "reagent, user-agent, user_agent, Agent, agenta",
        "agent"
    ));
    let imports = "use crate::{\n    a::{b, c as x},\n    d,\n};\n// crate::e\nuse super::super::y::Z;\nfn f(g: self::h::I) {}\n#[cfg(test)]\nmod tests {\n    use crate::j;";
    let module = ["m", "n", "o"].map(str::to_owned);
    let used = used_paths(&module, imports).into_iter();
    assert_eq!(
        used.map(|path| path.join("::")).collect::<Vec<_>>(),
        ["a::b", "a::c", "d", "m::n::o::h::I", "m::y::Z"]
    );
    let pairs = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "e")];
    let mut circles = BTreeMap::<_, BTreeSet<_>>::new();
    for (module, used) in pairs {
        circles
            .entry(module.to_owned())
            .or_default()
            .insert(used.to_owned());
    }
    keep_circles(&mut circles);
    assert_eq!(circles.into_keys().collect::<Vec<_>>(), ["b", "c"]);
    let text = "[a](b.md) ```\n[c](d)\n``` [e](https://f)";
    assert_eq!(links(text), ["b.md", "https://f"]);
}
