"""The devices of one node: their memory, in a process of its own, as long as a rank is connected.

`python -m tests.fakes.gpu.daemon SOCKET UUID=BYTES …` prints `ready` and ends with its
standard input. What a rank has not fetched when its connection ends is lost.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from dataclasses import dataclass, field
from typing import Any

LINE_BYTES_MAX = 1 << 28


@dataclass
class Device:
    """One device and what is in its memory, by connection and name."""

    size_bytes: int
    memory: dict[tuple[int, str], bytes] = field(default_factory=dict)

    @property
    def free_bytes(self) -> int:
        """What is left of it."""
        return self.size_bytes - sum(map(len, self.memory.values()))


class Daemon:
    """Answers ranks; each connection is one rank."""

    def __init__(self, devices: dict[str, int]) -> None:
        """`devices`: size in bytes by UUID."""
        self.devices = {uuid: Device(size) for uuid, size in devices.items()}
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One rank, until it goes; its memory goes with it."""
        self._connections += 1
        rank = self._connections
        try:
            while line := await reader.readline():
                answer = self.carry_out(rank, json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            for device in self.devices.values():
                device.memory = {at: held for at, held in device.memory.items() if at[0] != rank}
            writer.close()

    def carry_out(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        """One request of a rank."""
        device = self.devices.get(request.get("uuid", ""))
        if device is None:
            return {"error": "no such device"}
        at = (rank, request["name"])
        if request["do"] == "read":
            return {"data": base64.b64encode(device.memory[at]).decode()}
        data = base64.b64decode(request["data"])
        if len(data) - len(device.memory.get(at, b"")) > device.free_bytes:
            return {"error": "out of memory"}
        device.memory[at] = data
        return {}


async def main(socket: str, devices: dict[str, int]) -> None:
    """Serve until the input ends."""
    daemon = Daemon(devices)
    server = await asyncio.start_unix_server(daemon.serve, socket, limit=LINE_BYTES_MAX)
    print("ready", flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    pairs = (each.split("=") for each in sys.argv[2:])
    asyncio.run(main(sys.argv[1], {uuid: int(size) for uuid, size in pairs}))
