//! What commands print for people: text that cannot steer a terminal, and colours where there is one.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr, stdout};

/// Writes a result to standard output. Returns whether standard output is still read.
///
/// # Errors
/// When it cannot be written for another reason.
pub fn print(text: &str) -> io::Result<bool> {
    let mut output = stdout().lock();
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    match written {
        Ok(()) => Ok(true),
        // For example, the reader is `head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a line to standard error as `eprintln!` does, which panics where nobody reads it.
#[macro_export]
macro_rules! print_note {
    ($($words:tt)*) => { $crate::terminal::write_note(format_args!($($words)*)) };
}

/// Writes a line to standard error, if that is read.
pub fn write_note(line: fmt::Arguments<'_>) {
    let _ = writeln!(stderr().lock(), "{line}");
}

/// Replaces control characters, so that a terminal does not interpret them.
#[must_use]
pub fn printable(text: &str) -> String {
    let safe = |letter: char| match letter.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => letter,
    };
    text.chars().map(safe).collect()
}

/// Colours, where there is a terminal to show them.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    coloured: bool,
}

impl Paint {
    /// No colours.
    pub const PLAIN: Self = Self { coloured: false };

    /// Colours if standard output is a terminal and `NO_COLOR` is not set.
    #[must_use]
    pub fn for_terminal() -> Self {
        Self {
            coloured: stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Text that stands out.
    #[must_use]
    pub fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }

    /// Text that stands back.
    #[must_use]
    pub fn soft(&self, text: &str) -> String {
        self.with("2", text)
    }

    /// Text about a success.
    #[must_use]
    pub fn good(&self, text: &str) -> String {
        self.with("32", text)
    }

    /// Text about a failure.
    #[must_use]
    pub fn bad(&self, text: &str) -> String {
        self.with("31", text)
    }

    fn with(&self, code: &str, text: &str) -> String {
        if self.coloured {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
