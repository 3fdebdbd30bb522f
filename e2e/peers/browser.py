"""Opens a page in headless Chromium, runs a script in it, and waits until an expression is true.

usage: browser.py CHROMIUM URL SCRIPT EXPRESSION [WIDTH [dark|light [SCREENSHOT.png]]]

Prints the text that the page then shows. Ends with 1 when the expression stays false.
"""

import asyncio
import base64
import json
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


class Tab:
    """One tab, by the browser's own protocol."""

    def __init__(self, socket):
        self.socket = socket
        self.number = 0

    async def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        await self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(await self.socket.recv())
            if answer.get("id") == self.number:
                return answer.get("result", {})

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


async def visit(tab, url, script, expression, width, scheme, screenshot):
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    await tab.call("Emulation.setEmulatedMedia", features=media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)
    await tab.call("Page.enable")
    await tab.call("Page.navigate", url=url)
    loaded = "location.protocol == 'http:' && document.readyState == 'complete'"
    if await becomes_true(tab, loaded):
        await tab.value(script)
    if not await becomes_true(tab, expression):
        print(await tab.value("document.body.innerText"))
        return 1
    if screenshot:
        picture = await tab.call("Page.captureScreenshot", captureBeyondViewport=True)
        with open(screenshot, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
    overflow = await tab.value("document.documentElement.scrollWidth - innerWidth")
    if overflow and overflow > 0:
        print(f"the page is {overflow} pixels wider than its window")
        return 1
    print(await tab.value("document.body.innerText"))
    return 0


async def main(chromium, url, script, expression, width="1280", scheme="light", screenshot=None):
    with tempfile.TemporaryDirectory() as profile:
        browser = await asyncio.create_subprocess_exec(
            chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with connect(await tab_address(browser), max_size=None) as socket:
                return await visit(Tab(socket), url, script, expression, int(width), scheme, screenshot)
        finally:
            browser.kill()
            await browser.wait()


sys.exit(asyncio.run(main(*sys.argv[1:])))
