"""A headless Chromium for tests, driven by WebDriver over HTTP with the standard library alone."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = (
    ""
    if CHROMIUM and DRIVER
    else "chromium and chromium-driver are not installed (apt install chromium chromium-driver)"
)
_PATIENCE_S = 30.0


class Browser:
    """One window of a browser. `run` evaluates JavaScript in the page."""

    def __init__(self, port: int, dark: bool = False, size: tuple[int, int] = (1280, 720)) -> None:
        self._port = port
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            f"--window-size={size[0]},{size[1]}",
            *(["--force-dark-mode"] if dark else []),
        ]
        # Without it chrome://tracing, the trace viewer, answers that it is disabled.
        state = {"internal_only_uis_enabled": True}
        options = {"binary": CHROMIUM, "args": arguments, "localState": state}
        capabilities = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        found = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{found['sessionId']}"

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            body = json.dumps(content) if content is not None else None
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read())["value"]
        finally:
            connection.close()
        if answer.status != 200:
            raise AssertionError(f"{path}: {value}")
        return value

    def open(self, address: str) -> None:
        """Load a page."""
        self._ask("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function and return its value."""
        return self._ask(
            "POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)}
        )

    def text(self, selector: str) -> str:
        """Return the visible text of an element; fails without it."""
        found = self.run(
            "const e = document.querySelector(arguments[0]); return e ? e.innerText : null;",
            selector,
        )
        assert found is not None, f"no {selector}"
        return str(found)

    def has(self, selector: str) -> bool:
        """Return True if there is such an element."""
        return bool(self.run("return document.querySelector(arguments[0]) !== null;", selector))

    def click(self, selector: str) -> None:
        """Click an element."""
        self.run("document.querySelector(arguments[0]).click();", selector)

    def key(self, key: str) -> None:
        """Press and release a key, as WebDriver names it."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        source = {"type": "key", "id": "keys", "actions": actions}
        self._ask("POST", f"{self._session}/actions", {"actions": [source]})

    def wait(self, condition: str, *arguments: Any) -> Any:
        """Return the value of a JavaScript expression as soon as it is true; fails after half a minute."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            value = self.run(f"return ({condition});", *arguments)
            if value:
                return value
            if time.monotonic() > end:
                body = self.run("return document.body.innerText;")
                raise AssertionError(f"never true: {condition}\n{body}\n{self.messages()}")
            time.sleep(0.02)

    def messages(self) -> list[str]:
        """Return errors and warnings of the page's console since the last call."""
        found = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path: Path, whole: bool = False) -> None:
        """Store a picture of the window, or of the whole page."""
        if whole:
            height = self.run("return document.documentElement.scrollHeight;")
            self.size(1280, int(height) + 10)
        data = self._ask("GET", f"{self._session}/screenshot")
        path.write_bytes(base64.b64decode(data))

    def size(self, width: int, height: int) -> None:
        """Set the size of the page's area in the window, pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._cdp("Emulation.setDeviceMetricsOverride", metrics)

    def dark(self, on: bool) -> None:
        """Prefer dark or light colours, as a user's system does."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self._cdp("Emulation.setEmulatedMedia", {"features": [feature]})

    def _cdp(self, command: str, parameters: Any) -> Any:
        content = {"cmd": command, "params": parameters}
        return self._ask("POST", f"{self._session}/goog/cdp/execute", content)

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", self._session)


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Start driver and browser, and end both. `folder`: for the output of the driver."""
    assert DRIVER is not None
    with (folder / "chromedriver.log").open("wb") as log:
        driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    try:
        browser = Browser(_port_of(driver))
        try:
            browser.size(1280, 720)
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(20)
        if driver.stdout is not None:
            driver.stdout.close()


def _port_of(driver: subprocess.Popen[bytes]) -> int:
    """Return the port in the line in which the driver prints that it has started."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if b"started successfully on port" in line:
            return int(line.rsplit(b" ", 1)[1].strip().rstrip(b"."))
    raise AssertionError("chromedriver ended at once")
