"""`vitlab zeroshot`, and the classifier that `--save` makes of its labels."""

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from command import Command
from data.colours import saved_model, write_colours
from weights.whole_models import WHOLE

Made = tuple[str, Path]
LABELS = "blue,green,red"
ENSEMBLE = ("--template", "a photo of {}", "--template", "{}!")


@pytest.fixture(scope="module", params=WHOLE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    WHOLE[request.param](folder)
    return request.param, folder


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("colours"), {"test": 2})


def found(command: Command, *arguments: object) -> Any:
    outcome = command(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_predictions_are_those_of_python(command: Command, made: Made, colours: Path) -> None:
    answers = found(command, "zeroshot", made[1], colours, "--labels", LABELS, *ENSEMBLE)
    images = sorted(colours.rglob("*.png"))
    expected = vitlab.load(made[1]).zeroshot(
        images, LABELS.split(","), templates=["a photo of {}", "{}!"], batch_size=6
    )
    assert [answer["path"] for answer in answers] == [str(path) for path in images]
    for answer, prediction in zip(answers, expected, strict=True):
        assert answer["label"] == prediction.label
        assert dict(answer["top"]) == pytest.approx(dict(prediction.top), abs=1e-5)


def test_one_image_is_a_table_and_several_are_lines(
    command: Command, made: Made, colours: Path, tmp_path: Path
) -> None:
    path = colours / "test" / "red" / "0.png"
    (tmp_path / "labels.txt").write_text("blue\ngreen\nred\n")
    options = ("--labels-file", tmp_path / "labels.txt")
    outcome = command("zeroshot", made[1], path, *options, "--top", 2)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["image", "label", "probability"]
    assert len(lines) == 4
    several = command("zeroshot", made[1], colours, *options, "--top", 1).out.splitlines()
    assert len(several) == 6
    assert all(line.split("\t")[1].split()[0] in LABELS.split(",") for line in several)


def test_an_unreadable_image_is_skipped(
    command: Command, made: Made, colours: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    outcome = command("zeroshot", made[1], colours, broken, "--labels", "a,b")
    assert outcome.code == 3
    assert "broken.png" in outcome.err


# The saved labels are a classifier that every command uses.


@pytest.fixture(scope="module")
def bundle(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vitlab.jobs.zeroshot import zeroshot

    folder = tmp_path_factory.mktemp("saved") / "bundle"
    zeroshot(made[1], [], labels=LABELS.split(","), save=folder)
    return folder


def zeroshot_scores(made: Made, colours: Path) -> dict[str, dict[str, float]]:
    images = sorted(colours.rglob("*.png"))
    predictions = vitlab.load(made[1]).zeroshot(images, LABELS.split(","), batch_size=6)
    return {str(p.path): dict(p.top) for p in predictions}


def test_a_bundle_is_saved(command: Command, made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    outcome = command("zeroshot", made[1], "--labels", LABELS, "--save", folder)
    task = "single-label" if made[0] == "clip" else "multi-label"
    assert outcome.out == f"{folder}: 3 labels, {task}\n", outcome.err
    content = json.loads((folder / "config.json").read_text())
    assert content["labels"] == LABELS.split(",")
    assert (content["task"], content["model"]["unit_norm"]) == (task, True)
    assert content["provenance"]["templates"] == ["a photo of a {}"]
    again = command("zeroshot", made[1], "--labels", LABELS, "--save", folder)
    assert f"{folder} exists; valid: a new or an empty folder" in again.mistake


def test_predict_gives_equal_scores(
    command: Command, made: Made, bundle: Path, colours: Path
) -> None:
    options = [] if made[0] == "clip" else ["--threshold", 0]
    answers = found(command, "predict", bundle, colours, *options)
    expected = zeroshot_scores(made, colours)
    assert {answer["path"] for answer in answers} == expected.keys()
    for answer in answers:
        assert dict(answer["top"]) == pytest.approx(expected[answer["path"]], abs=1e-6)


@pytest.mark.slow
def test_exported_it_gives_equal_scores(
    command: Command, made: Made, bundle: Path, colours: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "labels.onnx"
    outcome = command("export", bundle, "--output", file)
    assert outcome.code == 0, outcome.err
    options = [] if made[0] == "clip" else ["--threshold", 0]
    answers = found(command, "predict", file, colours, *options)
    expected = zeroshot_scores(made, colours)
    for answer in answers:
        assert dict(answer["top"]) == pytest.approx(expected[answer["path"]], abs=1e-4)


def test_evaluate_reads_it(command: Command, made: Made, bundle: Path, colours: Path) -> None:
    if made[0] == "siglip":
        table = colours / "labels.csv"
        rows = [f"{p.relative_to(colours)},{p.parent.name}" for p in colours.rglob("*.png")]
        table.write_text("\n".join(["path,labels", *sorted(rows)]))
        answers = found(command, "evaluate", bundle, "--data", table, "--split", "all")
        table.unlink()
        assert (answers["images"], answers["task"]) == (6, "multi-label")
        return
    answers = found(command, "evaluate", bundle, "--data", colours / "test", "--split", "all")
    scores = zeroshot_scores(made, colours)
    right = [
        Path(path).parent.name == max(top, key=top.__getitem__) for path, top in scores.items()
    ]
    assert answers["images"] == len(right)
    assert answers["accuracy"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize("method", ["relevance", "gradcam", "input-gradient"])
def test_explain_reads_it(method: str, bundle: Path, colours: Path) -> None:
    classifier, images = vitlab.load(bundle), sorted(colours.rglob("*.png"))
    maps = []
    for label in LABELS.split(","):
        explained = classifier.explain_many(images, method=method, target=label)
        maps.append(np.stack([one.map for one in explained]))
        assert [dict(one.top) for one in explained] == [
            pytest.approx(dict(one.top), abs=1e-5) for one in classifier.predict(images)
        ]
    found = np.stack(maps)
    assert np.isfinite(found).all()
    assert found.std(axis=0).max() > 0, "maps do not depend on the label"


@pytest.mark.slow
def test_serve_reads_it(made: Made, bundle: Path, colours: Path) -> None:
    pytest.importorskip("starlette")
    from serve.server import serving

    image = colours / "test" / "red" / "0.png"
    with serving("--quiet", model=str(bundle)) as server:
        (result,) = server.post("/classify?top=3", content=image.read_bytes()).json()["results"]
    expected = zeroshot_scores(made, colours)[str(image)]
    if made[0] == "siglip":
        expected = {label: value for label, value in expected.items() if value >= 0.5}
    assert dict(result["top"]) == pytest.approx(expected, abs=1e-5)


def test_features_and_info_read_it(
    command: Command, bundle: Path, colours: Path, tmp_path: Path
) -> None:
    outcome = command("features", bundle, colours, "--output", tmp_path / "f.npz")
    assert outcome.code == 0, outcome.err
    assert found(command, "info", bundle)["labels"] == LABELS.split(",")


# Images most similar to a text


def test_similar_to_a_text(command: Command, made: Made, colours: Path, tmp_path: Path) -> None:
    path, sheet = tmp_path / "f.npz", tmp_path / "sheet.png"
    assert command("features", made[1], colours, "--output", path, "--kind", "embedding").code == 0
    text = "a red car 红色"
    options = ("--top", 4, "--contact-sheet", sheet)
    answers = found(command, "similar", path, "--text", text, *options)
    images = sorted(colours.rglob("*.png"))
    classifier = vitlab.load(made[1])
    x = classifier.features(images, kind="embedding")
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = x @ classifier.text.embed([text])[0].numpy()
    order = np.argsort(-cosines)[:4]
    assert (answers["text"], answers["searched"]) == (text, 6)
    assert [match["path"] for match in answers["matches"]] == [str(images[i]) for i in order]
    similarity = [match["similarity"] for match in answers["matches"]]
    np.testing.assert_allclose(similarity, cosines[order], atol=1e-6)
    assert sheet.stat().st_size > 1000
    by_image = found(command, "similar", path, images[0], "--top", 1)
    assert by_image["matches"][0]["path"] == str(images[0])


def test_cosines_are_the_logits_of_zero_shot(made: Made, colours: Path) -> None:
    classifier, images = vitlab.load(made[1]), sorted(colours.rglob("*.png"))
    x = torch.nn.functional.normalize(
        torch.from_numpy(classifier.features(images, kind="embedding")), dim=1
    )
    labelled = classifier.for_labels(["a cat", "a dog"], templates="{}")
    text, tower = classifier.text.embed(["a cat", "a dog"]), classifier.text.tower
    logits = x @ text.T * tower.logit_scale.exp()
    logits += 0 if tower.logit_bias is None else tower.logit_bias
    found = labelled.predict(images, top=2, **({} if made[0] == "clip" else {"threshold": 0}))
    expected = labelled.activate(logits)
    for prediction, row in zip(found, expected, strict=True):
        scores = dict(prediction.top)
        assert [scores["a cat"], scores["a dog"]] == pytest.approx(row.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ((), "neither an image nor a text to compare with; valid: one of both"),
        (("IMAGE", "--text", "a"), "an image and a text to compare with; valid: one of both"),
        (("--text", " "), "an empty text; valid: at least one word"),
        (("--text", "a"), "holds pooled features, before the projection that images and texts"),
    ],
)
def test_queries_that_cannot_be(
    command: Command,
    made: Made,
    query: tuple[str, ...],
    message: str,
    colours: Path,
    tmp_path: Path,
) -> None:
    path = tmp_path / "f.npz"
    assert command("features", made[1], colours, "--output", path).code == 0
    image = colours / "test" / "red" / "0.png"
    options = [image if word == "IMAGE" else word for word in query]
    assert message in command("similar", path, *options).mistake


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "neither of --labels and --labels-file; valid: one of them"),
        (("--labels", "a", "--labels-file", "b"), "both of --labels and --labels-file"),
        (("--labels", ""), "label 1 of 1 is empty; valid: a name"),
        (("--labels", "a,,b"), "label 2 of 3 is empty"),
        (("--labels", "a,b, a"), "label 'a' is given 2 times; valid: each label once"),
        (("--labels", "a", "--template", "no place"), "template 'no place' has no place for"),
        (("--labels-file", "missing.txt"), "missing.txt: no such file of labels"),
    ],
)
def test_options_that_cannot_be(
    command: Command, options: tuple[str, ...], message: str, colours: Path
) -> None:
    assert message in command("zeroshot", "no-model", colours, *options).mistake


def test_nothing_to_do(command: Command, made: Made) -> None:
    outcome = command("zeroshot", made[1], "--labels", "a,b")
    assert "no images and no bundle to save" in outcome.mistake


def test_models_that_have_no_text_tower(
    command: Command, made: Made, colours: Path, tmp_path: Path
) -> None:
    model = saved_model(tmp_path / "model.safetensors")
    outcome = command("zeroshot", model, colours, "--labels", "a,b")
    assert "model.safetensors is a classifier, which has no text tower" in outcome.mistake
    for path in made[1].iterdir():
        if "token" not in path.name and path.suffix not in (".txt", ".model", ".vocab"):
            (tmp_path / path.name).unlink(missing_ok=True)
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "vocab.json").unlink(missing_ok=True)
    outcome = command("zeroshot", tmp_path, colours, "--labels", "a,b")
    assert "no tokenizer beside the weights; valid: the publisher's" in outcome.mistake


def test_a_missing_extra(
    command: Command, made: Made, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def importing(module: str, *args: Any, **options: Any) -> Any:
        if module in ("tokenizers", "sentencepiece"):
            raise ImportError(module)
        return real(module, *args, **options)

    monkeypatch.setattr(builtins, "__import__", importing)
    outcome = command("zeroshot", made[1], colours, "--labels", "a,b")
    assert "needs an extra: pip install 'vitlab[text]'" in outcome.mistake
