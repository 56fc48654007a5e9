"""Messages keep their bytes but for what is changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_shim.criu.wire import (
    BYTES,
    Field,
    WireError,
    bytes_field,
    number_field,
    read_message,
    write_message,
)

numbers = st.integers(min_value=0, max_value=(1 << 64) - 1)
field_numbers = st.integers(min_value=1, max_value=(1 << 29) - 1)
fields = st.one_of(
    st.builds(number_field, field_numbers, numbers),
    st.builds(bytes_field, field_numbers, st.binary(max_size=40)),
    st.builds(Field, field_numbers, st.just(1), st.binary(min_size=8, max_size=8)),
    st.builds(Field, field_numbers, st.just(5), st.binary(min_size=4, max_size=4)),
)


@given(st.lists(fields))
def test_what_is_written_is_read(message: list[Field]) -> None:
    data = write_message(message)
    assert list(read_message(data)) == message
    assert write_message(read_message(data)) == data


@given(numbers)
def test_numbers(number: int) -> None:
    assert number_field(1, number).value == number


@given(st.lists(numbers))
def test_packed_numbers(values: list[int]) -> None:
    packed = b"".join(number_field(1, value).raw for value in values)
    assert bytes_field(1, packed).numbers() == tuple(values)


def test_an_encoding_longer_than_needed_is_kept() -> None:
    data = b"\x08\x81\x80\x00"  # field 1 = 1 in three bytes
    (field,) = read_message(data)
    assert field.value == 1
    assert write_message([field]) == data


@given(st.lists(fields, min_size=1), st.data())
def test_a_message_that_is_cut_off_is_never_taken_for_whole(
    message: list[Field], data: st.DataObject
) -> None:
    whole = write_message(message)
    cut = data.draw(st.integers(min_value=0, max_value=len(whole) - 1))
    try:
        read = list(read_message(whole[:cut]))
    except WireError:
        return
    assert len(read) < len(message)


@pytest.mark.parametrize("data", [b"\x00\x00", b"\x0b", b"\x0a\x05abc", b"\x08" + b"\xff" * 11])
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(read_message(data))


def test_only_numbers_have_a_value() -> None:
    with pytest.raises(WireError):
        _ = Field(1, BYTES, b"x").value
    with pytest.raises(WireError):
        Field(1, 5, b"abcd").numbers()
