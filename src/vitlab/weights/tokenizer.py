"""Tokenizers of CLIP and SigLIP, from the files that lie beside the weights.

`tokenizers` reads tokenizer.json, and builds that of CLIP from its vocabulary and merges, or from
OpenAI's list of merges; `sentencepiece` reads SigLIP's spiece.model.
"""

import gzip
import html
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.config import parse_json
from vitlab.errors import MissingExtra, VitlabError, WeightsError, one_line
from vitlab.models.text import TextConfig
from vitlab.weights.formats import text_huggingface
from vitlab.weights.reading import naming, one_of, read_json, section
from vitlab.weights.source import WeightSource

TOKENIZER, PIECES = "tokenizer.json", "spiece.model"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
OPENAI_MERGES = ("bpe_simple_vocab_16e6.txt.gz", "bpe_simple_vocab_16e6.txt")
STATED = ("special_tokens_map.json", "tokenizer_config.json")
FILES = (TOKENIZER, VOCABULARY, MERGES, PIECES, *STATED)
"""Files of a tokenizer, as repositories on the hub have them."""
OPENAI_COUNT = 49152 - 256 - 2
"""Merges that OpenAI's CLIP uses of the longer list."""
LARGEST = 256 << 20
"""Maximum bytes of a list of merges."""
START, END = "<|startoftext|>", "<|endoftext|>"
WORDS = (
    rf"{re.escape(START)}|{re.escape(END)}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|"
    r"[^\s\p{L}\p{N}]+"
)
"""Pieces of a text that CLIP's merges never cross: a run of letters, a digit, a run of others."""
CLEANED = ("lower", "whitespace", "canonicalize")
"""Ways in which OpenCLIP cleans texts."""
BLANK = "▁"
"""Character of sentencepiece for a space."""
PUNCTUATION = str.maketrans("", "", string.punctuation)

Encode = Callable[[str], list[int]]
Clean = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Texts to numbers of tokens, cut and padded to the length that the text tower takes."""

    path: Path
    encode: Encode
    """Tokens of a text with its ends, at most `context`."""
    clean: Clean
    context: int
    pad: int
    pad_left: bool = False

    def __call__(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Tokens [texts, context]."""
        found = np.full((len(texts), self.context), self.pad, dtype=np.int64)
        for row, text in zip(found, texts, strict=True):
            tokens = self.encode(self.clean(text))
            start = self.context - len(tokens) if self.pad_left else 0
            row[start : start + len(tokens)] = tokens
        return found


def open_tokenizer(source: WeightSource, config: TextConfig) -> Tokenizer:
    """Tokenizer of the files beside the weights."""
    folder = source.path.parent
    huggingface = text_huggingface.recognise(source.ignored)
    siglip = huggingface and config.pool == "last"
    if siglip and (folder / PIECES).is_file():
        return _pieces(folder / PIECES, config, _siglip)
    options = {} if huggingface else _open_clip_options(folder, config)
    clean: Clean = _unchanged if huggingface else _open_clip_clean(options["clean"])
    path, backend = _backend(folder)
    if backend is None:
        return _pieces(path, config, clean)
    if siglip:
        unigram = type(backend.model).__name__ == "Unigram"
        clean = _canonical if unigram else _unchanged
        _lower(backend)
    name = _pad_name(folder) or (END if config.causal else "</s>" if siglip else "<pad>")
    pad = backend.token_to_id(name)
    if options.get("pad") is not None:
        pad = options["pad"]
    backend.no_padding()
    backend.enable_truncation(config.context)
    found = Tokenizer(
        path=path,
        encode=lambda text: list(backend.encode(text).ids),
        clean=clean,
        context=config.context,
        pad=0 if pad is None else pad,
        pad_left=_stated(folder).get("padding_side") == "left",
    )
    return _checked(found, config)


def _backend(folder: Path) -> tuple[Path, Any]:
    """File of the tokenizer with its backend, which is None for sentencepiece."""
    names = (TOKENIZER, VOCABULARY, *OPENAI_MERGES, PIECES)
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise WeightsError(
            f"{folder}: no tokenizer beside the weights; valid: the publisher's {TOKENIZER}, "
            f"{VOCABULARY} with {MERGES}, {PIECES}, or OpenAI's {OPENAI_MERGES[0]}"
        )
    if path.name == PIECES:
        return path, None
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("text", f"the tokenizer {path}") from error
    with _parsing(path):
        if path.name == TOKENIZER:
            return path, tokenizers.Tokenizer.from_file(str(path))
        if path.name == VOCABULARY:
            return path, _clip(*_vocabulary(folder))
        return path, _clip(*_openai_vocabulary(path))


def _pieces(path: Path, config: TextConfig, clean: Clean) -> Tokenizer:
    """Tokenizer of sentencepiece, which ends a text with `</s>`."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise MissingExtra("text", f"the tokenizer {path}") from error
    with _parsing(path):
        pieces = SentencePieceProcessor(model_file=str(path))
        unknown = pieces.IdToPiece(pieces.unk_id())
        before, end = len(pieces.encode(unknown)), pieces.PieceToId("</s>")

    def encode(text: str) -> list[int]:
        # As in transformers: behind another piece, the blank before the first word is kept.
        tokens: list[int] = pieces.encode(f"{unknown}{text}")[before:]
        return [*tokens[: config.context - 1], end]

    pad = pieces.PieceToId(_pad_name(path.parent) or "</s>")
    return _checked(
        Tokenizer(path=path, encode=encode, clean=clean, context=config.context, pad=pad), config
    )


def _checked(found: Tokenizer, config: TextConfig) -> Tokenizer:
    """The tokenizer, if it fits the text tower."""
    with _parsing(found.path):
        tokens = found(["a"])[0]
    if config.pool == "eos" and config.eos not in tokens:
        raise WeightsError(
            f"{found.path}: a text does not end with token {config.eos}, which the text tower "
            f"reads; valid: the tokenizer of these weights"
        )
    if tokens.max() >= config.vocabulary:
        raise WeightsError(
            f"{found.path}: token {tokens.max()} for a text tower of {config.vocabulary} tokens; "
            f"valid: the tokenizer of these weights"
        )
    return found


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Convert any error of the libraries, which raise plain `Exception`, to one line."""
    try:
        with naming(path):
            yield
    except VitlabError:
        raise
    except Exception as error:
        raise WeightsError(f"{path}: not a readable tokenizer ({one_line(error)})") from error


