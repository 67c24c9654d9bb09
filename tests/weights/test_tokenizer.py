"""Tokenizers beside the weights agree with those of transformers and OpenCLIP."""

import builtins
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.torchvision_ops import declare
from vitlab.errors import MissingExtra, WeightsError
from vitlab.models.text import TextConfig
from vitlab.weights.source import WeightSource
from vitlab.weights.tokenizer import Tokenizer, open_tokenizer
from weights.text_files import clip_vocabulary, gemma_tokenizer, siglip_pieces, texts

declare()
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

CLIP = TextConfig(
    width=8, depth=1, heads=1, mlp_width=8, vocabulary=1 << 17, context=23, embedding=8
)
SIGLIP = replace(CLIP, causal=False, pool="last", context=19, task="multi-label")
HUGGINGFACE = "text_model.embeddings.token_embedding.weight"


def opened(folder: Path, config: TextConfig, name: str = HUGGINGFACE) -> Tokenizer:
    path = folder / "model.safetensors"
    return open_tokenizer(WeightSource(format="any", path=path, ignored=(name,)), config)


def same_tokens(found: Tokenizer, theirs: Any) -> None:
    """Equal tokens of 1,000 texts, cut and padded by the tokenizer of transformers."""
    given = texts()
    expected = theirs(given, padding="max_length", max_length=found.context, truncation=True)
    wrong = [
        (text, list(mine), yours)
        for text, mine, yours in zip(given, found(given), expected["input_ids"], strict=True)
        if list(mine) != yours
    ]
    assert not wrong, wrong[0]
    assert len({tuple(row) for row in expected["input_ids"]}) > 900


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    clip_vocabulary(folder)
    return folder


def test_clip_from_vocabulary_and_merges(clip_folder: Path) -> None:
    theirs = transformers.CLIPTokenizer.from_pretrained(clip_folder)
    same_tokens(opened(clip_folder, CLIP), theirs)


def test_clip_from_tokenizer_json(clip_folder: Path, tmp_path: Path) -> None:
    theirs = transformers.CLIPTokenizer.from_pretrained(clip_folder, pad_token="!")
    theirs.save_pretrained(tmp_path)
    assert not (tmp_path / "vocab.json").exists()
    same_tokens(opened(tmp_path, CLIP), theirs)


@pytest.mark.parametrize("legacy", [True, False])
def test_siglip_from_pieces(legacy: bool, tmp_path: Path) -> None:
    siglip_pieces(tmp_path)
    theirs = transformers.SiglipTokenizer(str(tmp_path / "spiece.model"), legacy=legacy)
    found = opened(tmp_path, SIGLIP)
    assert found.path.name == "spiece.model"
    same_tokens(found, theirs)
    theirs.save_pretrained(tmp_path)
    same_tokens(opened(tmp_path, SIGLIP), transformers.SiglipTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("side", ["right", "left"])
def test_siglip2_from_tokenizer_json(side: str, tmp_path: Path) -> None:
    theirs = transformers.Siglip2Tokenizer(**gemma_tokenizer(), padding_side=side)
    theirs.save_pretrained(tmp_path)
    found = opened(tmp_path, SIGLIP)
    same_tokens(found, theirs)
    upper, lower = found(["A Cat", "a cat"])
    assert (upper == lower).all()


# OpenCLIP

OPEN_CLIP = "text.token_embedding.weight"


def openai_folder(folder: Path) -> Path:
    open_clip = pytest.importorskip("open_clip")
    source = Path(open_clip.tokenizer.default_bpe())
    (folder / source.name).symlink_to(source)
    return folder


def test_openais_merges(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    found = opened(openai_folder(tmp_path), replace(CLIP, context=77), OPEN_CLIP)
    plain = [text for text in texts() if "ﬁ" not in text]  # ftfy, which OpenCLIP uses, splits it
    assert len(plain) > 500
    expected = open_clip.SimpleTokenizer()(plain).numpy()
    np.testing.assert_array_equal(found(plain), expected)


def test_openais_merges_unpacked(tmp_path: Path) -> None:
    packed = openai_folder(tmp_path) / "bpe_simple_vocab_16e6.txt.gz"
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "bpe_simple_vocab_16e6.txt").write_bytes(gzip.decompress(packed.read_bytes()))
    found, other = (opened(folder, CLIP, OPEN_CLIP) for folder in (tmp_path, alone))
    np.testing.assert_array_equal(found(texts(20)), other(texts(20)))
    assert found(["A &amp; B"]).tolist() == found(["a & b"]).tolist()


def test_open_clips_options(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    theirs = transformers.Siglip2Tokenizer(**gemma_tokenizer(), padding_side="right")
    theirs.save_pretrained(tmp_path)
    options = {"hf_tokenizer_name": "any", "tokenizer_kwargs": {"clean": "canonicalize"}}
    path = tmp_path / "open_clip_config.json"
    path.write_text(json.dumps({"model_cfg": {"text_cfg": options}}))
    found = opened(tmp_path, SIGLIP, OPEN_CLIP)
    other = open_clip.tokenizer.HFTokenizer(str(tmp_path), context_length=19, clean="canonicalize")
    plain = [text for text in texts() if "ﬁ" not in text]
    np.testing.assert_array_equal(found(plain), other(plain).numpy())
    path.write_text(json.dumps({"model_cfg": {"text_cfg": {"tokenizer_mode": "clips"}}}))
    with pytest.raises(WeightsError, match="tokenizer_mode 'clips' is not supported"):
        opened(tmp_path, SIGLIP, OPEN_CLIP)


# Mistakes


def test_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no tokenizer beside the weights; valid: .*spiece"):
        opened(tmp_path, CLIP)


def test_tokenizer_of_another_model(clip_folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"token \d+ for a text tower of 50 tokens"):
        opened(clip_folder, replace(CLIP, vocabulary=50))
    with pytest.raises(WeightsError, match="a text does not end with token 5, which"):
        opened(clip_folder, replace(CLIP, pool="eos", eos=5))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"\xff\xfe"),
        ("vocab.json", b"[1]"),
        ("vocab.json", b'{"a": "b"}'),
        ("bpe_simple_vocab_16e6.txt.gz", b"no gzip"),
        ("spiece.model", b"no pieces"),
    ],
)
def test_damaged_files(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b")
    with pytest.raises(WeightsError, match=name) as caught:
        opened(tmp_path, SIGLIP if name == "spiece.model" else CLIP)
    assert "\n" not in str(caught.value)


def test_damaged_merges(clip_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes((clip_folder / "vocab.json").read_bytes())
    with pytest.raises(WeightsError, match=r"no merges\.txt beside it"):
        opened(tmp_path, CLIP)
    (tmp_path / "merges.txt").write_text("a b c")
    with pytest.raises(WeightsError, match="merge 'a b c'; valid: two tokens a line"):
        opened(tmp_path, CLIP)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_a_missing_extra_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def importing(module: str, *args: Any, **options: Any) -> Any:
        if module in ("tokenizers", "sentencepiece"):
            raise ImportError(module)
        return real(module, *args, **options)

    (tmp_path / name).write_bytes(b"{}")
    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(MissingExtra, match=r"needs an extra: pip install 'vitlab\[text\]'"):
        opened(tmp_path, SIGLIP)
