"""How the tests of this directory ask coordinators and shims."""

from __future__ import annotations

import sys

from prometheus_client.parser import text_string_to_metric_families

from lab.host import Host

PAGE = "http://127.0.0.1:7412"
SHIM = "127.0.0.1:7413"
GET = (
    "import sys, urllib.request as u\n"
    "sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=20).read())"
)


def get(host: Host, url: str) -> str:
    """What a URL answers on that host."""
    return host.run([sys.executable, "-c", GET, url], timeout_s=60).stdout


def scraped(host: Host, url: str) -> dict[tuple[str, ...], float]:
    """Name and label values, in the order of their names, to value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(get(host, url))
        for sample in family.samples
    }
