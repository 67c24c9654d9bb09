"""Texts and small vocabularies for tests of tokenizers, made on the spot."""

import json
import random
from pathlib import Path
from typing import Any

WORDS = [
    *("a", "photo", "of", "the", "cat", "dog", "Cats'", "red", "CAR", "isn't", "it", "we'll"),
    *("3", "42", "2024", "Ünïcode", "naïve", "ΑΣ", "straße"),
]
OTHERS = [
    "一只猫",
    "狗和猫",
    "红色的汽车",
    "こんにちは",
    "😀",
    "🐱🐶",
    "👩‍👩‍👧",
    "🇨🇳",
    "٣٤",
    "ﬁ",
    "…",
    "—",
    "I'm",
]
MARKS = [" ", "  ", "\n", "\t", ", ", ". ", "!? ", "-", "_", "(", ")", "'", '"', "/", " & ", "#"]


def texts(count: int = 1000) -> list[str]:
    """Texts of words, marks, Chinese and emoji, the same ones each time."""
    draw = random.Random(0)
    found = [
        "",
        " ",
        "a",
        "cat",
        " cat ",
        "猫",
        "😀",
        "a photo of a cat.",
        "CAT",
        "!",
        "'s",
        "a photo of a cat " * 40,
    ]
    while len(found) < count:
        parts = draw.choices(WORDS + OTHERS, k=draw.randint(1, 12))
        found.append("".join(part + draw.choice(MARKS) for part in parts))
    return found


def clip_vocabulary(folder: Path) -> int:
    """Write vocab.json and merges.txt of a small CLIP; returns the number of tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts(300), trainer)
    state = json.loads(tokenizer.to_str())["model"]
    vocabulary: dict[str, int] = state["vocab"]
    for token in pre_tokenizers.ByteLevel.alphabet():
        vocabulary.setdefault(f"{token}</w>", len(vocabulary))
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[token] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in state["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    return len(vocabulary)


def siglip_pieces(folder: Path) -> int:
    """Write spiece.model of a small SigLIP, whose ends have the numbers of T5's."""
    import sentencepiece

    (folder / "corpus.txt").write_text("\n".join(" ".join(t.split()) for t in texts(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"),
        model_prefix=str(folder / "spiece"),
        vocab_size=200,
        character_coverage=1.0,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    return int(pieces.get_piece_size())


def gemma_tokenizer() -> dict[str, Any]:
    """Vocabulary and merges of a small Gemma, with bytes for what they lack."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    special += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([t.lower() for t in texts(100)], trainer)
    state = json.loads(tokenizer.to_str())["model"]
    merges = [
        tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in state["merges"]
    ]
    return {"vocab": state["vocab"], "merges": merges}
