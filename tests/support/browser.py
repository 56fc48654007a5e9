"""A headless Chromium inside a lab's network, where nothing outside can be reached."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from lab.host import Host
from lab.inside import CLONE_NEWNET, setns

T = TypeVar("T")
# It would look up addresses of its maker at every start, report and update itself.
QUIET = (
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-domain-reliability", "--disable-extensions", "--disable-quic", "--disable-sync",
    "--metrics-recording-only", "--no-default-browser-check", "--no-first-run", "--no-pings",
    "--disable-features=OptimizationHints,MediaRouter,Translate",
)  # fmt: skip
HEADLESS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars")  # fmt: skip
PAGE_LOAD_S = 20
SCRIPTS = {
    path.stem: path.read_text() for path in Path(__file__).with_name("page_scripts").glob("*.js")
}
DESKTOP, PHONE = (1280, 900), (390, 844)


class Browser:
    """One window. Everything that it does is done in one thread, which has joined the network."""

    def __init__(self, driver: webdriver.Chrome, thread: ThreadPoolExecutor) -> None:
        self.driver = driver
        self.requests: list[str] = []  # every address that was asked for
        self.complaints: list[str] = []  # errors and warnings of the console
        self._thread = thread

    async def do(self, work: Callable[[webdriver.Chrome], T]) -> T:
        """Have the thread do something with the window."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: work(self.driver)
        )

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.do(lambda driver: driver.get(url))

    async def script(self, text: str, *arguments: object) -> Any:
        """What a function's body returns in the page."""
        return await self.do(lambda driver: driver.execute_script(text, *arguments))

    async def measure(self, what: str, *arguments: object) -> Any:
        """What one of the scripts beside this file finds in the page."""
        return await self.script(SCRIPTS[what], *arguments)

    async def text(self, selector: str = "body") -> str:
        """What a person reads there; empty where there is no such element."""
        found = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(await self.script(found, selector))

    async def press(self, *keys: str) -> None:
        """Press keys, one after another, wherever the focus is."""

        def press(driver: webdriver.Chrome) -> None:
            for key in keys:
                driver.switch_to.active_element.send_keys(key)

        await self.do(press)

    async def click(self, selector: str) -> None:
        """Click on an element."""
        await self.do(lambda driver: driver.find_element(By.CSS_SELECTOR, selector).click())

    async def looks(
        self, size: tuple[int, int] = DESKTOP, *, dark: bool = False, scale: float = 1.0
    ) -> None:
        """Set what the window is: its size, whether its owner likes it dark, pixels a point."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        calm = {"name": "prefers-reduced-motion", "value": "reduce"}

        def set_it(driver: webdriver.Chrome) -> None:
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme, calm]})

        await self.do(set_it)

    async def picture(self, path: Path, *, height: int = 0, of: str = "html") -> None:
        """Keep what an element looks like, as PNG: all of it, or the upper `height` points."""
        place = """
        const box = document.querySelector(arguments[0]).getBoundingClientRect()
        return [box.x + scrollX, box.y + scrollY, box.width, box.height]
        """
        x, y, width, full = await self.script(place, of)
        clip = {"x": x, "y": y, "width": width, "height": height or full, "scale": 1}
        asked = {"captureBeyondViewport": True, "clip": clip, "format": "png"}

        def take(driver: webdriver.Chrome) -> None:
            taken = driver.execute_cdp_cmd("Page.captureScreenshot", asked)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(taken["data"]))

        await self.do(take)

    async def hear(self) -> None:
        """Take in what was requested and complained about since the last time."""
        performance = await self.do(lambda driver: driver.get_log("performance"))
        for entry in performance:
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        complaints = await self.do(lambda driver: driver.get_log("browser"))
        self.complaints += [f"{each['level']}: {each['message']}" for each in complaints]


@asynccontextmanager
async def browsing(host: Host, profile: Path) -> AsyncIterator[Browser]:
    """A browser on that host of a lab; `profile` is an empty directory for what it writes."""
    options = webdriver.ChromeOptions()
    for flag in (*HEADLESS, *QUIET, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.binary_location = str(shutil.which("chromium"))
    service = Service(executable_path=str(shutil.which("chromedriver")))

    def start() -> webdriver.Chrome:
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(PAGE_LOAD_S)
        return driver

    with ThreadPoolExecutor(1, initializer=lambda: join_network(host)) as thread:
        loop = asyncio.get_running_loop()
        driver = await loop.run_in_executor(thread, start)
        try:
            yield Browser(driver, thread)
        finally:
            await loop.run_in_executor(thread, driver.quit)


def join_network(host: Host) -> None:
    """Put this thread, and what it starts, into the host's network."""
    with Path(f"/proc/{host.init_pid}/ns/net").open() as network:
        setns(network.fileno(), CLONE_NEWNET)
