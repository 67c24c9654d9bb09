"""One process, or several: rank, size, and what they tell each other."""

from datetime import timedelta

import pytest
import torch

from processes import together
from vitlab.errors import ConfigError
from vitlab.machine.world import ALONE, local_rank_and_size, open_world, rank_and_size


def test_several_processes_exchange_what_they_have() -> None:
    printed = together(2, "machine.world_checks:check_collectives")
    assert printed == ["rank 0 is done\n", "rank 1 is done\n"]


def test_one_process_returns_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ({}, {"RANK": "0", "WORLD_SIZE": "1"}):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert open_world() is ALONE
    given, tensor = {"a": (1,)}, torch.ones(2)
    assert (ALONE.rank, ALONE.size, ALONE.local_size) == (0, 1, 1)
    assert ALONE.share(given) is given
    assert ALONE.collect(given) == [given]
    assert ALONE.sum(tensor) is tensor
    assert ALONE.gather(tensor)[0] is tensor
    assert ALONE.exchange([tensor], [2])[0] is tensor
    assert ALONE.highest([3, 1]) == [3, 1]


def test_the_environment_gives_rank_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    assert rank_and_size() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_and_size() == (5, 8)
    assert local_rank_and_size() == (5, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert local_rank_and_size() == (1, 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_rank_and_size() == (3, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "2"}, r"RANK=2 in the environment; valid: 0 to 1"),
        ({"WORLD_SIZE": "many"}, r"WORLD_SIZE=many in the environment; valid: 1 to "),
        ({"LOCAL_WORLD_SIZE": "3"}, r"LOCAL_WORLD_SIZE=3 .* valid: 1 to 2"),
        ({"LOCAL_RANK": "2"}, r"LOCAL_RANK=2 .* valid: 0 to 1"),
        ({}, r"RANK=1 and WORLD_SIZE=2 .* without MASTER_ADDR; valid: all of RANK"),
        ({"MASTER_ADDR": "127.0.0.1"}, "without MASTER_PORT"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "cannot meet the others at 127.0.0.1:x"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "cannot meet the others at 127.0.0.1:1"),
    ],
)
def test_a_wrong_environment_is_refused(
    changes: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.machine.processes.JOINING", timedelta(seconds=1))
    for name, value in ({"RANK": "1", "WORLD_SIZE": "2"} | changes).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError if "meet" not in message else ValueError, match=message):
        open_world()
