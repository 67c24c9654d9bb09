"""`summary`: a model layer by layer, with output shapes, parameters and FLOPs."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vitlab.config import to_dict
from vitlab.errors import InputError
from vitlab.models.cost import FlopCounter, count_tokens, dry_run, image_shape, without_memory
from vitlab.models.variants import ModelConfig
from vitlab.nn.encoder import Encoder

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A module, or a parameter held directly by a module with children."""

    path: str
    """Dotted name; empty for the model."""
    type: str
    output_shape: Shape | None
    """None where the module was never called as a whole."""
    parameters: int
    """Parameters of this row and of the rows hidden below it: the column sums to the total."""
    flops: int
    """FLOPs of the whole batch, summing to the total in the same way."""

    @property
    def depth(self) -> int:
        """Depth below the model."""
        return self.path.count(".") + 1 if self.path else 0

    @property
    def name(self) -> str:
        """Name within the parent."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Result of `summary`; `str` of it is the table."""

    rows: tuple[Row, ...]
    input_size: Shape
    parameters: int
    trainable: int
    flops: int
    """FLOPs of the whole batch."""
    encoder_flops: int | None
    """FLOPs of the encoder's blocks; None for a model without an encoder."""
    tokens: int | None
    """Length of the sequence that enters the encoder; None for a model that has none."""
    last_tokens: int | None
    """Length of the sequence that leaves the encoder."""
    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    """Outputs of the layers with parameters, twice for their gradients, as torchinfo counts."""
    torchinfo_macs: int
    """Multiply-adds of the whole batch as torchinfo counts them: not the cost."""

    @property
    def macs(self) -> int:
        """Multiply-adds for the whole batch."""
        return self.flops // 2

    @property
    def flops_per_image(self) -> int:
        """FLOPs of the batch, divided by its size."""
        return self.flops // self.input_size[0]

    @property
    def macs_per_image(self) -> int:
        """Multiply-adds of the batch, divided by its size."""
        return self.flops_per_image // 2

    @property
    def encoder_share(self) -> float | None:
        """Share of the FLOPs that the blocks of the encoder compute."""
        if self.encoder_flops is None or not self.flops:
            return None
        return self.encoder_flops / self.flops

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""
        derived = ("macs", "flops_per_image", "macs_per_image", "encoder_share")
        return {**to_dict(self), **{name: getattr(self, name) for name in derived}}

    def __str__(self) -> str:
        return _table(self)


def summary(
    model: str | ModelConfig | nn.Module, input_size: Sequence[int] | None = None, depth: int = 3
) -> Summary:
    """Layers of a model, or of a variant's name or config, down to `depth` below it.

    `input_size` is (batch, channels, height, width); None: one image of the config's size.
    """
    model, owned = without_memory(model)
    size = (1, *image_shape(model)) if input_size is None else tuple(input_size)
    if len(size) != 4 or min(size) < 1:
        raise InputError(f"input_size {size} is not (batch, channels, height, width), each >= 1")
    if depth < 0:
        raise InputError(f"depth {depth} is negative; valid: 0 for the model alone, and more")
    recording = dry_run(model, size, _record, owned=owned)
    parameters = list(model.parameters())
    return Summary(
        rows=_rows(model, recording, depth),
        input_size=size,
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        flops=sum(recording.flops.values()),
        encoder_flops=_within_encoder(model, recording),
        tokens=count_tokens(model, size[2:]),
        last_tokens=count_tokens(model, size[2:], layer=-1),
        input_bytes=recording.input_bytes,
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        output_bytes=2 * sum(recording.output_bytes.values()),
        torchinfo_macs=_torchinfo_macs(model, recording, batch=size[0]),
    )


