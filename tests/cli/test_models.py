"""`vitlab models`."""

import json

import pytest

from command import Command
from vitlab import variants


def test_numbers_are_human_in_the_table_and_exact_in_json(command: Command) -> None:
    header, _, row = command("models", "vit_b?6").out.splitlines()
    assert header.split() == ["name", "parameters", "FLOPs", "MACs", "tokens"]
    assert row.split() == ["vit_b16", "86.6", "M", "35.1", "G", "17.6", "G", "197"]
    (found,) = json.loads(command("models", "vit_b?6", "--json").out)
    assert found["name"] == "vit_b16"
    assert found["parameters"] == 86_567_656
    assert found["flops"] == 2 * found["macs"]
    assert found["tokens"] == 197


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("cnn", ["cnn_tutorial"]),
        ("vit_t*t", ["vit_test"]),
        ("vit_[st]e*", ["vit_seed", "vit_test"]),
    ],
)
def test_a_pattern_is_part_of_a_name_or_a_glob(
    command: Command, pattern: str, names: list[str]
) -> None:
    assert [row["name"] for row in json.loads(command("models", pattern, "--json").out)] == names


def test_without_a_pattern_every_name_is_listed_whole(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitlab.models import cost as flops

    cheap = flops.Cost(parameters=1, flops=2, tokens=None)
    monkeypatch.setattr(flops, "cost", lambda name: cheap)
    monkeypatch.setenv("COLUMNS", "20")
    table = command("models").out.partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert [row.split()[0] for row in rows] == variants()


def test_a_pattern_that_fits_nothing_has_near_matches(command: Command) -> None:
    assert "unknown model 'vit_sed'; did you mean vit_seed" in command("models", "vit_sed").mistake


def test_names_of_timm_are_known(command: Command) -> None:
    theirs, ours = (command("summary", name) for name in ("vit_tiny_patch16_224", "vit_ti16"))
    assert (theirs.code, theirs.out) == (0, ours.out)
    assert "vit_tiny_patch16_224 is vit_ti16 here" in theirs.err
    assert command("models", "vit_tiny_patch16_384", "--json").out == (
        command("models", "vit_ti16_384", "--json").out
    )
    fetching = "vit_ti16.deit has not been fetched; get it: vitlab weights fetch vit_ti16.deit"
    assert fetching in command("summary", "deit_tiny_patch16_224.fb_in1k").mistake
    mistake = command("summary", "deit_tiny_patch16_224.fb_in22k").mistake
    assert mistake.startswith("deit_tiny_patch16_224.fb_in22k: no published weights of that tag")
