"""Spans of time and sizes as people read them."""

from __future__ import annotations

import time


def duration_text(seconds: float) -> str:
    """A span in two units at most: 38 ms, 4.2 s, 3 m 20 s, 5 h 12 m, 9 d 3 h."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, big_s, small, small_s in (("m", 60, "s", 1), ("h", 3600, "m", 60)):
        if whole < big_s * (60 if unit == "m" else 24):
            return f"{whole // big_s} {unit} {whole % big_s // small_s} {small}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def age_text(unix_s: float, now_unix_s: float | None = None) -> str:
    """How long ago something was; a dash when it never was."""
    if unix_s <= 0:
        return "-"
    now = time.time() if now_unix_s is None else now_unix_s
    return duration_text(max(0.0, now - unix_s))


def bytes_text(size: float) -> str:
    """A size in decimal units with three digits: 582 MB, 1.64 GB."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size >= 99.95 else f"{size:.3g} {units[0]}"
