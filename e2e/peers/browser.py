"""Opens a page in headless Chromium and does what a person would do there.

usage: browser.py CHROMIUM URL STEPS [WIDTH [dark|light [SCREENSHOT.png]]]

STEPS is a JSON array of pairs, done one after another:
  ["run", SCRIPT]          runs a script in the page
  ["await", EXPRESSION]    waits until an expression is true
  ["key", NAME]            presses a key: Tab, Enter, Escape, or a character
  ["tab", EXPRESSION]      presses Tab until an expression is true
  ["type", TEXT]           types into what has the focus
  ["width", PIXELS]        makes the window as wide

Prints the text that the page then shows. Ends with 1 when an expression stays false, when the page is wider than its window
at any of the widths, and when the console has an error, such as a breach of the page's own Content-Security-Policy.
"""

import asyncio
import base64
import json
import os
import sys
import tempfile
import urllib.request

from websockets.asyncio.client import connect

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-port=0",
]
PATIENCE_SECONDS = 20
# Far more than there is to reach on a page under test.
TABS = 60
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, "")}


class Failed(Exception):
    """A step did not succeed."""


class Tab:
    """One tab, by the browser's own protocol."""

    def __init__(self, socket):
        self.socket = socket
        self.number = 0
        self.errors = []

    def note(self, message):
        """Keeps what a console would show in red."""
        method, parameters = message["method"], message["params"]
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            # How an API asks for a credential.
            if entry["source"] == "network" and "status of 401" in entry["text"]:
                return
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(json.dumps(parameters["args"]))

    async def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        await self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(await self.socket.recv())
            if answer.get("id") == self.number:
                return answer.get("result", {})
            if "method" in answer:
                self.note(answer)

    async def value(self, expression):
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer.get("result", {}).get("value")


async def tab_address(browser):
    """Where the browser's first tab can be spoken to; it says so on standard error."""
    async for line in browser.stderr:
        if b"DevTools listening on" in line:
            port = line.split(b"127.0.0.1:")[1].split(b"/")[0].decode()
            break
    def ask():
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10).read()

    tabs = json.loads(await asyncio.to_thread(ask))
    return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")


async def becomes_true(tab, expression):
    for _ in range(PATIENCE_SECONDS * 10):
        if await tab.value(f"Boolean({expression})"):
            return True
        await asyncio.sleep(0.1)
    return False


async def press(tab, key):
    code, text = KEYS.get(key, (0, key))
    parameters = {"key": key, "windowsVirtualKeyCode": code, "text": text}
    await tab.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **parameters)
    await tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


async def tab_to(tab, expression):
    for _ in range(TABS):
        await press(tab, "Tab")
        if await tab.value(f"Boolean({expression})"):
            return True
    return False


async def set_width(tab, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)


async def check_width(tab):
    overflow = await tab.value("document.documentElement.scrollWidth - innerWidth")
    if overflow and overflow > 0:
        raise Failed(f"the page is {overflow} pixels wider than its window")


async def do(tab, kind, what):
    if kind == "run":
        await tab.value(what)
    elif kind == "await" and not await becomes_true(tab, what):
        raise Failed(f"stays false: {what}")
    elif kind == "key":
        await press(tab, what)
    elif kind == "tab" and not await tab_to(tab, what):
        raise Failed(f"no Tab leads there: {what}")
    elif kind == "type":
        await tab.call("Input.insertText", text=what)
    elif kind == "width":
        await check_width(tab)
        await set_width(tab, int(what))


async def visit(tab, url, steps, width, scheme, screenshot):
    for domain in ["Runtime", "Log", "Page"]:
        await tab.call(f"{domain}.enable")
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    await tab.call("Emulation.setEmulatedMedia", features=media)
    await set_width(tab, width)
    await tab.call("Page.navigate", url=url)
    loaded = "location.protocol == 'http:' && document.readyState == 'complete'"
    try:
        for kind, what in [["await", loaded], *steps]:
            await do(tab, kind, what)
        if screenshot:
            picture = await tab.call("Page.captureScreenshot", captureBeyondViewport=True)
            with open(screenshot, "wb") as file:
                file.write(base64.b64decode(picture["data"]))
        await check_width(tab)
        if tab.errors:
            raise Failed("\n".join(tab.errors))
    except Failed as failed:
        print(await tab.value("document.body.innerText"))
        print(failed, *tab.errors, sep="\n")
        return 1
    print(await tab.value("document.body.innerText"))
    return 0


async def main(chromium, url, steps, width="1280", scheme="light", screenshot=None):
    with tempfile.TemporaryDirectory() as profile:
        browser = await asyncio.create_subprocess_exec(
            chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            # What it would leave there when it is killed.
            env={**os.environ, "TMPDIR": profile},
        )
        try:
            async with connect(await tab_address(browser), max_size=None) as socket:
                return await visit(Tab(socket), url, json.loads(steps), int(width), scheme, screenshot)
        finally:
            browser.kill()
            await browser.wait()


sys.exit(asyncio.run(main(*sys.argv[1:])))
