"""The classes of ImageNet-1k: complete, in order, and each with a name of its own."""

import re
from pathlib import Path

from vitlab.weights.labels import imagenet_labels, wordnet_ids


def test_a_thousand_classes_in_the_order_of_their_ids() -> None:
    ids = wordnet_ids()
    assert len(ids) == 1000
    assert list(ids) == sorted(set(ids))
    assert all(re.fullmatch(r"n\d{8}", wordnet) for wordnet in ids)


def test_every_class_has_a_name_of_its_own() -> None:
    names = imagenet_labels()
    assert len({name.lower() for name in names}) == 1000
    assert all(name and name == name.strip() for name in names)


def test_some_names() -> None:
    names = dict(zip(wordnet_ids(), imagenet_labels(), strict=True))
    assert imagenet_labels()[0] == "tench"
    assert imagenet_labels()[285] == names["n02124075"] == "Egyptian cat"
    assert names["n02012849"] == "crane (bird)"
    assert names["n03126707"] == "crane (machine)"
    assert names["n03710637"] != names["n03710721"]
    assert imagenet_labels()[999] == "toilet tissue"


def test_names_are_wordnets(shared: Path) -> None:
    lines = (shared / "data" / "imagenet1k_wnids.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == list(wordnet_ids())
    for line, name in zip(lines, imagenet_labels(), strict=True):
        lemmas = line.split(" ", 1)[1].split(", ")
        assert re.sub(r" \(\w+\)$", "", name) in lemmas
