"""Somebody who looks at the page while a real job is saved and lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conftest import ROOT
from tests.integration.badluck.kit import Pair, until
from tests.support.browser import DESKTOP, PHONE, Browser

PAGE = "http://127.0.0.1:7412"
UNFIT, SPARE = "n2", "n3"
PICTURES = ROOT / "artefacts" / "page"  # ignored by git
CONTRAST_MIN = 4.5  # WCAG 2, level AA


@dataclass
class Viewer:
    """A pair, and a browser on its control host."""

    pair: Pair
    browser: Browser
    pictures = PICTURES

    async def go(self, where: str = "") -> None:
        """Open a view anew."""
        await self.browser.open("about:blank")
        await self.browser.open(f"{PAGE}/{where}")
        await self.sees("live", "#status")

    async def sees(self, words: str, selector: str = "main") -> str:
        """Wait until these words are shown there; return all that is."""
        shown = ""

        async def there() -> bool:
            nonlocal shown
            shown = await self.browser.text(selector)
            return words in shown

        try:
            await until(f"{words!r} in {selector}", there, 20.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; there is:\n{shown}") from None
        return shown

    async def rows(self, label: str) -> list[dict[str, str]]:
        """The rows of a table, each by the names of its columns."""
        found: list[dict[str, str]] = await self.browser.measure("rows", label)
        return found

    async def phases(self) -> dict[str, str]:
        """Each phase that is drawn, in order, and how long it took; empty: it was not heard."""
        return dict(await self.browser.measure("phases"))

    async def ranks(self) -> dict[str, str]:
        """How each rank is drawn: runs, parked, awaited, behind."""
        return dict(await self.browser.measure("ranks"))

    async def reads_well(self, name: str) -> None:
        """What is shown now is readable, wide in light and narrow in dark; pictures are kept."""
        grounds = set()
        for size, dark in ((DESKTOP, False), (PHONE, True)):
            await self.browser.looks(size, dark=dark)
            await self.browser.picture(PICTURES / f"{name}-{'dark' if dark else 'light'}.png")
            texts: list[Any] = await self.browser.measure("contrast")
            assert len(texts) > 10
            faint = [(text, round(c, 2)) for text, c in texts if c < CONTRAST_MIN]
            assert not faint, (name, dark, faint)
            assert await self.browser.measure("width") == [], (name, size)
            ground = "return getComputedStyle(document.body).backgroundColor"
            grounds.add(await self.browser.script(ground))
        assert len(grounds) == 2, grounds
        await self.browser.looks()
