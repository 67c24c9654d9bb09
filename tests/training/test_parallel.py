"""Several processes train one model: the gradients, losses and weights of a single process."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from data.picture_files import picture
from parallel_runs import assert_near, assert_same_state, trained
from processes import outputs, start, together
from tiny_runs import metrics_of
from vitlab.classify.classifier import load


def test_gradients_are_those_of_one_process() -> None:
    together(2, "training.parallel_checks:check_gradients")


def test_a_run_is_that_of_one_process_and_continues_in_several(tmp_path: Path) -> None:
    alone, two = trained(tmp_path / "alone", 1), trained(tmp_path / "two", 2)
    assert_near(alone, two, 1e-4)
    config = json.loads((two / "config.json").read_text())
    assert config["steps"] == 4
    # The same command again, under a launcher, is the same run: it has ended.
    before = (two / "metrics.jsonl").read_bytes()
    trained(two, 2)
    assert (two / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_losses_of_50_steps_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    alone, several = (trained(tmp_path / str(n), n, steps=50) for n in (1, size))
    assert_near(alone, several, 1e-4)


def test_shards_give_the_same_bits_in_any_number_of_processes(tmp_path: Path) -> None:
    changes = {
        "shards": 4,
        "batch_size": 44,
        "model.stem": "conv",
        "model.conv_norm": "batch",
        "model.conv_strides": "2,2",
        "model.patch_size": 4,
    }
    runs = {size: trained(tmp_path / str(size), size, steps=3, **changes) for size in (1, 2)}
    assert metrics_of(runs[1]) == metrics_of(runs[2])
    assert_same_state(runs[1], runs[2], 3)


@pytest.mark.slow
def test_shards_give_the_same_bits_in_four_processes(tmp_path: Path) -> None:
    changes = {"shards": 4, "batch_size": 44}
    runs = {size: trained(tmp_path / str(size), size, steps=5, **changes) for size in (1, 4)}
    assert_same_state(runs[1], runs[4], 5)


def stored_kinds(run: Path) -> set[str]:
    """Kinds of the files of a run, each opened as what it should be."""
    kinds = set()
    for path in filter(Path.is_file, run.rglob("*")):
        content, kind = path.read_bytes(), path.suffix or path.name
        if kind == ".safetensors":
            load_file(path)
        elif kind in (".json", ".jsonl"):
            for document in [content] if kind == ".json" else content.splitlines():
                json.loads(document)
        else:
            assert kind in (".html", ".lock"), path
            content.decode()
        kinds.add(kind)
    return kinds


def test_fsdp_gives_the_losses_and_weights_of_one_process() -> None:
    together(2, "training.parallel_checks:check_fsdp_steps")


@pytest.mark.slow
def test_four_processes_agree_too() -> None:
    together(4, "training.parallel_checks:check_gradients")
    together(4, "training.parallel_checks:check_fsdp_steps")


@pytest.mark.slow
def test_fsdp_holds_half_of_a_large_model_in_each_of_two_processes() -> None:
    shares = together(2, "training.parallel_checks:check_fsdp_memory")
    assert all(0.5 <= float(share) < 0.6 for share in shares)


@pytest.mark.slow
def test_checkpoints_of_shards_continue_in_other_numbers_of_processes(tmp_path: Path) -> None:
    changes = {"checkpoint_every": 2, "keep": 9}
    alone = trained(tmp_path / "alone", 1, steps=6, **changes)
    first = trained(tmp_path / "first", 2, steps=6, parallel="fsdp", **changes)
    assert_near(alone, first, 1e-4)
    assert stored_kinds(first) == {".safetensors", ".json", ".jsonl", ".html", ".lock"}
    assert sorted(p.name for p in (first / "checkpoints" / "step-00000004").iterdir()) == [
        "progress.json",
        "shard-00001-model-00001-of-00001.safetensors",
        "shard-00002-model-00001-of-00001.safetensors",
    ]
    load(first)  # a plain bundle
    for size, parallel in ((1, "ddp"), (4, "fsdp"), (2, "ddp")):
        run = tmp_path / f"{size} {parallel}"
        shutil.copytree(first, run)
        shutil.rmtree(run / "checkpoints" / "step-00000006")
        words = ["-m", "vitlab", "train", "--resume", "--out", str(run)]
        outputs(start(size, [*words, "--set", f"parallel={parallel}"]))
        assert_near(alone, run, 1e-4)


@pytest.mark.slow
def test_evaluation_gives_equal_floats_in_any_number_of_processes(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 1)
    words = ["-m", "vitlab", "evaluate", str(run), "--data", "digits", "--flip", "--json"]
    # 360 images in 6 batches, the last of them smaller: no number from 2 on divides both.
    printed = {size: outputs(start(size, words))[0] for size in (1, 2, 3, 4)}
    assert json.loads(printed[1])["images"] == 360
    assert all(json.loads(text) == json.loads(printed[1]) for text in printed.values())


@pytest.mark.slow
def test_a_folder_read_by_other_processes_gives_the_losses_of_one(tmp_path: Path) -> None:
    for number in range(60):
        place = tmp_path / "data" / "train" / f"class {number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        picture(number, 40, 52).save(place / f"{number}.png")
    changes = {"workers": 1, "batch_size": 15, "augment.random_resized_crop": "0.3,1.0"}
    data = str(tmp_path / "data")
    alone, two = (
        trained(tmp_path / str(n), n, steps=6, data=data, judge_all="false", **changes)
        for n in (1, 2)
    )
    assert_near(alone, two, 1e-4)
