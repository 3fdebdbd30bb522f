//! Tests of what a table of settings expands to.
#![allow(unreachable_pub, reason = "tables are public where programs have them")]

use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser};

use super::*;
use crate::config_value::{Count, DurationText};

crate::settings! {
    variables "OPS_";
    given Source;
    settings Settings;
    file_only {
        /// Things, which no flag can hold.
        thing: Vec<Thing>;
    }
    common { by_default, by_flag }

    "First" {
        /// One that a flag gives
        ///
        /// And what only the page says.
        by_flag: String, else "", "TEXT", AtOnce;
        /// One that a variable gives
        by_variable: String, else "unless set", "TEXT", AtOnce;
        /// One that the file gives
        by_file: PathBuf, given "required", "FILE", AtOnce;
    }
    "Second" {
        /// One that nothing
        /// gives
        by_default: DurationText = Duration::from_secs(60), "TIME", Restart;
        /// One that counts at once unless it is taken away
        number: Count<1, 9>, else "", "A|B", Depends(is_gone);
        /// Folders
        folders: OneOrMorePaths = Vec::new(), "FOLDER", Restart;
    }
}

#[derive(Debug, Clone, serde::Deserialize)]
pub struct Thing {
    file: PathBuf,
}

impl FileOnly for Thing {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        vec![&mut self.file]
    }
}

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    given: Given<Source>,
}

fn is_gone(_: Option<&str>, after: Option<&str>) -> bool {
    after.is_none()
}

fn in_file(text: &str) -> Source {
    Source::from_file(TomlFile::from_text("/etc/c.toml", text)).unwrap()
}

fn shown(settings: &Settings) -> Vec<String> {
    let mut all = Vec::new();
    settings.each_shown(&mut |setting, value| all.push(format!("{setting} {value}")));
    all
}

#[test]
fn each_setting_names_its_origin() {
    Flags::command().debug_assert();
    let command = Flags::command()
        // A variable that is set in every test run.
        .mut_arg("by_variable", |flag| flag.env("CARGO_PKG_VERSION_MAJOR"));
    let matches = command.get_matches_from(["", "--by-flag=1"]);
    let flags = Flags::from_arg_matches(&matches).unwrap().given.source;
    let file = in_file("by_flag = '2'\nby_variable = '2'\n\n by_file = '2'\n");
    let source = flags.clone().or(file);
    for (setting, origin, mention, is_given) in [
        (&setting::by_flag, "--by-flag", "--by-flag", true),
        (
            &setting::by_variable,
            "the environment variable OPS_BY_VARIABLE",
            "OPS_BY_VARIABLE",
            true,
        ),
        (
            &setting::by_file,
            "/etc/c.toml:4:2: by_file",
            "`by_file` in line 4 of /etc/c.toml",
            true,
        ),
        (
            &setting::by_default,
            "--by-default",
            "the default of --by-default",
            false,
        ),
    ] {
        let found = source.origin(setting);
        assert_eq!(found.to_string(), origin);
        assert_eq!(found.mention_or_default(), mention);
        assert_eq!(found.is_given(), is_given, "{setting}");
    }
    assert!(!flags.origin(&setting::by_file).is_given());
    assert_eq!(source.by_file, Some("/etc/2".into()));
    let settings = source.settings();
    assert_eq!(settings.by_flag.as_deref(), Some("1"));
    assert_ne!(settings.by_variable.as_deref(), Some("2"));
    assert_eq!(settings.by_default, Duration::from_secs(60));
}

#[test]
fn settings_are_displayed_and_kept_as_their_rows_define() {
    let mut settings = Settings::default();
    assert_eq!(shown(&settings), ["--by-default 1m", "--folders none"]);
    let other = in_file("by_default = '5s'\nfolders = 'a'\nnumber = 7\nby_flag = 'x'").settings();
    let mut taken = other.clone();
    taken.keep_started(&settings);
    assert_eq!(
        shown(&taken),
        [
            "--by-flag x",
            "--by-default 1m",
            "--number 7",
            "--folders none"
        ]
    );
    settings.keep_started(&other);
    assert_eq!(
        shown(&settings),
        ["--by-default 5s", "--number 7", "--folders /etc/a"]
    );
}

#[test]
fn files_are_watched_unless_a_restart_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.toml");
    let text = "by_file = 'a'\nfolders = ['b']\nthing = [{ file = 'c' }]\n";
    fs::write(&config, text).unwrap();
    let given = Given::new(Some(config.clone()), Source::default());
    let named = |name| folder.path().join(name);
    assert_eq!(given.watched(), [named("a"), named("c"), config.clone()]);
    fs::write(&config, "unknown = 1").unwrap();
    assert_eq!(given.watched(), [config]);
}

#[test]
fn differences_are_listed() {
    let (one, two) = (in_file("number = 1"), in_file("number = 1\nby_flag = 'x'"));
    let keys = |settings: Vec<&Setting>| settings.iter().map(|it| it.key).collect::<Vec<_>>();
    assert_eq!(keys(one.differences(&two)), ["by_flag"]);
    assert!(one.differences(&one).is_empty());
}

#[test]
fn the_most_used_flags_come_first_and_are_the_short_help() {
    let flags = |help: String| -> Vec<String> {
        let lines = help.lines().map(str::trim);
        lines
            .filter(|line| line.starts_with("--") || line.ends_with(':'))
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };
    let short = flags(Flags::command().render_help().to_string());
    assert_eq!(
        short,
        ["Options:", "--config", "Most", "--by-default", "--by-flag"]
    );
    let long = flags(Flags::command().render_long_help().to_string());
    assert_eq!(long[..short.len()], short);
    assert_eq!(
        long[short.len()..],
        [
            "First:",
            "--by-variable",
            "--by-file",
            "Second:",
            "--number",
            "--folders"
        ]
    );
    let hint = Flags::command().render_help().to_string();
    assert!(hint.contains("see more with '--help'"), "{hint}");
}

#[test]
fn help_and_page_match_the_table() {
    let command = Flags::command();
    let help = |key: &str| {
        let flag = command.get_arguments().find(|flag| flag.get_id() == key);
        flag.and_then(Arg::get_help).unwrap().to_string()
    };
    assert_eq!(help("by_flag"), "One that a flag gives");
    assert_eq!(
        help("by_variable"),
        "One that a variable gives [unless set]"
    );
    assert_eq!(help("by_default"), "One that nothing gives [default: 1m]");
    assert!(help("number").ends_with(" [1 to 9]"));
    let page = page::<Source>("ops");
    let (_, tables) = page.split_once("## First").unwrap();
    let rows: Vec<_> = tables.lines().filter(|line| line.contains("--")).collect();
    assert_eq!(
        rows[1],
        "| `--by-flag` | - | TEXT | at once | One that a flag gives. And what only the page says. |"
    );
    assert_eq!(
        rows[5],
        "| `--by-default` | `1m` | TIME | restart | One that nothing gives |"
    );
    assert!(page.contains("\n## Second\n"));
}

#[test]
fn an_unknown_key_is_reported_with_position_and_suggestion() {
    for (text, expected) in [
        (
            "\nby_flg = 'a'\n",
            "c.toml:2:1: unknown key `by_flg`, did you mean `by_flag`?",
        ),
        (
            "by-default = '5s'\n",
            "c.toml:1:1: unknown key `by-default`, did you mean `by_default`?",
        ),
        (
            "colour = 1",
            "c.toml:1:1: unknown key `colour`, expected one of by_flag, by_variable, by_file, by_default, number, \
             folders, thing",
        ),
    ] {
        let error = Source::from_file(TomlFile::from_text("c.toml", text)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
