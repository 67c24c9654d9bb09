"""A race whose winner is known, and contestants that fail."""

from pathlib import Path

import pytest

from vitlab.errors import InputError
from vitlab.timing.referee import Contestant, ContestantFailed, compare, compete, paired_ratios

TESTS = Path(__file__).resolve().parents[1]


def contestant(name: str, factory: str, **arguments: float) -> Contestant:
    return Contestant(name=name, factory=f"timing.contestants:{factory}", arguments=arguments)


def test_what_lies_in_the_working_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise RuntimeError('of somebody else')")
    names = [contestant(name, "sleeper", milliseconds=1) for name in ("one", "two")]
    rounds, _ = compete(names, rounds=1, threads=1, paths=[TESTS], seconds=0.01)
    assert len(rounds) == 1


def test_a_race_whose_winner_is_known() -> None:
    seen: dict[str, float] = {}
    steps: list[tuple[int, int]] = []
    rounds, memory = compete(
        [
            contestant("two", "sleeper", milliseconds=2),
            contestant("four", "sleeper", milliseconds=4),
        ],
        rounds=7,
        threads=1,
        paths=[TESTS],
        seconds=0.08,  # of which one call may take half on a busy machine
        check=seen.update,
        progress=lambda done, rounds: steps.append((done, rounds)),
    )
    assert seen == {"two": 2, "four": 4}
    assert steps == [(done, 7) for done in range(8)]
    found = compare([paired_ratios(rounds, "two", "four")])
    # A sleep lasts at least as long as asked for; on a busy machine, longer.
    assert 1.2 < found.ratio < 3
    assert all(turn.seconds >= 0.002 for turns in rounds for turn in turns.values())
    for turn in (turn for turns in rounds for turn in turns.values()):
        assert len(turn.each) == len(rounds[0]["two"].each) >= 2
        assert sum(turn.each) / len(turn.each) == pytest.approx(turn.seconds)
    assert all(turn.asleep < 0.05 for turns in rounds for turn in turns.values())
    assert memory["two"].ever >= memory["two"].running >= 0


@pytest.mark.parametrize(
    ("factory", "message"), [("broken", "no weights here"), ("fails_when_called", "out of breath")]
)
def test_a_contestant_that_dies_is_named(factory: str, message: str) -> None:
    with pytest.raises(ContestantFailed, match=f"(?s)lame died.*{message}"):
        compete([contestant("lame", factory)], rounds=1, threads=1, paths=[TESTS])


def test_a_mistake_of_the_users_is_one_line() -> None:
    with pytest.raises(InputError) as caught:
        compete([contestant("wrong", "mistaken")], rounds=1, threads=1, paths=[TESTS])
    assert str(caught.value) == "wrong: no such model"
