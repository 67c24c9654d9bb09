"""The model card: what it says, where it says nothing, and what the hub makes of it."""

import hashlib
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import vitlab
from vitlab.errors import ConfigError, FileError, VitlabError
from vitlab.evaluation.metrics import wilson
from vitlab.images.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitlab.jobs.card import (
    Card,
    licence_in,
    markdown,
    read_card,
    sections,
    write_markdown,
)
from vitlab.jobs.plan import Plan, resume_command, write_plan
from vitlab.jobs.start import Start
from vitlab.models.variants import FREE, variant, variant_name
from vitlab.report.card.content import in_words, shortened
from vitlab.training.config import TrainConfig
from vitlab.training.recipes.from_scratch import pretraining
from weights.bundles import (
    LABELS,
    METRICS,
    PREPARATION,
    PROVENANCE,
    edit_config,
    make_bundle,
    small_model,
    transformers_files,
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


def told(card: Card) -> dict[str, str]:
    """Every row of the card."""
    return {name: value for section in sections(card) for name, value in section.rows}


def front_matter(text: str) -> dict[str, Any]:
    """What the hub's own library reads between the first two lines of dashes."""
    assert text.startswith("---\n")
    return dict(ModelCard(text).data.to_dict())


def test_a_bundle_tells_all_that_was_stored(bundle: Path) -> None:
    card = read_card(bundle)
    assert (card.kind, card.format, card.name) == ("bundle", "vitlab", "vit_test")
    assert (card.labels, card.preprocessing) == (LABELS, PREPARATION)
    assert card.metrics == METRICS
    assert card.provenance == PROVENANCE
    assert card.cost.parameters == sum(p.numel() for p in small_model().parameters())
    assert card.title == "vit_test on trees"
    rows = told(card)
    assert rows["model"] == (
        "vit_test: Vision Transformer, width 32, depth 2, 2 heads, patches of 8 × 8"
    )
    assert rows["task"] == "one label for each image"
    assert rows["names"] == "ash, birch, cedar"
    assert rows["command"] == PROVENANCE["command"]
    assert rows["weights"] == "the running average of training (EMA)"
    assert rows["licence"] == "not stated"
    assert rows["seed"] == "7"
    assert rows["FLOPs per image"].endswith("MACs)")


def test_what_the_training_took_is_told_in_units_of_people(tmp_path: Path) -> None:
    spent = {"steps": 1250, "images_seen": 640_000, "pflops": 0.29, "minutes": 31.5}
    rows = told(read_card(make_bundle(tmp_path / "bundle", provenance=PROVENANCE | spent)))
    assert rows["training compute"] == "0.29 PFLOPs"
    assert rows["training time"] == "31 min 30 s"
    assert (rows["images seen"], rows["steps"]) == ("640,000", "1,250")
    assert not {"pflops", "minutes"} & set(rows)
    small = PROVENANCE | {"pflops": 2.5e-6, "minutes": "about an hour"}
    rows = told(read_card(make_bundle(tmp_path / "small", provenance=small)))
    assert rows["training compute"] == "2.5 GFLOPs"
    assert rows["training time"] == "about an hour"
    assert "steps" not in rows


def test_the_interval_is_that_of_the_images_counted(bundle: Path) -> None:
    test, validation = read_card(bundle).measured
    assert (test.split, test.images, test.interval) == ("test", 500, wilson(450, 500))
    assert (validation.split, validation.interval) == ("validation", None)
    rows = told(read_card(bundle))
    assert rows["test accuracy"] == "90.00% (95% interval 87.06% to 92.33%, 500 images)"
    assert rows["validation accuracy"] == "92.00%, on images that chose the weights"
    assert rows["test loss"] == "0.25"
    assert "test images" not in rows


def test_files_have_their_sizes_and_digests_and_others_are_not_theirs(bundle: Path) -> None:
    (bundle / "notes.txt").write_text("mine")
    files = {file.name: file for file in read_card(bundle).files}
    assert set(files) == {"config.json", "model.safetensors"}
    for name, file in files.items():
        content = (bundle / name).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_what_nobody_stated_is_not_stated(bundle: Path) -> None:
    edit_config(bundle, preprocessing=None, labels=None, task=None, metrics=None, provenance=None)
    card = read_card(bundle)
    rows = told(card)
    unknown = ("task", "names", "preprocessing", "accuracy", "data", "recipe", "seed", "command")
    assert {rows[name] for name in (*unknown, "licence", "weights")} == {"not stated"}
    text = markdown(card)
    assert front_matter(text)["license"] == "unknown"
    assert "metrics" not in front_matter(text)
    assert "| command | not stated |" in text
    assert json.loads(json.dumps(card.to_dict()))["licence"] is None


def test_a_bundle_of_another_kind_of_metric_and_provenance_shows_them_all(tmp_path: Path) -> None:
    bundle = make_bundle(
        tmp_path / "bundle",
        task="regression",
        metrics={"test_mean_error": 0.123456, "test_images": 20},
        provenance={"licence": "CC-BY-4.0", "from": {"file": "a.npz", "sha256": "ab"}, "tags": []},
    )
    rows = told(read_card(bundle))
    assert rows["task"] == "a number for each image"
    assert (rows["test mean error"], rows["test images"]) == ("0.1235", "20")
    assert (rows["from"], rows["tags"]) == ("file a.npz, sha256 ab", "not stated")
    assert rows["licence"] == "CC-BY-4.0"


def test_a_convolutional_bundle_has_a_card_too(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle", small_model("cnn_tutorial"))
    card = read_card(bundle)
    assert told(card)["model"] == "cnn_tutorial: convolutional network of the PyTorch tutorial"
    assert "tokens" not in told(card)
    assert "vit" not in front_matter(markdown(card))["tags"]


def test_weights_of_others_have_a_card(tmp_path: Path) -> None:
    files = transformers_files(tmp_path / "theirs")
    for name in ("README.md", "model.safetensors"):
        (tmp_path / "theirs" / name).write_bytes(files[name])
    card = read_card(tmp_path / "theirs")
    assert (card.kind, card.format, card.licence) == ("weights", "huggingface", "mit")
    assert card.labels == LABELS
    names = [file.name for file in card.files]
    assert names == ["model.safetensors", "config.json", "preprocessor_config.json"]
    assert told(card)["accuracy"] == "not stated"


def test_the_weight_file_of_a_bundle_knows_what_the_bundle_knows(bundle: Path) -> None:
    whole, alone = read_card(bundle), read_card(bundle / "model.safetensors")
    assert (alone.metrics, alone.provenance) == (whole.metrics, whole.provenance)
    assert alone.kind == "weights"
    assert [file.name for file in alone.files] == ["model.safetensors"]


def test_a_run_is_its_bundle_and_one_that_has_not_ended_says_how_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    plan = Plan(recipe="default", data="sample", train=TrainConfig(), model={}, steps=1, command="")
    write_plan(run, plan)
    (run / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"has not ended; continue it: vitlab train --resume"):
        read_card(run)
    make_bundle(run / "bundle")
    assert read_card(run).kind == "run"
    assert read_card(run).metrics == METRICS


@pytest.mark.parametrize("verb", ["train", "finetune", "pretrain"])
def test_a_run_is_resumed_by_its_own_command(tmp_path: Path, verb: str) -> None:
    half = (0.5, 0.5, 0.5)
    start = Start(weights="w", preprocessing=Preprocessing(size=(8, 8), mean=half, std=half))
    plan = Plan(
        recipe="r",
        data="d",
        train=pretraining("mae") if verb == "pretrain" else TrainConfig(),
        model={},
        steps=1,
        command="c",
        start=start if verb == "finetune" else None,
    )
    write_plan(tmp_path, plan)
    assert resume_command(tmp_path) == f"vitlab {verb} --resume --out {tmp_path}"


def test_training_states_what_the_card_needs(tmp_path: Path) -> None:
    run = vitlab.train(
        data="digits",
        out=tmp_path / "run",
        changes={"model": "vit_test", "budget": 2.0, "budget_in": "steps", "batch_size": 8},
        licence="MIT",
    )
    card = read_card(run.folder)
    assert card.licence == "MIT"
    assert front_matter(markdown(card))["license"] == "mit"
    (first, *_) = card.measured
    assert (first.split, first.images) == (run.split, run.evaluation.images)
    assert first.interval == run.evaluation.interval
    assert card.title.startswith(("vit_test on digits", "variant of vit_test on digits"))
    with pytest.raises(ConfigError, match="keeps licence as it was begun"):
        vitlab.train(out=tmp_path / "run", resume=True, licence="MIT")


@pytest.mark.parametrize(
    ("changes", "resize", "values"),
    [
        (
            {"crop": 0.875, "mean": IMAGENET_MEAN, "std": IMAGENET_STD},
            "the shorter side resized to 256 (bicubic), then the middle 224 × 224 kept",
            "the statistics of ImageNet",
        ),
        (
            {"mean": HALF, "std": HALF, "keep_aspect": False, "interpolation": "bilinear"},
            "the whole image squeezed to 224 × 224 (bilinear)",
            "which maps to [-1, 1]",
        ),
        (
            {"size": (160, 240), "crop": 0.8, "mean": (0.1,), "std": (0.25,)},
            "resized to cover 300 × 200 (bicubic), then the middle 240 × 160 kept",
            "less mean 0.1, divided by deviation 0.25",
        ),
    ],
)
def test_preprocessing_in_words(changes: dict[str, Any], resize: str, values: str) -> None:
    found = in_words(Preprocessing(**{"size": (224, 224)} | changes))
    assert found[0] == resize
    assert found[1].endswith(values)


def test_many_labels_are_shortened() -> None:
    assert shortened(LABELS) == "ash, birch, cedar"
    text = shortened(tuple(f"c{i}" for i in range(1000)))
    assert text.startswith("c0, c1, ")
    assert text.endswith("c10, … (988 more) …, c999")


def test_a_name_is_given_to_models_of_that_shape_only() -> None:
    config = variant("vit_ti16")
    assert variant_name(replace(config, classes=3, image_size=(64, 96), channels=1)) == "vit_ti16"
    assert variant_name(replace(config, depth=11)) is None
    assert {field.name for field in fields(config)} >= FREE


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ('---\ntags: [a]\nlicense: "apache-2.0"  \n---\n# A\n', "apache-2.0"),
        ("---\nlicense: unknown\n---\n", None),
        ("---\ntags: [a]\n---\nlicense: mit\n", None),
        ("license: mit\n", None),
        ("---\nlicense:\n- mit\n---\n", None),
        ("", None),
    ],
)
def test_the_licence_of_a_readme_is_that_of_its_front_matter(
    tmp_path: Path, text: str, licence: str | None
) -> None:
    (tmp_path / "README.md").write_text(text)
    assert licence_in(tmp_path / "README.md") == licence
    assert licence_in(tmp_path / "none.md") is None


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("Apache-2.0", {"license": "apache-2.0"}),
        (None, {"license": "unknown"}),
        ("My licence: no war", {"license": "other", "license_name": "My licence: no war"}),
    ],
)
def test_the_front_matter_is_what_the_hub_reads(
    bundle: Path, licence: str | None, expected: dict[str, str]
) -> None:
    text = markdown(replace(read_card(bundle), licence=licence))
    front = front_matter(text)
    assert front["pipeline_tag"] == "image-classification"
    assert front["metrics"] == ["accuracy"]
    assert {"vision-transformer", "vitlab"} <= set(front["tags"])
    assert {key: value for key, value in front.items() if key.startswith("license")} == expected
    (result,) = ModelCard(text).data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 0.9)
    assert (result.dataset_name, result.dataset_split) == ("trees", "test")


