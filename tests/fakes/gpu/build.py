"""Compiling the driver and its program, with what `said.json` has them say.

words      of a result, as cuGetErrorString gives them
cases      a situation in which a call is refused: the call's result; the program's exit status
           and what it prints, {pid} being the process. A healthy machine can be asked for them
unasked    the same of situations that no healthy machine shows
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.compiling import SHARED, compiled

HERE = Path(__file__).parent
LIBRARY = "libcuda.so.1"
SAID = HERE / "said.json"


def build(into: Path) -> Path:
    """`libcuda.so.1` and `cuda-checkpoint` in a folder; returns the program."""
    (into / "said.h").write_text(header(said()))
    found = f"-I{into}"
    library = (*SHARED, f"-Wl,-soname,{LIBRARY}", "-ldl", found)
    compiled(into / LIBRARY, HERE / "libcuda.c", *library)
    linked = (f"-L{into}", f"-l:{LIBRARY}", f"-Wl,-rpath,{into}", found)
    return compiled(into / "cuda-checkpoint", HERE / "cuda_checkpoint.c", *linked)


def said() -> dict[str, Any]:
    """All of the file."""
    content: dict[str, Any] = json.loads(SAID.read_text())
    return content


def header(content: dict[str, Any]) -> str:
    """HELP, WORDS and CASES, which an enum of the cases' names counts through."""
    cases: dict[str, dict[str, Any]] = {**content["cases"], **content["unasked"]}
    words = (f"{{{code}, {_c(text)}}}," for code, text in content["words"].items())
    rows = (
        f"{{{each['result']}, {each['exit']}, {_c(each['stdout'])}, {_c(each['stderr'])}}},"
        for each in cases.values()
    )
    return "\n".join(
        (
            "#pragma once",
            f"static const char HELP[] = {_c(content['help'])};",
            "static const struct { int code; const char *words; } WORDS[] = {",
            *words,
            "};",
            "enum said {",
            *(f"{name.upper()}," for name in cases),
            "};",
            "static const struct { int result, status; const char *out, *err; } CASES[] = {",
            *rows,
            "};\n",
        )
    )


def _c(text: str) -> str:
    """As a string of C; octal escapes end by themselves after three digits."""
    return '"' + "".join(_escaped(byte) for byte in text.encode()) + '"'


def _escaped(byte: int) -> str:
    letter = chr(byte)
    return (
        letter
        if letter.isascii() and letter.isprintable() and letter not in '"\\?'
        else f"\\{byte:03o}"
    )
