"""What is remembered of undone actions does not grow with the life of a shim."""

from hypothesis import given
from hypothesis import strategies as st

from worker_shim.agent.recent import Recent

NAMES = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(st.booleans(), NAMES), max_size=60), st.integers(1, 5))
def test_the_names_noted_last_are_kept(steps: list[tuple[bool, str]], limit: int) -> None:
    recent, model = Recent(limit), list[str]()
    for noted, name in steps:
        model = [each for each in model if each != name]
        if noted:
            recent.add(name)
            model = [*model, name][-limit:]
        else:
            recent.discard(name)
        assert len(recent) == len(model)
        assert list(recent) == model
        assert [name for name in "abcdefgh" if name in recent] == sorted(model)
