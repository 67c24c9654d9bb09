"""The benchmarks: what they compare, refuse and tell."""

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.tiny import LABELS, source
from vitlab.timing.referee import SGEMM_SIDE, Memory, Turn

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))
peers: Any = importlib.import_module("peers")
predict: Any = importlib.import_module("predict")


def turns(**seconds: float) -> dict[str, Turn]:
    return {name: Turn(seconds=value, asleep=0.0) for name, value in seconds.items()}


def setting(ratios: list[float], *, sgemm: tuple[float, ...] = (0.1,), asleep: float = 0.0) -> Any:
    """Rounds in which we needed a second and timm `ratio` seconds."""
    rounds = [
        {
            "vitlab": Turn(seconds=1.0, asleep=asleep),
            "timm": Turn(seconds=ratio, asleep=0.0),
            "sgemm": Turn(seconds=sgemm[index % len(sgemm)], asleep=0.0),
        }
        for index, ratio in enumerate(ratios)
    ]
    memory = {name: Memory(ever=3_000_000, running=2_000_000) for name in rounds[0]}
    flops = 10 * SGEMM_SIDE**3
    return peers.Setting(model="vit_ti16", batch=8, flops=flops, rounds=rounds, memory=memory)


def test_share_of_sgemm() -> None:
    # Ten cubes in a second, where the limit is two in a tenth of one.
    assert setting([2.0]).share_of_sgemm("vitlab") == pytest.approx(0.5)
    assert setting([2.0]).share_of_sgemm("timm") == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.2, 1.3, 1.4] * 2, "faster"),
        ([0.5, 0.9, 1.1, 1.4] * 2, "no difference shown"),
        ([1.2, 1.3, 1.4], "no difference shown"),
    ],
)
def test_report_ranks_only_where_the_interval_allows(ratios: list[float], verdict: str) -> None:
    text = peers.report([setting(ratios)], ["timm"])
    assert text.splitlines()[0] == f"vitlab against timm: {verdict}"
    assert text.splitlines()[2].split()[:4] == [
        "vit_ti16",
        "b8",
        "1000.0",
        f"{_median(ratios):.1f}",
    ]


def _median(ratios: list[float]) -> float:
    return 1e3 * statistics.median(ratios)


def test_networks_that_disagree_are_not_timed() -> None:
    peers.check_agreement({"vitlab": [[1.0, 2.0]], "timm": [[1.0, 2.00005]]}, ["timm"])
    for wrong in (2.001, float("nan")):
        with pytest.raises(SystemExit, match="timm: results differ"):
            peers.check_agreement({"vitlab": [[1.0, 2.0]], "timm": [[1.0, wrong]]}, ["timm"])


def test_disturbances_are_told() -> None:
    assert peers.disturbances([setting([1.0] * 4)]) == []
    busy, restless = peers.disturbances([setting([1.0] * 4, sgemm=(0.1, 0.2), asleep=0.3)])
    assert "busy machine" in busy
    assert "2.0x" in busy
    assert "0.30 s of CPU" in restless


def answers(first: float = 0.6, label: int = 7) -> Any:
    """What a contestant says of two images."""
    return {"a.jpg": [[label, first], [2, 0.3]], "b.jpg": [[1, 0.9], [5, 0.05]]}


def test_predictions_that_disagree_are_not_timed() -> None:
    found = {"vitlab": answers(), "timm, batches of 8": answers(0.6005), "sgemm": 1.0}
    assert predict.check_agreement(found) == "same top-1 for 2 images, probabilities within 0.0005"
    wrong = {
        "a.jpg differs by": answers(0.602),
        "a.jpg differs by nan": answers(float("nan")),
        r"a.jpg is \[8, 0.6\]": answers(label=8),
        "predicts 1 images, we 2": {"a.jpg": answers()["a.jpg"]},
    }
    for message, theirs in wrong.items():
        with pytest.raises(SystemExit, match=f"timm: .*{message}"):
            predict.check_agreement({"vitlab": answers(), "timm": theirs})


def test_speeds_of_predicting_are_told_with_their_interval() -> None:
    rounds = [
        {
            "vitlab": Turn(seconds=2.0, asleep=0.0),
            "timm, batches of 8": Turn(seconds=3.0, asleep=0.0),
            "sgemm": Turn(seconds=0.1 * (1 + number), asleep=0.0),
        }
        for number in range(6)
    ]
    ours, theirs, warning = predict.report(rounds, 60, [8]).splitlines()
    assert ours.split() == ["vitlab", "30.0", "images/s"]
    assert "20.0 images/s  ratio 1.500 (1.500 to 1.500)  vitlab is faster" in theirs
    assert "6.0x longer" in warning


