"""Names of authors' own files, translated to those of the format that has the same tensors.

EVA-02, DINOv3 and others were published with names that timm changes when it reads them. A file
with such names is read, and written back, through the rules of the format.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from vitlab.weights.formats.rules import Rule, StoredShapes


@dataclass(frozen=True, slots=True)
class Renaming:
    """Parts of names: those of a file that has a name matching `sign`, and those of the format."""

    tag: str
    sign: re.Pattern[str]
    pairs: tuple[tuple[str, str], ...]

    def known(self, name: str) -> str:
        """Name in the format."""
        for theirs, ours in self.pairs:
            name = name.replace(theirs, ours)
        return name

    def own(self, name: str) -> str:
        """Name in the file."""
        for theirs, ours in self.pairs:
            name = name.replace(ours, theirs)
        return name


RENAMINGS = (
    Renaming(
        "w123",
        re.compile(r"blocks\.\d+\.mlp\.w1\."),
        ((".mlp.w1.", ".mlp.fc1_g."), (".mlp.w2.", ".mlp.fc1_x."), (".mlp.w3.", ".mlp.fc2.")),
    ),
    Renaming(
        "ffn_ln", re.compile(r"blocks\.\d+\.mlp\.ffn_ln\."), ((".mlp.ffn_ln.", ".mlp.norm."),)
    ),
    Renaming(
        "inner_attn_ln",
        re.compile(r"blocks\.\d+\.attn\.inner_attn_ln\."),
        ((".attn.inner_attn_ln.", ".attn.norm."),),
    ),
    Renaming("storage_tokens", re.compile(r"storage_tokens$"), (("storage_tokens", "reg_token"),)),
)
"""EVA-02 (the first three) and Meta's DINOv3 (the last, and the first for S+ and larger)."""


def renamings(names: Collection[str]) -> list[Renaming]:
    """Renamings whose sign is among the names."""
    return [each for each in RENAMINGS if any(each.sign.match(name) for name in names)]


def renamed_shapes(shapes: StoredShapes, found: Collection[Renaming]) -> StoredShapes:
    """Shapes under the names of the format."""
    renamed = StoredShapes()
    for name, shape in shapes.items():
        for each in found:
            name = each.known(name)
        renamed[name] = shape
    return renamed


def own_names(rules: Collection[Rule], tags: Collection[str]) -> list[Rule]:
    """Rules with the names of the file that has these tags."""
    found = [each for each in RENAMINGS if each.tag in tags]
    return [
        replace(rule, theirs=tuple(_own(name, found) for name in rule.theirs)) for rule in rules
    ]


def _own(name: str, found: Collection[Renaming]) -> str:
    for each in found:
        name = each.own(name)
    return name