@dataclass(frozen=True, slots=True)
class _Recording:
    """One forward pass: each module's output, and its FLOPs outside of its children."""

    input_bytes: int
    shapes: dict[str, Shape | None] = field(default_factory=dict)
    flops: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    output_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Of modules without children and with parameters."""


def _record(model: nn.Module, images: Tensor) -> _Recording:
    recording = _Recording(images.numel() * images.element_size())
    inside = [""]

    def count(flops: int) -> None:
        recording.flops[inside[-1]] += flops

    def watch(module: nn.Module, path: str) -> None:
        def enter(module: nn.Module, args: Any) -> None:
            inside.append(path)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            inside.pop()
            recording.shapes[path] = _shape(output)
            if _is_leaf(module) and isinstance(output, Tensor):
                recording.output_bytes[path] += output.numel() * output.element_size()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)

    for path, module in model.named_modules():
        watch(module, path)
    with FlopCounter(count):
        model(images)
    return recording


def _is_leaf(module: nn.Module) -> bool:
    """True for a module that has parameters and no children."""
    return not any(True for _ in module.children()) and any(True for _ in module.parameters())


def _torchinfo_macs(model: nn.Module, recording: _Recording, *, batch: int) -> int:
    """Weights and biases of each layer once per image, of convolutions once per position."""
    found = 0
    for path, module in model.named_modules():
        shape = recording.shapes.get(path)
        if not _is_leaf(module) or shape is None:
            continue
        uses = batch * math.prod(shape[2:]) if "Conv" in type(module).__name__ else batch
        weights = (p for n, p in module.named_parameters() if n in ("weight", "bias"))
        found += uses * sum(parameter.numel() for parameter in weights)
    return found


def _within_encoder(model: nn.Module, recording: _Recording) -> int | None:
    stacks = tuple(
        f"{path}." for path, module in model.named_modules() if isinstance(module, Encoder)
    )
    if not stacks:
        return None
    return sum(flops for path, flops in recording.flops.items() if path.startswith(stacks))


def _shape(output: Any) -> Shape | None:
    """Shape of a tensor, or of the first one in a tuple, list or dictionary."""
    if isinstance(output, Tensor):
        return tuple(output.shape)
    parts = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, Mapping | list | tuple):
        return next((shape for shape in map(_shape, parts) if shape is not None), None)
    return None


def _rows(model: nn.Module, recording: _Recording, depth: int) -> tuple[Row, ...]:
    """Rows in the order of the tree; modules below `depth` are added to their ancestor there."""
    types: dict[str, str] = {}
    parameters: defaultdict[str, int] = defaultdict(int)
    flops: defaultdict[str, int] = defaultdict(int)
    shapes = dict(recording.shapes)
    counted: set[int] = set()
    for path, module in model.named_modules():
        row = _ancestor(path, depth)
        if row == path and (not path or not isinstance(module, nn.Identity)):
            types[path] = type(module).__name__
        flops[row] += recording.flops[path]
        for name, parameter in module.named_parameters(recurse=False):
            own = _ancestor(f"{path}.{name}".lstrip("."), depth)
            if own != row and next(module.children(), None) is not None:
                types[own], shapes[own] = "Parameter", tuple(parameter.shape)
            else:
                own = row
            parameters[own] += 0 if id(parameter) in counted else parameter.numel()
            counted.add(id(parameter))
    return tuple(
        Row(
            path=path,
            type=kind,
            output_shape=shapes.get(path),
            parameters=parameters[path],
            flops=flops[path],
        )
        for path, kind in types.items()
    )


def _ancestor(path: str, depth: int) -> str:
    return ".".join(path.split(".")[:depth])


def _table(found: Summary) -> str:
    names = _tree(found.rows)
    lines = [
        (name, _brackets(row.output_shape), _count(row.parameters), _short(row.flops))
        for name, row in zip(names, found.rows, strict=True)
    ]
    head = ("Layer (type)", "Output shape", "Parameters", "FLOPs")
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(4)]
    double, single = "═" * (sum(widths) + 6), "─" * (sum(widths) + 6)
    body = [_aligned(line, widths) for line in lines]
    return "\n".join(
        (double, _aligned(head, widths), double, *body, single, *_totals(found), double)
    )


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    texts = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
    numbers = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
    return "  ".join((*texts, *numbers))


def _tree(rows: tuple[Row, ...]) -> list[str]:
    """`name (type)` of each row behind the branches that lead to it."""
    names: list[str] = []
    open_at: set[int] = set()
    for row in reversed(rows):
        open_at = {depth for depth in open_at if depth <= row.depth}
        bars = "".join("│  " if depth in open_at else "   " for depth in range(1, row.depth))
        branch = ("├─ " if row.depth in open_at else "└─ ") if row.depth else ""
        names.append(bars + branch + (f"{row.name} ({row.type})" if row.path else row.type))
        open_at.add(row.depth)
    return names[::-1]


def _totals(found: Summary) -> Iterator[str]:
    size = f"{found.parameter_bytes / 1e6:,.2f} MB"
    yield f"Parameters: {found.parameters:,} (trainable {found.trainable:,}), {size}"
    if found.tokens is not None:
        pooled = found.last_tokens is not None and found.last_tokens != found.tokens
        yield f"Tokens: {found.tokens:,}" + (f", then {found.last_tokens:,}" if pooled else "")
    batch = found.input_size[0]
    yield _costs("one image", found.flops_per_image, found.macs_per_image)
    if batch > 1:
        yield _costs(f"batch of {batch}", found.flops, found.macs)
    if found.encoder_share is not None:
        yield f"Encoder: {found.encoder_share:.1%} of the FLOPs"
    yield f"Input: {_brackets(found.input_size)}, {found.input_bytes / 1e6:,.2f} MB"


def _costs(what: str, flops: int, macs: int) -> str:
    return f"FLOPs, {what}: {flops:,} ({_short(flops)}); MACs: {macs:,} ({_short(macs)})"


def _brackets(shape: Shape | None) -> str:
    return "–" if shape is None else str(list(shape))


def _count(number: int) -> str:
    return f"{number:,}" if number else "–"


def _short(number: int) -> str:
    """Four digits and a unit: 35.13 G."""
    if not number:
        return "–"
    unit = min((len(str(number)) - 1) // 3, 5)
    return f"{number / 1000**unit:.4g} {' kMGTP'[unit]}".rstrip()