def load(file: str) -> Any:
    """By its path: some are also called as folders of tests are."""
    path = BENCHMARKS / file
    spec = importlib.util.spec_from_file_location(f"benchmark_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PEERS = {"fastapi_server.py": "fastapi", "litserve_server.py": "litserve"}


@pytest.mark.parametrize("file", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_finds_what_it_imports(file: str) -> None:
    if file in PEERS:
        pytest.importorskip(PEERS[file], reason="a package that only this benchmark compares with")
    assert load(file).__doc__


def test_costs_of_explaining_are_ratios_to_a_forward_pass() -> None:
    explain = load("explain.py")
    rounds = [turns(forward=2.0, rollout=2.6, relevance=9.0) for _ in range(8)]
    first, rollout, relevance = explain.report_time("vit_ti16 b8", rounds).splitlines()
    assert first == "vit_ti16 b8: a forward pass takes 2000 ms"
    assert "rollout    1.30 times that (1.30 to 1.30; rounds 1.30 to 1.30)" in rollout
    assert rollout.endswith("limit 1.6: kept")
    assert relevance.endswith("limit 4.0: missed")
    few = explain.report_time("vit_ti16 b8", rounds[:3])
    assert few.count("not shown") == 2


def test_memory_of_explaining_has_a_limit() -> None:
    explain = load("explain.py")
    options = explain.parser().parse_args([])
    found = {"rollout": 1_546_000_000, "relevance": 3_100_000_000}
    first, rollout, relevance = explain.report_memory(found, options).splitlines()
    assert first == "vit_s16 at 1024, one image"
    assert rollout.split() == ["rollout", "1.55", "GB;", "limit", "3:", "kept"]
    assert relevance.endswith("missed")


def test_maps_of_other_logits_are_not_timed() -> None:
    explain = load("explain.py")
    explain.check_agreement({"forward": [1.0, 2.0], "rollout": [1.0, 2.00001]})
    for wrong in (2.01, float("nan")):
        with pytest.raises(SystemExit, match="rollout: logits differ"):
            explain.check_agreement({"forward": [1.0, 2.0], "rollout": [1.0, wrong]})


def test_a_slower_checkout_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    old = [1.0, 1.1, 1.0, 1.2, 1.0, 1.1, 1.0, 1.1]
    facts = load("checkouts.py").summary("forward", {"old": old, "new": [2 * s for s in old]})
    assert facts["interval"] == [0.5, 0.5]
    assert capsys.readouterr().out.endswith("0.500 (0.500 to 0.500): slower\n")


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("checkouts.py").main([str(tmp_path)])


def fine_tunings(**accuracies: list[float]) -> Any:
    """Results of contestants of benchmarks/finetune.py, one for each draw."""
    return {
        (name, seed): {"accuracy": value, "images": 800, "minutes": 0.25}
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    }


def test_fine_tunings_are_compared_on_the_same_draws() -> None:
    finetune = load("finetune.py")
    found = fine_tunings(vitlab=[0.8, 0.82, 0.81], timm=[0.79, 0.8, 0.8, 0.1], logistic=[0.7])
    ours, theirs, alone, verdict = finetune.report(found).splitlines()
    assert ours.split()[:4] == ["vitlab", "81.00%", "±", "1.00%"]
    assert ours.endswith("3 draws, 800 images seen, 0.2 min")
    assert "4 draws" in theirs
    assert alone.split()[:2] == ["logistic", "70.00%"]
    half = 4.303 * statistics.stdev([0.01, 0.02, 0.01]) / 3**0.5
    low, high = 0.04 / 3 - half, 0.04 / 3 + half
    assert verdict == (
        f"vitlab is ahead of timm by 1.33%, 95 % interval {low:.2%} to {high:.2%}, "
        "on the same draws"
    )


def test_fine_tuning_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune = load("finetune.py")
    known = {"contestant": "vitlab", "seed": 0, "accuracy": 0.5, "images": 9, "minutes": 1.0}
    (tmp_path / "results.jsonl").write_text(json.dumps(known) + "\n")
    jobs = []

    def run_alone(job: tuple[str, int]) -> int:
        jobs.append(job)
        with (tmp_path / "results.jsonl").open("a") as file:
            new = known | {"contestant": job[0], "seed": job[1], "accuracy": 0.75}
            file.write(json.dumps(new) + "\n")
        return 0

    monkeypatch.setattr(finetune, "run_alone", run_alone)
    monkeypatch.setattr(finetune, "write_folder", lambda seed, options: None)
    words = ("finetune.py", "--out", tmp_path, "--seeds", 0, 1, "--contestants", "vitlab", "before")
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    finetune.main()
    assert sorted(jobs) == [("before", 0), ("before", 1), ("vitlab", 1)]
    assert "vitlab is ahead of before by -12.50%" in capsys.readouterr().out


def test_a_draw_of_fine_tuning_is_a_folder_of_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune = load("finetune.py")
    monkeypatch.setattr("vitlab.data.datasets.open_data", lambda name: source())
    options = argparse.Namespace(out=tmp_path, per_class=3, tests=20)
    folder = finetune.write_folder(0, options)
    for split, count in (("train", 3), ("test", 2)):
        found = sorted(path.parent.name for path in folder.glob(f"{split}/*/*.png"))
        assert found == sorted(LABELS * count)
    assert finetune.write_folder(0, options) == folder


@pytest.mark.slow
def test_a_checkout_is_measured_against_itself(tmp_path: Path) -> None:
    sizes = ["--rounds", "1", "--images", "3", "--steps", "4", "--forwards", "1"]
    load("checkouts.py").main([str(BENCHMARKS.parent), *sizes, "--json", str(tmp_path / "a.json")])
    facts = json.loads((tmp_path / "a.json").read_text())
    assert list(facts) == ["cold start", "predict", "training step", "forward"]
    assert all(min(f["seconds"]["old"] + f["seconds"]["new"]) > 0 for f in facts.values())


families: Any = importlib.import_module("families")


@pytest.mark.slow
@pytest.mark.parametrize("network", families.NETWORKS)
def test_families_compute_the_same(network: str, tmp_path: Path) -> None:
    library = network.split(":")[0]
    families.prepare(network, 2, str(tmp_path))
    results = {
        name: families.forward(network, name, str(tmp_path))() for name in (families.OURS, library)
    }
    assert results[library].std() > 0.01
    lists = {name: found.tolist() for name, found in results.items()}
    peers.check_equal(library, lists[families.OURS], lists[library])
    lists[library][1][7] += 1e-3
    with pytest.raises(SystemExit, match="differ from ours by"):
        peers.check_equal(library, lists[families.OURS], lists[library])
