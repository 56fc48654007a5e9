"""Versions as numbers, for comparing."""

from __future__ import annotations

import re


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparing; empty where there are none."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def kernel_series(release: str) -> tuple[int, ...]:
    """Major and minor of a kernel release."""
    return version_of(release)[:2]
