"""Pages in Chinese: every sentence of the product is translated, and nothing of the user's."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from jobs.test_report import full_report, outcome
from jobs.test_walkthrough import classifier, draw_image
from vitlab.evaluation.classification import evaluate
from vitlab.report.language import FOLDER, LANGUAGES, VARYING, read, say, speaking
from vitlab.report.run import Report, render

LATIN = re.compile(r"[A-Za-z][a-z]{2,}")
FIELD = {
    *("GELU", "LayerNorm", "LayerScale", "ReLU", "Softmax", "exp", "max", "sigmoid", "softmax"),
    *("ResNet", "Transformer", "Vision", "logit", "logits", "token", "vitlab"),
    *("FLOPs", "MACs", "PFLOPs", "cpu", "min", "nats"),
    *("Layer", "Norm", "Scale", "LU"),  # parts of the names above
}
"""Words of the field and of formulas, which stay as they are."""


class Texts(HTMLParser):
    """Texts of a page, without code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "br"):
            self.inside.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("alt", "aria-label")]

    def handle_endtag(self, tag: str) -> None:
        self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "code", "details"} & set(self.inside):
            self.found.append(data)


def english(page: str, own: set[str]) -> set[str]:
    """Words of a page that are neither the field's nor the user's."""
    words = {word for text in Texts(page).found for word in LATIN.findall(text)}
    return words - FIELD - own


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "en"])
def test_a_translation_has_the_varying_parts_of_its_sentence(language: str) -> None:
    pairs = read(FOLDER / f"{language}.txt")
    assert len(pairs) > 200
    assert len({sentence for sentence, _ in pairs}) == len(pairs)
    for sentence, translation in pairs:
        assert sorted(VARYING.findall(sentence)) == sorted(VARYING.findall(translation)), sentence


@pytest.mark.parametrize(
    "name", ["paper", "registers", "no_position", "map", "conv", "branch_norm", "relu2", "mlp_head"]
)
def test_the_walkthrough_has_no_english_left(name: str) -> None:
    page = vitlab.walkthrough(draw_image(), model=classifier(name), layer=1, language="zh").page
    assert '<html lang="zh-CN">' in page
    assert not english(page, {*name.split("_"), name.rstrip("2")})
    assert 'lang="en"' in vitlab.walkthrough(draw_image(), model=classifier("paper")).page


def report_of(labels: tuple[str, ...]) -> Report:
    """The report of another test, with labels of one's own and without its hostile names."""
    found = full_report()
    assert found.model is not None
    return replace(
        found,
        title="a run",
        evaluation=evaluate(outcome(len(labels)), labels),
        mistakes=tuple(replace(one, truth=labels[0], predicted=labels[1])
                       for one in found.mistakes),
        model=replace(found.model, details={"optimizer": "adamw"}),
        data=replace(found.data, name="mine", augmentation=()),
        broken={},
    )  # fmt: skip


def test_the_report_has_no_english_left() -> None:
    with speaking("zh"):
        page = render(report_of(("cat", "dog", "owl")))
    own = {"cat", "dog", "owl", "run", "mine", "today", "vit", "adamw"}
    assert not english(page, own | {"test", "vit_test"})
    assert "可靠性图" in page


@pytest.mark.slow
def test_reports_of_runs_have_no_english_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes on tables, and the report of learning without labels."""
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).save(f"{number}.png")
    rows = [f"{number}.png,{number}.5" for number in range(20)]
    Path("t.csv").write_text("\n".join(["path,value", *rows]))
    budget = {"model": "vit_test", "budget": 1, "budget_in": "steps"}
    with speaking("zh"):
        vitlab.train(data="t.csv", out="run", changes=budget)
        vitlab.pretrain(data="digits", out="mae", changes=budget | {"model.patch_size": 4})
    for run in ("run", "mae"):
        page = (tmp_path / run / "report.html").read_text()
        own = {"vit_test", "vit", "test", "csv", "value", "digits", "mae", "muon", "alternate"}
        assert not english(page, own | {"learned", "cls", "random"}), run


def test_names_of_the_user_are_not_translated() -> None:
    labels = ("train", "other", "images")  # words of the catalogue
    with speaking("zh"):
        page = render(report_of(labels))
        assert say("train") == "训练"
    texts = Texts(page).found
    for label in labels:
        assert label in texts
    assert "<b>train</b>" in page


def test_english_is_what_it_was() -> None:
    assert say("The image") == "The image"
    with speaking("zh"):
        assert say("  The image ") == "  图像 "
        assert say("no such sentence") == "no such sentence"
    assert say("The image") == "The image"
