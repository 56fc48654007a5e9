"""Results of the CUDA driver behind the eight bits of an exit status."""

from __future__ import annotations

import pytest

from tests.fakes.gpu.build import said
from worker_shim.cuda.results import MEANINGS, of_exit_status


@pytest.mark.parametrize(
    ("status", "words", "result"),
    [
        (145, "the operation cannot be performed in the present state", 401),
        (88, "device not ready", 600),
        (48, "OS call failed or operation not supported on this OS", 304),
        (33, "operation not supported", 801),
        (1, "invalid argument", 1),
        (145, "", 401),  # the only one that ends so
        (88, "words of a later driver", 600),
        (100, "", 100),
        (7, "something else", 7),
    ],
)
def test_the_result_behind_an_exit_status(status: int, words: str, result: int) -> None:
    assert of_exit_status(status, words) == result


def test_every_known_result_is_found_by_its_words() -> None:
    found = {code: of_exit_status(code & 0xFF, known.words) for code, known in MEANINGS.items()}
    assert found == {code: code for code in MEANINGS}


def test_the_fake_driver_uses_the_same_words() -> None:
    words = said()["words"]
    assert {str(code): known.words for code, known in MEANINGS.items()}.items() <= words.items()
