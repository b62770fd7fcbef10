"""Drives Debian's headless Chromium over its debugging pipe (descriptors 3 and 4, one JSON message each, ended by NUL).

A pipe needs no port and no driver program. Rejected: selenium (a second process that speaks to this same interface, and 20 packages).
Protocol: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps", "--mute-audio",
    "--hide-scrollbars", "--remote-debugging-pipe", "--proxy-server=direct://", "--no-default-browser-check",
)  # fmt: skip
# A cold start of Chromium on two busy cores.
BOUND_SECONDS = 40


class Browser:
    """One page of one browser. Any: messages are JSON whose shape Chromium defines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = self._context = ""
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._pump = asyncio.get_running_loop().create_task(self._receive())

    async def open_page(self) -> Self:
        self._context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=self._context))["targetId"]
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        return self

    async def close(self) -> None:
        self._session = ""
        if self._context:
            await self.call("Target.disposeBrowserContext", browserContextId=self._context)
            # Its answer comes behind all that was said of the page: the next one reads from here.
            await self.call("Browser.getVersion")
        self._pump.cancel()
        await asyncio.wait({self._pump})

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(BOUND_SECONDS):
            reply = await answer
        assert "error" not in reply, f"{method}: {reply['error']}"
        result: dict[str, Any] = reply["result"]
        return result

    async def visit(self, url: str, *, javascript: bool = True) -> None:
        await self.call("Emulation.setScriptExecutionDisabled", value=not javascript)
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(BOUND_SECONDS):
            await self._loaded.wait()

    async def look(self, *, width: int, dark: bool = False) -> None:
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, script: str) -> Any:
        reply = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def until(self, condition: str) -> None:
        """Return once `condition` holds in the page, looked at anew with each change of the document."""
        await self.evaluate(
            "new Promise((done) => { const look = () => { if (" + condition + ") { watch.disconnect(); done(true); } };"
            "const watch = new MutationObserver(look);"
            "watch.observe(document, {subtree: true, childList: true, characterData: true, attributes: true}); look(); })"
        )

    async def screenshot(self, file: Path) -> None:
        picture = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(picture["data"]))

    async def _receive(self) -> None:
        while True:
            message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                self._waiting.pop(message["id"]).set_result(message)
            elif message.get("sessionId") == self._session:
                self._note(message["method"], message["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        notes: dict[str, Callable[[], None]] = {
            "Page.loadEventFired": self._loaded.set,
            "Runtime.exceptionThrown": lambda: self.complaints.append(json.dumps(params)),
            "Runtime.consoleAPICalled": lambda: self.complaints.append(json.dumps(params)),
            "Log.entryAdded": lambda: self.complaints.append(json.dumps(params)),
            "Network.requestWillBeSent": lambda: self.requested.append(params["request"]["url"]),
        }
        if method in notes:
            notes[method]()


class Chromium:
    """One process of the browser, for all tests of a pytest process: a cold start takes seconds, a page of its own none."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._from_us = os.pipe()
        self._from_browser, to_us = os.pipe()
        # Chromium wants descriptors 3 and 4 exactly; the shell puts them there.
        script = f'exec "$@" 3<&{to_browser} 4>&{to_us}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, to_us), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(to_us)

    @asynccontextmanager
    async def page(self) -> AsyncGenerator[Browser, None]:
        """A page with cookies and a cache of its own; one at a time."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
        theirs, ours = os.fdopen(os.dup(self._from_browser), "rb"), os.fdopen(os.dup(self._from_us), "wb")
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), theirs)
        sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, ours)
        page = Browser(reader, sink)
        try:
            yield await page.open_page()
        finally:
            try:
                await page.close()
            finally:
                sink.close()
                source.close()

    def end(self) -> None:
        """End it, and wait until it is gone."""
        os.write(self._from_us, b'{"id": 0, "method": "Browser.close"}\0')
        os.close(self._from_us)
        os.close(self._from_browser)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