def test_what_is_no_classifier_is_not_called_one(bundle: Path) -> None:
    card = read_card(bundle)
    values = markdown(replace(card, task="regression"))
    assert "pipeline_tag" not in front_matter(values)
    assert "| values |" in values
    assert f"{card.model.classes} values" in values
    encoder = markdown(replace(card, model=replace(card.model, classes=0)))
    assert front_matter(encoder)["pipeline_tag"] == "image-feature-extraction"
    assert "model.features(" in encoder
    assert "| task |" not in encoder


def test_markdown_holds_the_sections_and_no_markup_of_a_label(bundle: Path) -> None:
    card = replace(read_card(bundle), labels=("a|b", "<script>", "snow_man `x` *y*"))
    text = markdown(card)
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings[:-1] == [section.title for section in sections(card)]
    assert headings[-1] == "How to use it"
    row = next(line for line in text.splitlines() if line.startswith("| names |"))
    assert row == "| names | a\\|b, &lt;script&gt;, snow\\_man \\`x\\` \\*y\\* |"
    assert f"```\n{PROVENANCE['command']}\n```" in text
    assert str(bundle) not in text


def test_a_card_is_written_whole_or_not_at_all(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, path = read_card(bundle), tmp_path / "card.md"
    write_markdown(card, path)
    assert path.read_text(encoding="utf-8") == markdown(card)
    before = sorted(os.listdir(tmp_path))

    def stop(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(FileError, match="No space left"):
        write_markdown(card, path)
    with pytest.raises(FileError, match="cannot be written"):
        write_markdown(card, tmp_path / "no" / "card.md")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_model_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitlabError, match=name):
        read_card(tmp_path / name)
