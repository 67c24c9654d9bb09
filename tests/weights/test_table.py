"""The table of published checkpoints: every line is complete, and consistent with its model."""

import re
from dataclasses import replace
from math import prod
from urllib.parse import urlsplit

import pytest

from reference.torchvision_ops import declare
from vitlab.errors import UnknownName
from vitlab.models.config import ViTConfig
from vitlab.models.variants import variant
from vitlab.weights.formats.native import our_shapes
from vitlab.weights.formats.timm_config import architectures
from vitlab.weights.hub import parse_address
from vitlab.weights.hub_models import HubModel, hub_models
from vitlab.weights.resolve import (
    PREPARATIONS,
    UNITS,
    Checkpoint,
    checkpoint,
    checkpoints,
    known_preparation,
    named,
)

CLASSES = {"imagenet-1k": 1000, "imagenet-21k": 21_843, None: 0}
FORMATS = {
    "storage.googleapis.com": "google",
    "dl.fbaipublicfiles.com": "timm",
    "download.pytorch.org": "torchvision",
}
HOSTS = {
    "Apache-2.0": {"storage.googleapis.com", "dl.fbaipublicfiles.com"},
    "BSD-3-Clause": {"download.pytorch.org"},
    "CC-BY-NC-4.0": {"download.pytorch.org"},
}
ENTRIES = list(checkpoints().values())
names = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


@names
def test_every_line_is_complete(entry: Checkpoint) -> None:
    assert re.fullmatch(r"vit_\w+\.[a-z0-9_]+", entry.name)
    assert isinstance(variant(entry.model), ViTConfig)
    assert entry.url.startswith("https://")
    assert entry.remote.host in HOSTS[entry.licence]
    assert entry.dataset in CLASSES
    assert entry.preparation in PREPARATIONS


@names
def test_the_table_and_the_names_of_files_say_the_same(entry: Checkpoint) -> None:
    format = FORMATS[entry.remote.host]
    assert known_preparation(entry.remote.name, format) == entry.preparation


@names
def test_a_checksum_is_what_the_name_of_the_file_carries(entry: Checkpoint) -> None:
    carried = re.search(r"-([0-9a-f]{8})\.pth$", entry.url)
    assert entry.sha256 == (carried[1] if carried else None)


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.size], ids=lambda entry: entry.name
)
def test_the_size_of_the_file_is_that_of_the_model(entry: Checkpoint) -> None:
    assert entry.size is not None
    config = replace(entry.config, classes=CLASSES[entry.dataset])
    if entry.name.endswith(".in21k"):
        config = replace(config, head="mlp", representation_size=config.width)
    expected = 4 * sum(prod(shape) for shape in our_shapes(config).values())
    number, unit = entry.size.split()
    rounding = 0.5 * 10.0 ** -len(number.partition(".")[2]) * UNITS[unit]
    # Names and headers of some hundred tensors take less than a thousandth.
    assert -rounding <= float(number) * UNITS[unit] - expected <= rounding + expected / 1000


def test_no_file_has_two_names() -> None:
    assert len({entry.url for entry in ENTRIES}) == len(ENTRIES)


def test_sizes_in_names_are_those_of_the_files() -> None:
    for entry in ENTRIES:
        told = re.search(r"[_-](?:res_)?(224|384)(?=[_.-])", urlsplit(entry.url).path)
        if told:
            assert entry.config.image_size == int(told[1]), entry.name


def test_a_rounded_size_is_checked_as_far_as_it_goes() -> None:
    entry = checkpoint("vit_b16.torchvision")
    assert entry.size == "330.285 MiB"
    assert entry.has_size(346_328_529)
    assert not entry.has_size(346_328_529 + 2000)
    assert checkpoint("vit_s14.dinov2").has_size(7)


def test_names_come_before_files() -> None:
    found = named("vit_b16.augreg")
    assert found is not None
    assert found.model == "vit_b16"
    assert named("folder/vit_b16.augreg") is None
    assert named("vit_b16.npz") is None
    assert named("another.thing") is None


@pytest.mark.parametrize("name", ["vit_b16.augrg", "vit_b16_384.agureg"])
def test_a_misspelt_name_is_told(name: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown weights 'vit_b16.*; did you mean .*augreg"):
        named(name)


HUB = list(hub_models().values())


@pytest.mark.parametrize("entry", HUB, ids=lambda entry: entry.name)
def test_a_model_on_the_hub_loads_by_its_config(entry: HubModel) -> None:
    """Its address is one, and its architecture is among those of timm that load."""
    assert str(parse_address(entry.name)) == entry.name
    assert entry.gated in ("yes", "no", None)
    assert entry.dataset in CLASSES
    owner, name = entry.repository.split("/")
    if owner == "timm":
        assert name.partition(".")[0] in architectures()


def test_models_of_timm_on_the_hub_are_as_timm_states_them() -> None:
    declare()
    timm = pytest.importorskip("timm")
    known = set(timm.list_pretrained())
    for entry in HUB:
        owner, name = entry.repository.split("/")
        if owner == "timm" and name in known:  # an older release does not know all
            stated = timm.get_pretrained_cfg(name)
            assert stated.hf_hub_id == entry.repository
            assert (stated.license, stated.input_size[1]) == (entry.licence, entry.image_size)
            assert (stated.num_classes == 1000) == (entry.dataset == "imagenet-1k")
