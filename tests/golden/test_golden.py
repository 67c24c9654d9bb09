"""The golden harness itself: what it leaves out, what it notices, and that it runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import ROOT, script
from golden.cases import CASES, chosen
from golden.compare import differences
from golden.normal import clean, clean_text, csv_rows, page, read

FOLDERS = {"/tmp/golden-x1/work": "<work>"}


def record_of(path: Path, **entries: Any) -> str:
    path.write_text(json.dumps({"machine": {}, "seconds": {}, "entries": entries}))
    return str(path)


def test_times_commands_and_folders_are_left_out() -> None:
    found = {"loss": 0.1, "time": 17.5, "command": "vitlab train", "at": "/tmp/golden-x1/work/a"}
    assert clean([found], FOLDERS) == [{"loss": 0.1, "at": "<work>/a"}]
    assert clean_text("3 images in 1.25 s, 40 images/s", {}) == "3 images in <duration>, <duration>"
    assert clean_text("on 2026-11-18 07:15:02", {}) == "on <date>"
    assert clean_text(f"of {'0a' * 20}", {}) == "of <commit>"
    assert csv_rows("arm,minutes,mean\na,0.25,1\n", {}) == [["arm", "mean"], ["a", "1"]]


def test_numbers_keep_their_last_bit() -> None:
    first, second = {"a": {"loss": 0.1}}, {"a": {"loss": 0.1 + 2**-56}}
    assert [str(one) for one in differences(first, second)] == ["loss: 0.1 -> 0.10000000000000002"]


def test_long_lists_of_numbers_are_digests() -> None:
    numbers = [number / 7 for number in range(200)]
    found = clean(numbers, {})
    assert found["numbers"] == 200
    assert found == clean(list(numbers), {})
    assert found != clean([*numbers[:-1], 0.0], {})


def test_a_page_is_its_numbers_and_its_words() -> None:
    text = "<style>p { top: 3px }</style><p>right: <b>15.6%</b> of 360</p><i>1.3 s</i>"
    assert page(text, {}) == {
        "numbers": ["15.6", "360"],
        "text": ["right:", "15.6%", "of 360", "<duration>"],
    }


def test_tensors_are_compared_without_their_header(tmp_path: Path) -> None:
    def written(name: str, note: str, last: bytes) -> Any:
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        header = json.dumps({"__metadata__": {"note": note}, "w": entry}).encode()
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(7) + last)
        return read(path, {})

    assert written("a", "monday", b"\0") == written("b", "tuesday and so on", b"\0")
    assert written("a", "monday", b"\0") != written("c", "monday", b"\1")


def test_every_kind_of_difference_is_named() -> None:
    before = {"a": {"json": {"x": [1, 2], "y": 1}, "messages": ["error: old"]}, "b": {"exit": 0}}
    after = {"a": {"json": {"x": [1, 3], "z": 1.0}, "messages": ["error: new"]}, "c": {"exit": 0}}
    found = differences(before, after)
    assert [(one.entry, one.path, one.wording) for one in found] == [
        *(("a", "json.x.1", False), ("a", "json.y", False), ("a", "json.z", False)),
        *(("a", "messages.0", True), ("b", "", False), ("c", "", False)),
    ]


def test_not_a_number_equals_itself_and_a_float_is_no_integer() -> None:
    assert not differences({"a": {"x": float("nan")}}, {"a": {"x": float("nan")}})
    assert differences({"a": {"x": 1}}, {"a": {"x": 1.0}})


def test_compare_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = script("golden")
    one = record_of(tmp_path / "1.json", a={"exit": 0, "messages": ["old"]})
    two = record_of(tmp_path / "2.json", a={"exit": 0, "messages": ["new"]})
    three = record_of(tmp_path / "3.json", a={"exit": 1, "messages": ["new"]})
    assert golden.main(["compare", one, one]) == 0
    assert golden.main(["compare", one, two]) == 1
    assert golden.main(["compare", one, two, "--ignore-wording"]) == 0
    capsys.readouterr()
    assert golden.main(["compare", one, three, "--ignore-wording"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a: 1 differences",
        "  exit: 0 -> 1",
        "1 entries: 1 values and 1 texts differ",
    ]


def test_cases_have_names_of_their_own_and_bring_what_they_need() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in chosen(["similar"])] == ["features", "similar"]
    for number, case in enumerate(CASES):
        assert {*case.needs} <= {earlier.name for earlier in CASES[:number]}, case.name


def test_a_record_holds_output_messages_and_files(tmp_path: Path) -> None:
    names = ("models-pattern", "info-markdown", "public", "predict-csv", "mistake-model")
    path = tmp_path / "record.json"
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "golden", "record", path, "--only", ",".join(names)],
        capture_output=True,
        check=True,
    )
    entries = json.loads(path.read_text())["entries"]
    assert {name: entries[name]["exit"] for name in names} == dict(
        zip(names, (0, 0, 0, 3, 2), strict=True)
    )
    assert "create_model" in entries["public"]["json"]
    assert "did you mean cifar10?" in entries["mistake-model"]["messages"][0]
    assert entries["info-markdown"]["files"]["card.md"]["text"]
    header, *rows = entries["predict-csv"]["files"]["p.csv"]
    assert header[0] == "path"
    assert len(rows) == 18
    assert str(tmp_path.parent) not in path.read_text()
