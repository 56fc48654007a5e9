"""What the pages name exists: verbs, options, variables, files, metrics; no block is left out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from coordinator.cli.config_file import keys_of
from coordinator.core.errors import AllstopError
from tests.docs.pages import (
    ELLIPSIS,
    PAGES,
    ROOT,
    SHELL,
    Block,
    all_blocks,
    blocks_of,
    inline_code,
)
from tests.support.words import all_verbs, commands_of, parse

BLOCKS = [block for block in all_blocks() if block.text]
MAKE_TARGETS = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MAKE_VARIABLES = set(re.findall(r"^(\w+)\s*[?:]=", (ROOT / "Makefile").read_text(), re.MULTILINE))
OPTIONS = [
    each for _, verb in all_verbs() for each in verb.params if isinstance(each, click.Option)
]
FLAGS = {name for each in OPTIONS for name in (*each.opts, *each.secondary_opts)} | {"--help"}
VARIABLES = {str(each.envvar) for each in OPTIONS}
FOREIGN_FLAGS = {
    "--tee",
    "--redirects",
    "--node-rank",
    "--signal",
    "--max-restarts",
    "--rdzv-backend",
}  # torchrun's, sbatch's
SOURCES = "\n".join(
    path.read_text()
    for place in ("coordinator", "worker_shim", "lab", "tests/conftest.py", "deploy/slurm")
    for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.*"))
    if path.suffix in (".py", ".sbatch")
)
NOT_COMMANDS = {"cd", "export"}
FILES = re.compile(
    r"^(?:\.\./)?(?:coordinator|worker_shim|docs|design|deploy|examples|proto|tests)/"
)


def filled(words: list[str]) -> list[str]:
    """Without what is left out, and with numbers where a letter stands for one."""
    return ["1" if word in ("N", "M") else word for word in words if word != ELLIPSIS]


def check_words(words: list[str]) -> None:
    """Hold one command against what there is; raises AssertionError or what the parser raises."""
    words = filled(words)
    head = words[0]
    if head == "allstop":
        parse(words)
    elif head == "make":
        for word in words[1:]:
            name, equals, _ = word.partition("=")
            assert name in (MAKE_VARIABLES if equals else MAKE_TARGETS), f"make has no {name}"
    elif head == "export":
        for word in words[1:]:
            name = word.partition("=")[0]
            assert name in VARIABLES | {"PATH"}, f"{name} is no variable of allstop"
    else:
        assert head in NOT_COMMANDS, f"{head} is neither run, nor parsed, nor marked with a reason"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_each_block_is_run_or_parsed_or_marked(block: Block) -> None:
    if block.verb == "not":
        assert re.match(r"not run: \S+ \S+", block.todo), "a reason in words"
    elif block.language == "toml":
        check_options_file(block.text)
    elif block.language in ("text", "python"):
        assert block.language == "text" or block.verb == "file", "a script is somebody's file"
    else:
        assert block.language in SHELL, f"what is {block.language}?"
        commands = commands_of(block.shell)
        assert commands
        for words in commands:
            check_words(words)


def check_options_file(text: str) -> None:
    """Every key is one of an option of a verb that takes --config."""
    keys = {key for each in OPTIONS for key in keys_of(each)}
    unknown = set(tomllib.loads(text)) - keys
    assert not unknown


def wrong(text: str) -> Block:
    return Block(ROOT / "README.md", 1, "", text, "")


@pytest.mark.parametrize(
    "text",
    ["kubectl get pods", "allstop jbos", "$ allstop jobs --fast", "make coffee", "export A_B=1"],
)
def test_a_block_with_something_wrong_is_seen(text: str) -> None:
    with pytest.raises((AssertionError, click.ClickException, AllstopError)):
        test_each_block_is_run_or_parsed_or_marked(wrong(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_in_a_sentence_exists(page: Path) -> None:
    for line, code in inline_code(page):
        where = f"{page.name}:{line}: `{code}`"
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
            assert flag in FLAGS | FOREIGN_FLAGS, where
        for variable in re.findall(r"\bALLSTOP_[A-Z_]+\b", code):
            assert variable in VARIABLES or variable in SOURCES, where
        if code.startswith("allstop ") and code != "allstop VERB --help":
            check_sentence(code, where)
        if FILES.match(code) and not re.search(r"[A-Z]{3}|\s", code):
            assert (ROOT / code).exists(), where


def check_sentence(code: str, where: str) -> None:
    """A verb with its options; what it also needs may be left out in a sentence."""
    for words in commands_of(code.replace("--config …", "--config FILE")):
        try:
            parse(filled(words))
        except click.MissingParameter:
            continue
        except click.ClickException as error:
            pytest.fail(f"{where}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metrics_that_are_named_are_there(page: Path) -> None:
    named = set(re.findall(r"\ballstop_[a-z_]+[a-z]\b", page.read_text()))
    for name in named:
        bare = name.removesuffix("_total").removesuffix("_bucket").removesuffix("_count")
        made = (bare, bare.removeprefix("allstop_shim_"))  # some are put together from two parts
        assert any(f'"{each}"' in SOURCES for each in made), f"{page.name}: no metric {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            anchors = {
                re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings
            }
            assert anchor in anchors, f"{page.name}: {target}"


def test_the_quick_start_is_run_as_a_whole() -> None:
    blocks = [block for block in blocks_of(ROOT / "docs" / "quickstart.md") if block.text]
    left_out = [block.where for block in blocks if block.verb not in ("run", "file")]
    assert len(left_out) == 1, "the set-up alone"
