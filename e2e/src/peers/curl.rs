//! curl, run as a person would run it.

use std::{ffi::OsStr, process::Stdio};

use futures_util::future::BoxFuture;
use tokio::process::Command;

use crate::{
    deadline::{SOON, within},
    http1::Head,
};

/// The result of a run of curl.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit code; 0 is success, 18 a cut response, 52 no response, 56 a reset.
    pub code: i32,
    /// What it wrote to standard output.
    pub body: Vec<u8>,
    /// All response heads, informational ones first.
    pub heads: Vec<Head>,
    /// What it wrote to standard error.
    pub complaint: String,
}

/// Runs curl with these arguments, quietly, with response heads apart from the content. It
/// starts when the future is first polled.
///
/// # Panics
/// When curl is not there or does not end.
pub fn curl<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> BoxFuture<'static, Output> {
    let mut command = Command::new("curl");
    // `-q` first: no configuration file of this machine's user.
    command.args(["-q", "--silent", "--show-error", "--noproxy", "*"]);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Box::pin(run(command))
}

async fn run(mut command: Command) -> Output {
    let heads = tempfile::NamedTempFile::new().unwrap();
    command.arg("--dump-header").arg(heads.path());
    let output = within(6 * SOON, &format!("{command:?}"), command.output()).await;
    let output = output.unwrap_or_else(|error| panic!("curl: {error}; run e2e/install-peers"));
    let text = std::fs::read(heads.path()).unwrap();
    Output {
        code: output.status.code().unwrap_or(-1),
        body: output.stdout,
        heads: split_heads(&text),
        complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn split_heads(text: &[u8]) -> Vec<Head> {
    let text = String::from_utf8_lossy(text);
    let heads = text
        .split_inclusive("\r\n\r\n")
        .filter(|head| head.ends_with("\r\n\r\n"));
    heads.map(|head| Head::parse(head.as_bytes())).collect()
}

impl Output {
    /// The content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The final response's head.
    ///
    /// # Panics
    /// When there was no response.
    pub fn head(&self) -> &Head {
        self.heads
            .last()
            .unwrap_or_else(|| panic!("curl had no response: {self:?}"))
    }

    /// The final status, of an exchange that ended as it should.
    ///
    /// # Panics
    /// When it did not.
    pub fn status(&self) -> u16 {
        assert_eq!(self.code, 0, "curl failed: {}", self.complaint);
        self.head().status()
    }
}
