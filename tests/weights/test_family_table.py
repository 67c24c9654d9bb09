"""The table of families in docs/weights.md, made from tiny files of each family in each format.

`PYTHONPATH=src:tests python tests/weights/test_family_table.py` writes it anew.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from reference.open_clip_tower import OpenClipTower
from reference.torchvision_ops import declare

declare()
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "weights.md"
BEGIN, END = (
    "<!-- families: made by tests/weights/test_family_table.py -->",
    "<!-- families end -->",
)
State = dict[str, Tensor]
Make = Callable[[], State]
Source = tuple[Make, dict[str, Any]]
SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1} | {
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
ROPE_EVA = {"rope_form": "eva", "rope_theta": 1e4, "position_grid": (16, 16)}


def of_timm(name: str, **fields: Any) -> Source:
    def make() -> State:
        size = {"embed_dim": 96, "num_heads": 4, "depth": 1, "img_size": 32, "patch_size": 8}
        found: State = timm.create_model(name, **size).state_dict()
        return found

    return make, fields


def of_transformers(name: str, config: str, **arguments: Any) -> Source:
    def make() -> State:
        built = getattr(transformers, f"{config}Config")(**(SMALL | arguments))
        found: State = getattr(transformers, name)(built).state_dict()
        return found

    return make, {}


def of_open_clip() -> State:
    return OpenClipTower(24, 8, layers=1, quick=False).state_dict()


FAMILIES: dict[str, tuple[str, tuple[Source, ...]]] = {
    "ViT: the paper, AugReg": (
        "Apache-2.0",
        (
            of_timm("vit_base_patch16_224"),
            of_transformers("ViTForImageClassification", "ViT"),
        ),
    ),
    "SBB, with registers": (
        "Apache-2.0",
        (of_timm("vit_mediumd_patch16_reg4_gap_256"), of_timm("vit_so150m_patch16_reg4_map_256")),
    ),
    "DeiT": (
        "Apache-2.0",
        (of_timm("deit_small_patch16_224"), of_transformers("DeiTForImageClassification", "DeiT")),
    ),
    "DeiT, distilled": (
        "Apache-2.0",
        (
            of_timm("deit_small_distilled_patch16_224"),
            of_transformers("DeiTForImageClassificationWithTeacher", "DeiT"),
        ),
    ),
    "DeiT-III": ("Apache-2.0", (of_timm("deit3_small_patch16_224"),)),
    "CLIP: OpenAI": (
        "MIT",
        (of_timm("vit_base_patch16_clip_224"), of_transformers("CLIPVisionModel", "CLIPVision")),
    ),
    "CLIP: OpenCLIP, MetaCLIP, DFN": ("each its own", ((of_open_clip, {"heads": 3}),)),
    "SigLIP, SigLIP2": (
        "Apache-2.0",
        (
            of_timm("vit_base_patch16_siglip_224"),
            of_transformers("SiglipVisionModel", "SiglipVision"),
        ),
    ),
    "DINO": ("Apache-2.0", (of_timm("vit_small_patch16_224"),)),
    "DINOv2": (
        "Apache-2.0",
        (
            of_timm("vit_giant_patch14_reg4_dinov2"),
            of_transformers("Dinov2Model", "Dinov2"),
            of_transformers("Dinov2WithRegistersForImageClassification", "Dinov2WithRegisters"),
        ),
    ),
    "DINOv3": (
        "DINOv3",
        (
            of_timm("vit_small_patch16_dinov3", position="rope", rope_form="dinov3", pool="mean"),
            of_transformers("DINOv3ViTModel", "DINOv3ViT"),
        ),
    ),
    "MAE": (
        "CC-BY-NC-4.0",
        (of_timm("vit_base_patch16_224"), of_transformers("ViTMAEModel", "ViTMAE")),
    ),
    "MSN": ("CC-BY-NC-4.0", (of_transformers("ViTMSNModel", "ViTMSN"),)),
    "I-JEPA": ("CC-BY-NC-4.0", (of_transformers("IJepaModel", "IJepa"),)),
    "BEiT, BEiT v2": (
        "Apache-2.0",
        (
            of_timm("beitv2_base_patch16_224"),
            of_transformers("BeitForImageClassification", "Beit", use_relative_position_bias=True),
        ),
    ),
    "EVA-02": ("MIT", (of_timm("eva02_base_patch14_224"), of_timm("eva02_tiny_patch14_224"))),
    "PE core": ("Apache-2.0", (of_timm("vit_pe_core_base_patch16_224"),)),
    "rope, rope_ape": (
        "Apache-2.0",
        (
            of_timm("vit_base_patch16_rope_224", position="rope"),
            of_timm("vit_base_patch16_rope_ape_224", rope=True),
        ),
    ),
    "rope_mixed": ("Apache-2.0", (of_timm("vit_base_patch16_rope_mixed_224"),)),
    "rope_reg": (
        "MIT",
        (of_timm("vit_medium_patch16_rope_reg1_gap_256", position="rope", **ROPE_EVA),),
    ),
    "rpn": ("Apache-2.0", (of_timm("vit_base_patch16_rpn_224", norm="res_post"),)),
    "AIMv2": ("Apple ASCL", (of_timm("aimv2_large_patch14_224"),)),
}
"""Licence of the weights, and a file of each format with the keywords that it needs by itself."""


def row(family: str) -> str:
    """Line of the table: formats, and the fields that tensors alone leave open in any of them."""
    licence, sources = FAMILIES[family]
    formats, needed, open_fields = [], set[str](), set[str]()
    for make, fields in sources:
        keywords = {"heads": 4, **fields}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(make(), Path(folder) / "a.pth")
            source = vitlab.load_weights(
                Path(folder) / "a.pth", **{"image_size": 32, **keywords}
            ).source
        assert source is not None
        formats.append(f"`{source.format}`")
        needed |= {*fields} - {"heads"}
        open_fields |= {note.split()[0].rstrip(":") for note in source.assumed}
    cells = (
        family,
        " ".join(dict.fromkeys(formats)),
        ", ".join(sorted(open_fields - needed)) or "-",
        ", ".join(sorted(needed)) or "-",
        licence,
    )
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    """The whole table."""
    head = "| family | formats | assumed, without a config | to be stated, without one | licence |"
    return "\n".join([head, "|---|---|---|---|---|", *map(row, FAMILIES)])


def test_the_page_has_the_table() -> None:
    found = re.search(f"{BEGIN}\n\n(.*)\n\n{END}", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1] == table()


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    made = f"{BEGIN}\n\n{table()}\n\n{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: made, text, flags=re.DOTALL))
