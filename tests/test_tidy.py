"""Taste made executable: sizes, leftovers, and what may be called where."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("coordinator", "worker_shim", "lab", "tools", "bench", "examples", "tests", "deploy")
MAY_PRINT = ("coordinator/cli", "lab", "bench", "examples", "tools", "tests")
FUNCTION_LINES_MAX = 60
TEST_FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 420
LEFTOVER = re.compile(r"\b(FIXM" + r"E|TOD" + r"O|XX" + r"X)\b")
CLOCKS = {"time.time", "time.monotonic", "datetime.now", "datetime.datetime.now", "date.today"}
STANDARD_ONLY = ("coordinator/core", "worker_shim/hook")


def sources() -> list[Path]:
    """Every Python file of ours, generated ones left out."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(p for p in found if not p.stem.endswith(("_pb2", "_pb2_grpc")))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(name_of(path).startswith(f"{folder}/") for folder in folders)


def nodes(path: Path, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """The file's syntax nodes of these kinds."""
    return (n for n in ast.walk(ast.parse(path.read_text(), str(path))) if isinstance(n, kinds))


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """What the file calls, as written, and in which line."""
    for node in nodes(path, ast.Call):
        assert isinstance(node, ast.Call)
        yield ast.unparse(node.func), node.lineno


def imports(path: Path, own: str) -> Iterator[str]:
    """The modules that the file imports; a relative import counts as its package, `own`."""
    for node in nodes(path, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert isinstance(node, ast.ImportFrom)
            yield own if node.level else node.module or ""


def test_files_are_short() -> None:
    sizes = {name_of(path): path.read_text().count("\n") for path in sources()}
    long = {name: lines for name, lines in sizes.items() if lines > FILE_LINES_MAX}
    assert not long, "split by subject"


def test_functions_are_short() -> None:
    long = []
    for path in sources():
        limit = TEST_FUNCTION_LINES_MAX if below(path, ("tests",)) else FUNCTION_LINES_MAX
        for node in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > limit:
                long.append(f"{name_of(path)}:{node.lineno} {node.name}: {length} lines")
    assert not long


def test_nothing_is_left_over() -> None:
    found = {name_of(path): LEFTOVER.findall(path.read_text()) for path in sources()}
    assert not {name: words for name, words in found.items() if words}, "do it now"


def test_only_the_edges_print() -> None:
    inner = (path for path in sources() if not below(path, MAY_PRINT))
    printing = [f"{name_of(p)}:{line}" for p in inner for n, line in calls(p) if n == "print"]
    assert not printing, "use the log"


def test_core_and_hook_know_the_standard_library_and_themselves() -> None:
    foreign = []
    for home in STANDARD_ONLY:
        own = home.replace("/", ".")
        for path in (path for path in sources() if below(path, (home,))):
            for name in imports(path, own):
                inside = name == own or name.startswith(f"{own}.")
                if not inside and name.split(".")[0] not in sys.stdlib_module_names:
                    foreign.append(f"{name_of(path)} imports {name}")
    assert not foreign


def test_core_takes_time_as_an_argument() -> None:
    core = (path for path in sources() if below(path, ("coordinator/core",)))
    clocks = [f"{name_of(p)}:{line} {n}" for p in core for n, line in calls(p) if n in CLOCKS]
    assert not clocks


def test_what_no_test_runs_can_be_imported() -> None:
    importlib.import_module("tests.screenshots")


def test_the_readme_is_filled_in() -> None:
    assert "@@" not in (ROOT / "README.md").read_text(), "numbers come from a run"
