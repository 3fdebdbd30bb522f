//! Chromium, driven by a small script under `e2e/peers`.

use std::process::Command;

use super::python::{python, script};
use crate::{deadline::within, program::Program};

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Width in pixels.
    pub width: u32,
    /// `light` or `dark`, as the page's user prefers.
    pub scheme: &'static str,
}

/// Opens a page, runs `act` in it, and waits until `expected`, an expression, is true. Gives back
/// the text that the page shows.
///
/// # Panics
/// With the page's text when the expression stays false, or the page is wider than the window.
pub async fn visit(url: &str, window: Window, act: &str, expected: &str) -> String {
    let mut command = Command::new(python());
    command.arg(script("browser.py")).args([
        "chromium",
        url,
        act,
        expected,
        &window.width.to_string(),
        window.scheme,
    ]);
    let mut browser = Program::start("browser.py", &mut command);
    let limit = std::time::Duration::from_secs(60);
    let status = within(limit, "the browser to end", browser.wait_exit(limit)).await;
    let text: Vec<_> = (browser.log().all().iter())
        .map(|line| line.text().to_owned())
        .collect();
    assert!(status.success(), "{}", text.join("\n"));
    text.join("\n")
}
