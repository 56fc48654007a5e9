"""What a leader has for one carrier in one turn of its loop, equal orders joined."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from operator import attrgetter

from allstop.v1 import carrier_pb2, shim_pb2

from coordinator.core import commands
from coordinator.core.errors import AllstopError
from coordinator.link import wire
from coordinator.link.mapping import packed

MESSAGE_BYTES = 1 << 20  # a message is closed when it has so many

_OF_ONE = ("node", "worker")  # all other fields make two orders different
_alike = attrgetter(
    *(field.name for field in fields(commands.SendOrder) if field.name not in _OF_ONE)
)


class Deliveries:
    """Messages for the shims of one carrier, in order for each shim."""

    def __init__(self) -> None:
        """Empty."""
        self._deliveries: list[carrier_pb2.Delivery] = []
        self._dismissals: list[carrier_pb2.Dismissal] = []
        self._alike: dict[Hashable, int] = {}
        self._last: dict[int, int] = {}  # attachment -> its last delivery

    def __bool__(self) -> bool:
        return bool(self._deliveries or self._dismissals)

    def order(self, attachment: int, order: commands.SendOrder) -> None:
        """An order; it travels once for all shims that get the same. Raises BadRequest."""
        key = _alike(order) if order.record is None else None  # a record is one worker's own
        delivery = self._delivery(attachment, key, lambda: wire.order_message(order))
        delivery.workers.append(order.worker)

    def share(self, attachment: int, key: Hashable, message: shim_pb2.CoordinatorMessage) -> None:
        """A message that others get too: `key` tells which."""
        self._delivery(attachment, ("shared", key), lambda: message)

    def add(self, attachment: int, message: shim_pb2.CoordinatorMessage) -> None:
        """A message for one shim."""
        self._delivery(attachment, None, lambda: message)

    def dismiss(self, attachment: int, why: AllstopError) -> None:
        """End a shim's stream; nothing is sent to it afterwards."""
        self._dismissals.append(carrier_pb2.Dismissal(attachment=attachment, error=packed(why)))

    def _delivery(
        self, attachment: int, key: Hashable, make: Callable[[], shim_pb2.CoordinatorMessage]
    ) -> carrier_pb2.Delivery:
        """The delivery to join: one alike, unless the shim gets something else after that one."""
        at = self._alike.get(key, -1) if key is not None else -1
        if at < self._last.get(attachment, 0):
            at = -1
        if at < 0:
            self._deliveries.append(carrier_pb2.Delivery(message=make()))
            at = len(self._deliveries) - 1
            if key is not None:
                self._alike[key] = at
        self._last[attachment] = at
        self._deliveries[at].attachments.append(attachment)
        return self._deliveries[at]

    def messages(self, epoch: int) -> list[carrier_pb2.LeaderMessage]:
        """All of it, in as few messages as their size allows."""
        made = [carrier_pb2.LeaderMessage(epoch=epoch)]
        size_bytes = 0
        for delivery in self._deliveries:
            if size_bytes >= MESSAGE_BYTES:
                made.append(carrier_pb2.LeaderMessage(epoch=epoch))
                size_bytes = 0
            made[-1].deliveries.append(delivery)
            size_bytes += delivery.ByteSize()
        made[-1].dismissals.extend(self._dismissals)
        return made
