"""Which way to the CUDA driver is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.errors import DriverError, SetupError
from worker_shim.cuda import choosing
from worker_shim.cuda.fake import FakeCuda
from worker_shim.cuda.library import LibraryCuda
from worker_shim.cuda.port import CudaDriver
from worker_shim.process.runner import CommandRunner


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing in it yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choosing, "_path", lambda: str(tmp_path))
    return tmp_path


def program(path: Path) -> None:
    (path / "cuda-checkpoint").write_text("#!/bin/sh\n")
    (path / "cuda-checkpoint").chmod(0o755)


@pytest.mark.parametrize(
    ("driver", "bindings", "there", "chosen"),
    [
        (False, True, True, ""),
        (True, True, True, "library"),
        (True, False, True, "program"),
        (True, True, False, "library"),
        (True, False, False, ""),
    ],
)
def test_auto(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: bool,
    bindings: bool,
    there: bool,
    chosen: str,
) -> None:
    monkeypatch.setattr(choosing, "_has_bindings", lambda: bindings)
    if there:
        program(path)
    version = path / "version"
    if driver:
        version.touch()
    assert choosing.choose("auto", CommandRunner(), driver=version).engine == chosen


def test_what_is_wanted_by_name_and_missing_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_has_bindings", lambda: False)
    for engine in ("library", "program"):
        with pytest.raises(SetupError):
            choosing.choose(engine, CommandRunner())
    program(path)
    assert choosing.choose("program", CommandRunner()).engine == "program"
    assert choosing.choose("none", CommandRunner()).engine == ""


class Ill(FakeCuda):
    """A driver that cannot be used, where `open` is among its `hangs`."""

    async def open(self, *, deadline_s: float) -> None:
        if "open" in self.hangs:
            raise DriverError(f"the {self.engine} is ill", advice="mend it")
        self.done.append(("open", 0))

    async def close(self) -> None:
        self.done.append(("close", 0))


@pytest.fixture
def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Ill]:
    """A node that has the driver, the bindings and the program."""
    program(path)
    (path / "version").touch()
    made = {engine: Ill(engine=engine) for engine in ("library", "program")}
    monkeypatch.setattr(choosing, "_has_bindings", lambda: True)
    monkeypatch.setattr(choosing, "LibraryCuda", lambda: made["library"])
    monkeypatch.setattr(choosing, "ProgramCuda", lambda *_: made["program"])
    return made


async def opened(path: Path, engine: str = "auto") -> CudaDriver:
    return await choosing.opened(engine, CommandRunner(), driver=path / "version", within_s=5)


async def test_what_cannot_be_used_is_passed_over(path: Path, both: dict[str, Ill]) -> None:
    assert (await opened(path)).engine == "library"
    assert [call for call, _ in both["library"].done] == ["open", "close"]
    assert not both["program"].done, "it is not needed"
    both["library"].hangs.add("open")
    assert (await opened(path)).engine == "program"
    assert both["library"].done[-1] == ("close", 0)


async def test_where_nothing_can_be_used_the_reasons_are_kept(
    path: Path, both: dict[str, Ill]
) -> None:
    for each in both.values():
        each.hangs.add("open")
    chosen = await opened(path)
    assert chosen.engine == ""
    assert chosen.trouble == "library: the library is ill; program: the program is ill"
    (path / "version").unlink()
    assert (await opened(path)).trouble == "this node has no NVIDIA driver"


async def test_what_is_wanted_by_name_and_cannot_be_used_is_an_error(
    path: Path, both: dict[str, Ill]
) -> None:
    both["library"].hangs.add("open")
    with pytest.raises(SetupError, match="through the library: the library is ill"):
        await opened(path, "library")
    assert (await opened(path, "program")).engine == "program"
    assert (await opened(path, "none")).engine == ""


@pytest.mark.skipif(choosing.KERNEL_DRIVER.exists(), reason="this machine has a driver")
async def test_the_library_of_a_node_without_a_driver() -> None:
    driver = LibraryCuda()
    with pytest.raises(DriverError, match="the CUDA driver cannot be used") as refused:
        await driver.open(deadline_s=20)
    assert refused.value.definite
    await driver.close()
