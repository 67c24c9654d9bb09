"""Runs without labels from end to end: what they learn, leave behind, resume, and are good for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import runs
from experiments.tiny import registered, source
from vitlab.classify.classifier import load
from vitlab.config import override
from vitlab.errors import ConfigError, DataError
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs import pretrain_result as result
from vitlab.jobs.finetune import finetune
from vitlab.jobs.plan import read_plan
from vitlab.jobs.train import pretrain, train
from vitlab.jobs.training_run import TrainingRun, Watcher
from vitlab.models.cost import cost
from vitlab.models.pretraining import MaskedAutoencoder
from vitlab.models.variants import create_model
from vitlab.training.batch_size import fitting_batch_size
from vitlab.training.optim import build_optimizers, optimizer_flops
from vitlab.training.pretraining import with_objective
from vitlab.training.recipes.from_scratch import pretraining
from vitlab.training.step import Meter

OBJECTIVES = ("masked-patch", "mae")
CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "changes": {"patch_size": 4, "width": 24, "heads": 2, "mlp_width": 40, "depth": 2},
    "batch_size": 10,
    "budget": 6.0,
    "budget_in": "steps",
    "evaluations": 2,
    "checkpoint_every": 2,
}
SMALL_DECODER = {"mae.decoder_width": 16, "mae.decoder_heads": 2, "mae.decoder_depth": 1}


PLAIN = Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)


def changes(objective: str, **more: Any) -> dict[str, Any]:
    """Of the recipe, for a run of no time."""
    return {**CHANGES, **(SMALL_DECODER if objective == "mae" else {}), **more}


@pytest.fixture(scope="module")
def data() -> Iterator[str]:
    with registered() as name:
        yield name


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is what costs most here."""
    monkeypatch.setattr(result, "_draw", lambda trained, model: ())


@pytest.fixture(scope="module", params=OBJECTIVES)
def done(request: pytest.FixtureRequest, data: str, tmp_path_factory: Any) -> tuple[str, Path]:
    """An objective, and the folder of its run."""
    objective: str = request.param
    out = tmp_path_factory.mktemp("runs") / objective
    pretrain(objective, data=data, out=out, changes=changes(objective))
    return objective, out


def test_what_a_run_leaves(done: tuple[str, Path]) -> None:
    objective, out = done
    figures = {f"{name}.{kind}" for name in ("hidden-patches", "loss") for kind in ("png", "svg")}
    assert figures <= {path.name for path in out.iterdir()}
    page = (out / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 1
    assert "Predictions of hidden patches" in page
    bundle = json.loads((out / "bundle" / "config.json").read_text())
    assert (bundle["model"]["classes"], bundle["labels"]) == (0, [])
    assert bundle["provenance"]["objective"] == objective
    assert bundle["provenance"]["command"].startswith(f"vitlab pretrain --objective {objective}")
    score = "r2" if objective == "mae" else "accuracy"
    logged = runs.metrics_of(out)
    assert {line["name"] for line in logged if line["split"] == "validation"} == {"loss", score}
    # No accuracy, which would be one of classes.
    told = "r2" if objective == "mae" else "colours_right"
    assert set(bundle["metrics"]) == {f"validation_{name}" for name in ("images", "loss", told)}
    assert bundle["metrics"][f"validation_{told}"] == max(
        line["value"] for line in logged if line["name"] == score
    )


def test_features_are_all_that_there_is_yet(done: tuple[str, Path]) -> None:
    classifier = load(done[1])
    assert classifier.labels == ()
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    assert classifier.features([Image.fromarray(pixels)]).shape == (1, 24)


def test_the_end_of_a_run_is_shown_in_stages(data: str, tmp_path: Path, no_figures: None) -> None:
    stages: list[tuple[str, int, int]] = []
    watcher = Watcher(stage=lambda *stage: stages.append(stage))
    run = pretrain("mae", data=data, out=tmp_path / "run", changes=changes("mae"), watcher=watcher)
    held_out = int(run.metrics["validation_images"])
    assert [stage for stage in stages if stage[1] == stage[2]] == [
        ("evaluating held-out images", held_out, held_out),
        ("drawing figures", 1, 1),
        ("writing the report", 1, 1),
    ]


def test_a_broken_off_run_ends_where_the_other_does(
    done: tuple[str, Path], data: str, tmp_path: Path
) -> None:
    objective, whole = done
    settings = changes(objective)
    recipe = pretraining(objective)
    runs.train_until(3, recipe=recipe, data=data, out=tmp_path / "part", changes=settings)
    pretrain(objective, out=tmp_path / "part", resume=True)
    assert runs.same(tmp_path / "part", whole)
    assert (tmp_path / "part" / "hidden-patches.svg").read_bytes() == (
        whole / "hidden-patches.svg"
    ).read_bytes()


def test_another_mask_is_another_run(done: tuple[str, Path], data: str, tmp_path: Path) -> None:
    objective, _ = done
    recipe = pretraining(objective)
    runs.train_until(3, recipe=recipe, data=data, out=tmp_path, changes=changes(objective))
    path, key = tmp_path / "config.json", objective.replace("-", "_")
    plan = json.loads(path.read_text())
    plan["train"][key]["mask"] = 0.3
    path.write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=f"{key}.mask was"):
        train(out=tmp_path, resume=True)


