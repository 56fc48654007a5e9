"""A stand-in for `CommandRunner`: answers as it was told, remembers every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker_shim.process.runner import Finished

Answer = Callable[["Call"], Finished]


@dataclass(frozen=True)
class Call:
    """One call of `run` as it came in."""

    argv: tuple[str, ...]
    deadline_s: float
    env: Mapping[str, str] | None
    cwd: str | None
    stdin: str | bytes | None


class FakeCommandRunner:
    """Answers by the program's base name; being asked for one it was not told about is a bug."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = dict(answers or {})
        self.calls: list[Call] = []

    def tell(
        self, program: str, *, exit_code: int = 0, stdout: str = "", stderr: str = ""
    ) -> FakeCommandRunner:
        """From now on `program` (its base name) ends like this."""
        self.answers[program] = lambda call: Finished(call.argv, exit_code, stdout, stderr, 0)
        return self

    async def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str | bytes | None = None,
    ) -> Finished:
        """Remember the call and give the answer told for it; an answer may raise DriverError."""
        call = Call(tuple(argv), deadline_s, env, None if cwd is None else str(cwd), stdin)
        self.calls.append(call)
        program = call.argv[0].rsplit("/", 1)[-1]
        if program not in self.answers:
            raise AssertionError(f"nobody told the fake how {program} answers: {call.argv}")
        return self.answers[program](call)