# CLIP's byte-pair encoding.


def _clip(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """CLIP's tokenizer, as transformers builds it."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    for token in (START, END):
        if token not in vocabulary:
            raise WeightsError(f"no token {token!r}; valid: the vocabulary of a CLIP")
    model = BPE(
        vocab=vocabulary,
        merges=merges,
        continuing_subword_prefix="",
        end_of_word_suffix="</w>",
        fuse_unk=False,
        unk_token=END,
    )
    found = Tokenizer(model)
    found.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    ends = ((END, vocabulary[END]), (START, vocabulary[START]))
    found.post_processor = processors.RobertaProcessing(*ends, False, False)
    found.add_special_tokens([START, END])
    return found


def _vocabulary(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Numbers of the tokens and merges, from vocab.json and merges.txt."""
    path = folder / MERGES
    if not path.is_file():
        raise WeightsError(f"no {MERGES} beside it")
    lines = path.read_text(encoding="utf-8").splitlines()
    vocabulary = parse_json((folder / VOCABULARY).read_bytes())
    if not isinstance(vocabulary, dict):
        raise WeightsError(f"holds a {type(vocabulary).__name__}; valid: an object")
    return vocabulary, _merges(line for line in lines if not line.startswith("#version"))


def _openai_vocabulary(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Numbers of the tokens and merges, from OpenAI's list of merges."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        content = file.read(LARGEST)
    merges = _merges(content.decode("utf-8").split("\n")[1 : OPENAI_COUNT + 1])
    letters = _bytes()
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    tokens += ["".join(pair) for pair in merges]
    return {token: i for i, token in enumerate([*tokens, START, END])}, merges


def _merges(lines: Any) -> list[tuple[str, str]]:
    pairs = [tuple(line.split()) for line in lines if line.strip()]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise WeightsError(f"merge {' '.join(wrong)[:60]!r}; valid: two tokens a line")
    return [(first, second) for first, second in pairs]


def _bytes() -> list[str]:
    """A visible character for each byte, the printable ones first: the order of GPT-2."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = (chr(256 + i) for i in range(256 - len(printable)))
    return [*map(chr, printable), *others]


# What happens to a text before its tokens are looked up.


def _unchanged(text: str) -> str:
    return text


def _canonical(text: str) -> str:
    """Lower case without punctuation, as SigLIP was trained (big_vision, transformers)."""
    return re.sub(r"\s+", " ", text.lower().translate(PUNCTUATION)).strip()


def _siglip(text: str) -> str:
    """Canonical text behind the blank with which transformers begins it."""
    return _canonical(BLANK + text.replace(BLANK, " "))


def _lower(backend: Any) -> None:
    """Lower the case of all texts, as SigLIP 2 was trained."""
    from tokenizers import normalizers

    steps = [normalizers.Lowercase(), backend.normalizer]
    backend.normalizer = normalizers.Sequence([step for step in steps if step is not None])


def _open_clip_clean(kind: str) -> Clean:
    """OpenCLIP's cleaning, without the repair of wrongly decoded texts by `ftfy`."""

    def clean(text: str) -> str:
        text = html.unescape(html.unescape(text))
        if kind == "canonicalize":
            text = text.replace("_", " ").translate(PUNCTUATION)
        text = " ".join(text.split())
        return text if kind == "whitespace" else text.lower()

    return clean


def _open_clip_options(folder: Path, config: TextConfig) -> dict[str, Any]:
    """Cleaning and padding of OpenCLIP's config."""
    path = folder / "open_clip_config.json"
    if not path.is_file():
        return {"clean": "lower", "pad": 0} if config.causal else {"clean": "canonicalize"}
    with naming(path):
        text = section(section(read_json(path), "model_cfg"), "text_cfg")
        named = text.get("hf_tokenizer_name") is not None
        one_of("tokenizer_mode", text.get("tokenizer_mode"), (None,))
        given = section(text, "tokenizer_kwargs")
        for key, value in given.items():
            if key != "clean":
                one_of(f"tokenizer_kwargs: {key}", value, (None, False))
        clean = one_of("clean", given.get("clean", "whitespace" if named else "lower"), CLEANED)
    return {"clean": clean, "pad": None if named else 0}


def _pad_name(folder: Path) -> str | None:
    """Token for the rest of a text, as a config file beside the tokenizer states it."""
    for name in STATED:
        given = _stated(folder, name).get("pad_token")
        if isinstance(given, Mapping):
            given = given.get("content")
        if isinstance(given, str):
            return given
    return None


def _stated(folder: Path, name: str = STATED[-1]) -> Mapping[str, Any]:
    """Content of a config file of the tokenizer; empty without one."""
    path = folder / name
    return read_json(path) if path.is_file() else {}
