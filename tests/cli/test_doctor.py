"""`vitlab doctor`: facts of the environment, and differences between processes."""

import json

import pytest

from command import Command
from processes import environments, outputs, start
from vitlab.jobs import doctor as job
from vitlab.jobs.processes import code_digest


def test_facts_of_one_process(command: Command) -> None:
    printed = command("doctor", "--data", "digits").out
    assert "no problem found" in printed
    assert f"code         {code_digest()}\n" in printed
    assert "1,437 training images, digest " in printed
    assert "exchange" not in printed
    found = json.loads(command("doctor", "--json").out)
    assert found["problems"] == []
    assert found["exchange_seconds"] is None
    assert "data" not in found["processes"][0]


def test_unknown_data_is_a_mistake(command: Command) -> None:
    assert "digitz" in command("doctor", "--data", "digitz").mistake


def test_differences_name_process_and_machine() -> None:
    facts = [dict.fromkeys(job.EQUAL, "same") | {"machine": f"host-{r}"} for r in range(3)]
    assert list(job._differences(facts)) == []
    facts[2]["torch"] = "2.12"
    assert list(job._differences(facts)) == [
        "torch: 2.12 in process 2 on host-2, same in process 0 on host-0"
    ]


def test_two_processes_exchange_and_agree() -> None:
    first, second = outputs(start(2, ["-m", "vitlab", "doctor", "--json"]))
    found = json.loads(first)
    assert second == ""
    assert found["problems"] == []
    assert found["exchange_seconds"] > 0
    assert [facts["process"] for facts in found["processes"]] == ["0 of 2", "1 of 2"]


def test_commands_for_one_process_are_refused_in_several(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, environments(2)[0][name])
    answer = command("models")
    assert answer.code == 2
    assert "models in 2 processes (WORLD_SIZE" in answer.err
