"""The page of a walkthrough: its numbers are the model's, its steps are those that there are."""

import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from models.vit_cases import CASES
from reference.random_weights import randomise
from reference.vit import reference_vit
from vitlab import Preprocessing, VisionTransformer
from vitlab.classify.classifier import Classifier
from vitlab.errors import DataError, FileError, InputError, UnknownName, Unsupported, VitlabError
from vitlab.jobs.walkthrough import DEFAULT_MODEL, walkthrough
from vitlab.models.config import pair
from vitlab.report.language import say, speaking
from vitlab.report.numbers import number
from vitlab.report.walkthrough.parts import MOST, coloured, maths, photograph, tensor, worked
from vitlab.weights.source import WeightSource


def classifier(name: str, **changes: Any) -> Classifier:
    """A tiny model of a kind that reads RGB."""
    model = VisionTransformer(replace(CASES[name], channels=3, **changes)).double().eval()
    randomise(model)
    size = pair(model.config.image_size)
    preparation = Preprocessing(size=size, mean=(0.4,) * 3, std=(0.3,) * 3, keep_aspect=False)
    source = WeightSource(format="vitlab", path=Path(f"{name}.pt"), preprocessing=preparation)
    return Classifier(model.float(), source)


def draw_image() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (37, 41, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


class Reader(HTMLParser):
    """What a page holds: headings of steps, cells of tables by row, addresses, unclosed tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.titles: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "h3":
            self.titles.append("")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "h3" in self.open:
            self.titles[-1] += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data


def value(text: str) -> float:
    return -np.inf if text == "−∞" else float(text.replace("−", "-"))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("registers", 3), ("gap", 0), ("relative_bias", 1)],
)
def test_the_numbers_in_the_tables_are_the_models(name: str, prefix: int) -> None:
    looked_at = classifier(name)
    found = walkthrough(draw_image(), model=looked_at, layer=1, head=2, token=(1, 4))
    scores, softmax, sums, answer, layers = Reader(found.page).tables
    query = prefix + 7 + 4
    model = looked_at.model.double()
    image = torch.from_numpy(looked_at.preprocessing.apply(draw_image())).double()
    reference = reference_vit(model.state_dict(), asdict(model.config))(image[None])
    weights = reference.attention[1][0, 2, query]
    own = model.encoder.blocks[1].attention
    read = model.encoder.blocks[1].norm1(torch.from_numpy(reference.layers[0]))
    values = own.project(read, (5, 7))[2][0, 2].detach().numpy()
    shown = [row[0] for row in softmax[1:-1]]
    assert f"patch {1},{4}" in shown
    for row, cells in zip(softmax[1:-1], sums[1:-1], strict=True):
        token = {"class token": 0, "register 1": 1, "register 2": 2}.get(row[0])
        if token is None:
            place = re.fullmatch(r"patch (\d+),(\d+)", row[0])
            assert place is not None
            token = prefix + 7 * int(place[1]) + int(place[2])
        # Four digits of what float32 gives.
        assert abs(value(row[3]) - weights[token]) < 6e-5 + 1e-5
        assert value(cells[1]) == value(row[3])
        np.testing.assert_allclose([value(cell) for cell in cells[2:]], values[token], atol=2e-4)
    np.testing.assert_allclose([value(cell) for cell in sums[-1][2:]], weights @ values, atol=2e-4)
    # A row of the first table leads to the score that the second begins with.
    for first, second in zip(scores[1:], softmax[1:-1], strict=True):
        assert (first[0], first[-1]) == (second[0], second[1])
    probabilities = looked_at.activate(torch.from_numpy(reference.logits))[0]
    for label, logit, shown_as in answer[1:]:
        index = looked_at.labels.index(label)
        assert abs(value(logit) - reference.logits[0, index]) < 2e-4
        assert abs(value(shown_as.rstrip("%")) - 100 * float(probabilities[index])) < 0.011
    assert [row[0] for row in layers[1:]] == ["block 0", "block 1"]
    assert layers[-1][1] == answer[1][0] == looked_at.labels[int(probabilities.argmax())]
    finite = [value(row[1]) for row in softmax[1:-1]]
    powers = [value(row[2]) for row in softmax[1:-1]]
    np.testing.assert_allclose(powers, np.exp(np.array(finite) - max(finite)), atol=2e-4)


def test_sums_that_are_written_out_are_right() -> None:
    looked_at = classifier("paper")
    found = walkthrough(draw_image(), model=looked_at)
    walk, head = found.walk, found.walk.head
    totals = re.findall(r'class="worked">.*?<b>(.*?)</b>', found.page)
    best = int(head.scores[walk.query].argmax())
    flat = walk.embedded.flat
    assert flat is not None
    projection, output = walk.embedded.projection, walk.projection
    assert projection is not None
    assert totals == [
        number(float(projection(flat)[walk.query - 1, 0])),
        number(float(head.q[walk.query, 0])),
        number(float(head.products[walk.query, best])),
        number(float(output(walk.joined)[walk.query, 0])),
        number(float(walk.mlp.wide[walk.query, 0])),
        number(float(walk.mlp.output[walk.query, 0])),
        number(float(walk.readout.own[0])),
    ]


STEPS = (
    "The image becomes patches",
    "The image becomes a map",
    "Patches become tokens",
    "Learned tokens are put before them",
    "Positions",
    "Positions are added",
    "Into block 0",
    "Query, key and value of one token",
    "Queries and keys are normalised",
    "Scores: the query meets every key",
    "Softmax: scores become weights",
    "The weighted sum of values",
    "All queries, keys and values",
    "All scores and weights",
    "All weighted sums",
    "Heads side by side",
    "The projection",
    "Added to the token",
    "The MLP: a second LayerNorm and a wider vector",
    "The activation",
    "Back to the width of a token, and added",
    "One vector for the image",
    "The head: one number for each class",
    "Probabilities",
    "How the answer forms",
)
USUAL = {"The image becomes a map", "Positions", "Queries and keys are normalised"}


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("paper", set(), "the class token alone is read"),
        ("gap", {"Learned tokens are put before them"}, "the mean of all patch tokens is read"),
        ("registers", set(), "Registers (2 here) hold intermediate results."),
        ("qk_norm", {"Queries and keys are normalised"}, "This model (qk_norm)"),
        ("no_position", {"Positions", "Positions are added"}, "a bag of patches"),
        (
            "relative_bias",
            {"Positions", "Positions are added"},
            "for each distance, in rows and columns",
        ),
        ("layer_scale", set(), "LayerScale multiplies each channel"),
        ("branch_norm", set(), "A LayerNorm of the result comes first"),
        (
            "no_norm_bias",
            {"Queries and keys are normalised"},
            "standard deviation, then scaled by learned numbers",
        ),
        ("sincos2d", set(), "sines and cosines of column and row"),
        ("map", set(), "one more attention, with a learned query"),
        (
            "conv",
            {
                *("The image becomes patches", "The image becomes a map"),
                "Patches become tokens",
            },
            "a few convolutions",
        ),
        (
            "hybrid_root",
            {
                *("The image becomes patches", "The image becomes a map"),
                "Patches become tokens",
            },
            "a ResNet",
        ),
    ],
)
def test_the_steps_are_those_that_the_model_has(name: str, other: set[str], words: str) -> None:
    found = walkthrough(draw_image(), model=classifier(name))
    titles = [title.split(". ", 1)[1] for title in Reader(found.page).titles]
    assert titles == [step for step in STEPS if (step in USUAL) == (step in other)]
    assert words in found.page
    assert found.walk.difference < 1e-5
    assert f"{found.walk.difference:.1e} of the largest number" in found.page


def test_the_page_needs_nothing_but_itself() -> None:
    found = walkthrough(draw_image(), model=classifier("paper"))
    reader = Reader(found.page)
    assert not reader.open[1:]
    outside = [
        a for a in reader.addresses if not a.startswith(("data:image/png;base64,", "#step-"))
    ]
    assert outside == []
    assert "<script" not in found.page
    assert "url(" not in found.page
    places = {address[1:] for address in reader.addresses if address.startswith("#")}
    assert places == set(re.findall(r'id="(step-\d+)"', found.page))
    assert found.page == walkthrough(draw_image(), model=classifier("paper")).page


def test_an_image_of_the_sample_and_the_default_model(tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    found = vitlab.walkthrough("sample/test/17", output)
    text = output.read_text(encoding="utf-8")
    assert text == found.page
    name = vitlab.load(DEFAULT_MODEL).source.path.name
    assert f"Image: sample/test/17. Model: {name}." in text
    assert not found.fresh
    assert len(text) < 1_000_000


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_default_model_has_the_steps_of_the_paper(language: str) -> None:
    page = vitlab.walkthrough("sample/test/17", language=language).page
    with speaking(language):
        steps = [say(step) for step in STEPS if step not in USUAL]
    assert [title.split(". ", 1)[1] for title in Reader(page).titles] == steps


def test_random_weights_are_told() -> None:
    found = vitlab.walkthrough("sample/test/17", model="vit_test")
    assert found.fresh
    assert "The weights of this model are random: it has not been trained." in found.page
    assert "random" not in walkthrough(draw_image(), model=classifier("paper")).page


def test_earlier_blocks_are_told() -> None:
    page = walkthrough(draw_image(), model=classifier("paper"), layer=1).page
    assert "Blocks before this one: 1. They have changed the tokens" in page
    assert "Into block 1" in page
    pooled = walkthrough(draw_image(), model=classifier("pooled"), layer=1).page
    assert "There are 3 × 5 patches, each the mean of 2 × 2 of those above." in pooled


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"output": "page.pdf"}, FileError, "the page is HTML; valid: a name that ends in .html"),
        ({"output": "no/where/page.html"}, FileError, "there is no folder"),
        ({"image": "nothing.png"}, InputError, "nothing.png: no such file"),
        ({"image": "sample/test/100000"}, InputError, "no such file"),
        ({"model": "vit_tset"}, UnknownName, "unknown model or file 'vit_tset'"),
        (
            {"model": "cnn_tutorial"},
            Unsupported,
            "has no heads to follow; valid: a Vision Transformer",
        ),
        ({"model": "vit_test", "head": 2}, InputError, "head 2 does not exist; valid: -2 to 1"),
        ({"model": "vit_test", "layer": -3}, InputError, "layer -3 does not exist"),
        ({"model": "vit_test", "token": (4, 0)}, InputError, "token 4,0 is not in the grid"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    arguments: dict[str, Any],
    error: type[VitlabError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"image": "sample/test/1", "output": "page.html"} | arguments
    with pytest.raises(error, match=re.escape(message)):
        walkthrough(given.pop("image"), given.pop("output"), **given)
    assert list(tmp_path.iterdir()) == []
    assert issubclass(DataError, VitlabError)


def test_cells_are_coloured_by_sign_and_size() -> None:
    cells = coloured(np.array([[2.0, -1.0, 0.0], [np.inf, -2.0, 0.5]]))
    assert cells[0, 0].tolist() == [213, 94, 0, 255]
    assert cells[1, 1].tolist() == [0, 114, 178, 255]
    assert cells[0, 1].tolist()[3] == round(255 * np.sqrt(0.5))
    assert cells[0, 2, 3] == 0
    assert cells[1, 0].tolist() == [128, 128, 128, 90]
    assert not coloured(np.zeros((2, 3)))[..., 3].any()


def test_of_a_large_tensor_some_rows_are_shown_and_that_is_said() -> None:
    html = tensor("S", np.ones((MOST + 1, MOST + 1)))
    assert f"[{MOST + 1}, {MOST + 1}], every second row and every second column<" in html
    assert "every" not in tensor("S", np.ones((MOST, 3)))
    assert ", every third column<" in tensor("S", np.ones((5, 3 * MOST)))


def test_photographs_may_have_any_shape() -> None:
    pixels = np.zeros((5, 700, 3), dtype=np.uint8)
    assert "data:image/png" in photograph(pixels, "a", grid=(1, 7), patch=6)


@pytest.mark.parametrize(
    ("given", "shown"),
    [(1.23456, "1.2346"), (-0.5, "−0.5000"), (0.0, "0.0000"), (3e-7, "3.0e−07"), (-np.inf, "−∞")],
)
def test_numbers_have_four_digits(given: float, shown: str) -> None:
    assert number(given) == shown


def test_formulas() -> None:
    assert maths("α_{ij} = K^T < 1") == "α<sub>ij</sub> = K<sup>T</sup> &lt; 1"
    text = worked("x_i[0]", [1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.5], -1.0)
    assert "… 1 more … + −1.0000 (bias) = <b>21.0000</b>" in text
