//! A program's completions for shells, and its man pages.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{Args, Command, CommandFactory};
pub use clap_complete::Shell;

/// Flags of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Flags of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder to write to
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// A script that has a shell complete the commands and flags of a program.
#[must_use]
pub fn completions<P: CommandFactory>(shell: Shell) -> Vec<u8> {
    let mut command = P::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes a man page for a program and for each of its commands into a folder, which is made if it is not there.
///
/// # Errors
/// When a file cannot be written.
pub fn write_man_pages<P: CommandFactory>(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(with_all_flags(P::command()), folder)
}

/// A man page would have no text for flags that the short help leaves out.
fn with_all_flags(command: Command) -> Command {
    command
        .mut_args(|flag| flag.hide_short_help(false))
        .mut_subcommands(with_all_flags)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(name = "sample")]
    enum Sample {
        /// Does it
        Go {
            /// How fast
            #[arg(long, hide_short_help = true)]
            speed: Option<u8>,
        },
    }

    #[test]
    fn commands_and_flags_are_completed_and_described() {
        let _ = Sample::Go { speed: None };
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completions::<Sample>(shell)).unwrap();
            assert!(script.contains("go") && script.contains("speed"), "{shell}");
        }
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man1");
        write_man_pages::<Sample>(&pages).unwrap();
        let page = std::fs::read_to_string(pages.join("sample-go.1")).unwrap();
        assert!(page.contains("How fast"), "{page}");
    }
}
