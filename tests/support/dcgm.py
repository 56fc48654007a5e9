"""DCGM's exporter in miniature: a real HTTP server that answers in the exporter's own format."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HELP = {
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered."),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", "Total number of double-bit volatile ECC errors."),
    "DCGM_FI_DEV_RETIRED_PENDING": ("counter", "Total number of pages pending retirement."),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed"),
    "DCGM_FI_DEV_ROW_REMAP_FAILED": ("gauge", "The same, by its name in DCGM 4.7"),
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": ("counter", "Pages pending, by its name in DCGM 4.7"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("gauge", "Whether remapping of rows is pending"),
}


@dataclass
class Exporter:
    """What the exporter of one node tells; `values` by metric and GPU."""

    uuids: Sequence[str]
    url: str = ""
    values: dict[tuple[str, int], float] = field(default_factory=dict)
    status: int = 200
    body: bytes | None = None  # in the place of what it should tell
    hold: threading.Event | None = None  # it answers once this is set
    scrapes: int = 0

    def text(self) -> str:
        """All metrics, as dcgm-exporter 4 prints them."""
        lines = []
        for name, (kind, about) in HELP.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            for index, uuid in enumerate(self.uuids):
                value = self.values.get((name, index), 0)
                more = f',err_code="{value}",err_msg="what it is"' if "XID" in name else ""
                lines.append(
                    f'{name}{{gpu="{index}",UUID="{uuid}",pci_bus_id="00000000:17:0{index}.0",'
                    f'device="nvidia{index}",modelName="NVIDIA H200",Hostname="n1",'
                    f'DCGM_FI_DRIVER_VERSION="580.95.05"{more}}} {value}'
                )
        return "\n".join(lines) + "\n"


@contextmanager
def exporter(*uuids: str) -> Iterator[Exporter]:
    """A server on a port of its own."""
    made = Exporter(uuids)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.scrapes += 1
            if made.hold is not None:
                made.hold.wait(30)
            body = made.text().encode() if made.body is None else made.body
            try:
                self.send_response(made.status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                return  # whoever asked has gone

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}/metrics"
    try:
        yield made
    finally:
        if made.hold is not None:
            made.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
