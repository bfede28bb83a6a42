# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, driven over its DevTools protocol (package websockets)."""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from websockets.sync.client import connect

START_SECONDS = 60
SECONDS = 60
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


class Browser:
    """One page of a browser of its own. Use as a context manager.

    browser.open(url)                 goes there and waits for its load event
    browser.evaluate("1 + 1")         runs a script (may be a promise) and returns its value
    browser.wait("document.title")    until the script's value is true; returns it
    browser.events["Network.requestWillBeSent"]   what was seen of that kind
    """

    @staticmethod
    def program():
        return shutil.which("chromium")

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="lamina-browser-", ignore_cleanup_errors=True)
        command = [self.program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--disable-dev-shm-usage", "--disable-background-networking",
                   "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
                   f"--user-data-dir={self._folder.name}", "--window-size=1100,800", "about:blank"]
        self._log = open(Path(self._folder.name) / "log", "wb")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log,
                                         stderr=self._log, start_new_session=True)
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self):
        port_file = Path(self._folder.name) / "DevToolsActivePort"
        end = time.monotonic() + START_SECONDS
        while not (port_file.exists() and "\n" in port_file.read_text()):
            if self._process.poll() is not None or time.monotonic() > end:
                log = (Path(self._folder.name) / "log").read_text(errors="replace")
                raise RuntimeError(f"chromium did not start: {log[-2000:]}")
            time.sleep(0.05)
        port = port_file.read_text().split("\n")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
            page = next(p for p in json.load(answer) if p["type"] == "page")
        self._connection = connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None)
        self._socket = self._connection.__enter__()
        self._ids = itertools.count(1)
        self.events = {}
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_):
        if hasattr(self, "_socket"):
            self._connection.__exit__(None, None, None)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def call(self, method, **parameters):
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if "method" in message:
                self.events.setdefault(message["method"], []).append(message["params"])
            elif message["id"] == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {json.dumps(result['exceptionDetails'])}")
        return result["result"].get("value")

    def wait(self, script, seconds=SECONDS):
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            if time.monotonic() > end:
                page = self.evaluate("document.body.innerText")
                raise RuntimeError(f"waited {seconds} s for {script}; the page: {page}")
            time.sleep(0.05)
        return value

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def press(self, key, shift=False):
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key],
                "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **keys, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        Path(path).write_bytes(base64.b64decode(data))