def test_fine_tuning_starts_from_the_encoder(
    done: tuple[str, Path], data: str, tmp_path: Path
) -> None:
    """With the head learning alone, everything else is still as it was learnt without labels."""
    few = {"budget": 2.0, "budget_in": "steps", "batch_size": 10, "ema": 0.0, "evaluations": 1}
    run = finetune(done[1], data=data, out=tmp_path / "tuned", linear_probe=True, changes=few)
    before, after = (load(place).model.state_dict() for place in (done[1], run.folder))
    assert set(after) - set(before) == {"head.weight", "head.bias"}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert after["head.weight"].shape == (5, 24)
    assert after["head.weight"].any()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("objective", "pool"), [("masked-patch", "mean"), ("mae", "cls")])
def test_the_loss_falls(objective: str, pool: str, data: str, tmp_path: Path) -> None:
    """On five brightnesses; nothing that is known of a patch is without use for another."""
    shape = {**CHANGES["changes"], "pool": pool, "class_token": pool == "cls"}
    longer = changes(objective, changes=shape, budget=40.0, hold_out=0.0, checkpoint_every=100)
    run = pretrain(objective, data=data, out=tmp_path, changes={**longer, "augment.flip": "none"})
    losses = [line["value"] for line in runs.metrics_of(tmp_path) if line["name"] == "loss"]
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    # Noise cannot be drawn: a masked autoencoder can but stop drawing anything.
    assert last < (0.8 if objective == "mae" else 0.5) * first
    assert run.metrics == {}


def test_compute_counts_the_decoder_and_what_is_left_out() -> None:
    config = override(pretraining("mae"), changes("mae"))
    torch.manual_seed(0)
    model = create_model("vit_test", classes=0)
    objective = with_objective(model, config, PLAIN)
    assert isinstance(objective, MaskedAutoencoder)
    found = Meter(config).flops(objective, (10, 3, 32, 32), head_alone=False)
    assert found == 30 * cost(objective).flops + optimizer_flops(objective, config.optimizer)

    def linear(tokens: int, inner: int, outer: int) -> int:
        return 2 * tokens * inner * outer

    def block(tokens: int, width: int, mlp: int) -> int:
        products = linear(tokens, width, 4 * width) + 2 * linear(tokens, width, mlp)
        return products + 2 * linear(tokens, tokens, width)

    stem = linear(16, 3 * 8 * 8, 32)
    encoder = 2 * block(1 + 4, 32, 64)  # a quarter of 16 patches, and the class token
    decoder = linear(1 + 4, 32, 16) + block(1 + 16, 16, 64) + linear(12, 16, 3 * 8 * 8)
    assert cost(objective).flops == stem + encoder + decoder


def test_muon_takes_the_matrices_of_encoder_and_decoder() -> None:
    config = override(pretraining("mae"), changes("mae"))
    model = with_objective(create_model("vit_test", classes=0), config, PLAIN)
    muon, _ = build_optimizers(model, config.optimizer)
    count = sum(len(group["params"]) for group in muon.param_groups)
    assert count == 3 * 4 + 1  # four matrices of each block, and the patch projection
    assert fitting_batch_size(model, config, largest=4) == 4


def test_another_model_keeps_its_shape() -> None:
    assert pretraining("mae").changes["width"] == 128
    other = pretraining("masked-patch", model="vit_s16")
    assert (other.model, other.changes) == ("vit_s16", {})


@pytest.mark.usefixtures("no_figures")
def test_an_unlabelled_folder(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "photos" / "deeper").mkdir(parents=True)
    for number in range(20):
        pixels = random.integers(0, 255, (19, 17, 3), dtype=np.uint8)
        place = tmp_path / "photos" / ("deeper" if number % 2 else ".")
        Image.fromarray(pixels).save(place / f"{number}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no picture")
    settings = changes("mae", budget=2.0, hold_out=0.2)
    settings["changes"] = {**CHANGES["changes"], "image_size": 16}
    runs.train_until(
        1, recipe=pretraining("mae"), data=tmp_path / "photos", out=tmp_path / "run",
        changes=settings,
    )  # fmt: skip
    run = pretrain(out=tmp_path / "run", resume=True)
    assert run.metrics["validation_images"] == 4
    assert "broken.png" in (run.folder / "broken.json").read_text()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image files"):
        pretrain(data=tmp_path / "empty", out=tmp_path / "other", changes=settings)
    assert not (tmp_path / "other").exists()


def test_images_are_hidden_alike_in_every_evaluation(done: tuple[str, Path]) -> None:
    plan = read_plan(done[1])
    job = TrainingRun.prepare(plan, done[1], source(), watcher=Watcher())
    evaluate = job.evaluator()
    assert evaluate is not None
    torch.manual_seed(1)
    first = dict(evaluate(job.state.model))
    torch.manual_seed(2)
    assert dict(evaluate(job.state.model)) == first
    assert {"loss"} < set(first)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"masked_patch.mask": 0.5}, "masked_patch and mae: a run has one objective"),
        ({"learns": "head"}, "learns head is not for mae; valid: everything"),
        ({"balance": "loss"}, "balance loss is not for mae"),
        ({"optimizer.layer_decay": 0.7}, "layer_decay 0.7 is not for mae"),
        ({"mae.decoder_heads": 5}, "decoder_width 96 does not split into 5 heads"),
        ({"mae.mask": 1.0}, "mask 1.0 is not a share"),
        ({"model.classes": 3}, "without labels has 0"),
    ],
)
def test_settings_that_mean_nothing(
    settings: dict[str, Any], message: str, data: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        pretrain(data=data, out=tmp_path / "run", changes=settings)
    assert not (tmp_path / "run").exists()
