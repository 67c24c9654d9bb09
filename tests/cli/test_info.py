"""`vitlab info` on bundles: the card on a terminal, as JSON and as Markdown."""

import json
from pathlib import Path

import pytest

from command import Command
from vitlab.jobs.card import markdown, read_card, sections
from weights.bundles import METRICS, PROVENANCE, make_bundle

EXPORTED = [
    ((), {"any number of images a call", "takes normalised pixels"}),
    (
        ("--one-image", "--preprocess-inside"),
        {"1 image a call", "takes 8-bit pixels and normalises them itself"},
    ),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


def test_the_card_has_every_section_and_row(command: Command, bundle: Path) -> None:
    lines = command("info", bundle).out.splitlines()
    assert lines[0] == "vit_test on trees"
    for section in sections(read_card(bundle)):
        start = lines.index(section.title)
        shown = lines[start + 1 : start + 1 + len(section.rows)]
        assert [
            line.split(maxsplit=len(name.split()))[-1]
            for line, (name, _) in zip(shown, section.rows, strict=True)
        ] == [value for _, value in section.rows]


@pytest.mark.parametrize(("options", "rows"), EXPORTED)
def test_an_exported_file_has_a_card(
    command: Command, bundle: Path, tmp_path: Path, options: tuple[str, ...], rows: set[str]
) -> None:
    file = tmp_path / "model.onnx"
    assert command("export", bundle, "--output", file, *options).code == 0
    card, origin = read_card(file), read_card(bundle)
    assert (card.kind, card.format) == ("exported", "onnx")
    for name in ("labels", "preprocessing", "metrics", "licence", "cost", "model", "task", "title"):
        assert getattr(card, name) == getattr(origin, name), name
    assert set(card.exported) == rows
    lines = command("info", file).out.splitlines()
    assert lines[0] == "vit_test on trees"
    assert sum(line.startswith("  exported") for line in lines) == len(rows)
    assert json.loads(command("info", file, "--json").out)["exported"] == list(card.exported)
    file.write_bytes(file.read_bytes()[:200])
    assert "model.onnx: " in command("info", file).mistake


def test_a_terminal_wraps_long_values(
    command: Command, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "72")
    out = command("info", bundle).out
    assert "\x1b[" in out
    assert "vitlab train default" in out
    assert PROVENANCE["command"] not in out


def test_json_is_exact(command: Command, bundle: Path) -> None:
    facts = json.loads(command("info", bundle, "--json").out)
    assert facts["metrics"] == METRICS
    assert facts["provenance"] == PROVENANCE
    assert facts["measured"][0]["interval"][0] < 0.9 < facts["measured"][0]["interval"][1]
    assert facts["macs"] * 2 == facts["flops"]
    assert {file["name"] for file in facts["files"]} == {"config.json", "model.safetensors"}


def test_markdown_is_printed_or_written(command: Command, bundle: Path, tmp_path: Path) -> None:
    text = markdown(read_card(bundle))
    assert command("info", bundle, "--markdown").out == text
    written = command("info", bundle, "--markdown", tmp_path / "card.md")
    assert written.out == f"model card: {tmp_path / 'card.md'}\n"
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == text


def test_mistakes_are_one_line(command: Command, bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "card.md"
    assert "with --markdown only" in command("info", bundle, target).mistake
    assert "choose one" in command("info", bundle, "--markdown", "--json").mistake
    nowhere = tmp_path / "no" / "card.md"
    assert "cannot be written" in command("info", bundle, "--markdown", nowhere).mistake
    assert "nothing" in command("info", tmp_path / "nothing").mistake
    assert not target.exists()
