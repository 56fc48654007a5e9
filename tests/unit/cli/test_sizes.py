"""Numbers of bytes as people write them."""

import pytest

from coordinator.cli.sizes import parse_size
from coordinator.core.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1), ("200M", 200e6), ("1.5GiB", 1.5 * 2**30), ("2 k", 2000), ("7b", 7),
        ("100MB/s", 100e6), ("1Ti", 2**40),
    ],
)  # fmt: skip
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "M", "1X", "1 iB", "9999999999T", "1MM"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_size(text)
