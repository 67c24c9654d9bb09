"""What holds for every model: names of tensors, copies, precisions, devices, training."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.vit_cases import CASES
from reference.random_weights import randomise
from vitlab.models.config import ViTConfig, pair
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer, logits_of

RICH = ViTConfig(
    width=12,
    depth=2,
    heads=3,
    head_width=5,
    mlp_width=17,
    patch_size=(3, 2),
    image_size=(15, 14),
    channels=5,
    classes=11,
    registers=2,
    patch_norm="both",
    position="learned2d",
    position_at="every_layer",
    qk_norm=True,
    layer_scale=0.1,
    attention="lsa",
    pool="map",
    head="mlp",
    representation_size=19,
)
BLOCK = {
    "norm1.weight": (12,),
    "norm1.bias": (12,),
    "attention.qkv.weight": (45, 12),
    "attention.qkv.bias": (45,),
    "attention.q_norm.weight": (5,),
    "attention.q_norm.bias": (5,),
    "attention.k_norm.weight": (5,),
    "attention.k_norm.bias": (5,),
    "attention.proj.weight": (12, 15),
    "attention.proj.bias": (12,),
    "attention.temperature": (3,),
    "scale1.gamma": (12,),
    "scale2.gamma": (12,),
    "norm2.weight": (12,),
    "norm2.bias": (12,),
    "mlp.fc1.weight": (17, 12),
    "mlp.fc1.bias": (17,),
    "mlp.fc2.weight": (12, 17),
    "mlp.fc2.bias": (12,),
}
SOME = ["paper", "relative_registers", "rope_registers", "sincos2d_every", "sliding_groups", "lsa"]
SOME += ["relative_bias", "conditional_every", "pooled_conditional", "pooled_relative"]
SOME += ["axial_registers_gap", "sparse_even", "conv_batch", "map", "learned2d_every", "hybrid"]
some_cases = pytest.mark.parametrize("case", SOME)


def build(config: ViTConfig) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(config).eval()
    randomise(model)
    return model


def images_for(config: ViTConfig, batch: int = 2, **options: Any) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, config.channels, *pair(config.image_size), **options)


def shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    state = VisionTransformer(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_names_of_tensors() -> None:
    expected: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 12),
        "registers": (1, 2, 12),
        "stem.proj.weight": (12, 5, 3, 2),
        "stem.proj.bias": (12,),
        "stem.norm_before.weight": (30,),
        "stem.norm_before.bias": (30,),
        "stem.norm_after.weight": (12,),
        "stem.norm_after.bias": (12,),
        **{f"encoder.blocks.{i}.{name}": shape for i in (0, 1) for name, shape in BLOCK.items()},
        "encoder.norm.weight": (12,),
        "encoder.norm.bias": (12,),
        "pool.probe": (1, 1, 12),
        **{f"pool.attention.{part}.weight": (12, 12) for part in ("q", "k", "v", "out")},
        **{f"pool.attention.{part}.bias": (12,) for part in ("q", "k", "v", "out")},
        "pool.norm.weight": (12,),
        "pool.norm.bias": (12,),
        "pool.mlp.fc1.weight": (17, 12),
        "pool.mlp.fc1.bias": (17,),
        "pool.mlp.fc2.weight": (12, 17),
        "pool.mlp.fc2.bias": (12,),
        "pre_logits.weight": (19, 12),
        "pre_logits.bias": (19,),
        "head.weight": (11, 19),
        "head.bias": (11,),
    }
    for i in (0, 1):
        expected[f"positions.{i}.rows"] = (5, 6)
        expected[f"positions.{i}.columns"] = (7, 6)
        expected[f"positions.{i}.prefix"] = (1, 12)
    assert shapes(RICH) == expected


PLAIN = {
    "width": 12,
    "depth": 1,
    "heads": 3,
    "mlp_width": 17,
    "patch_size": 2,
    "image_size": 8,
    "classes": 7,
}


def difference(**changes: Any) -> tuple[set[str], set[str]]:
    """Names that the changes add to a plain model's tensors, and those that they take away."""
    plain, changed = set(shapes(ViTConfig(**PLAIN))), set(shapes(ViTConfig(**{**PLAIN, **changes})))
    return changed - plain, plain - changed


def test_names_of_a_plain_model() -> None:
    block = {name for name in BLOCK if "_norm" not in name and "scale" not in name}
    block -= {"attention.temperature"}
    assert set(shapes(ViTConfig(**PLAIN))) == {
        "cls_token",
        "stem.proj.weight",
        "stem.proj.bias",
        "positions.0.table",
        *(f"encoder.blocks.0.{name}" for name in block),
        "encoder.norm.weight",
        "encoder.norm.bias",
        "head.weight",
        "head.bias",
    }


@pytest.mark.parametrize(
    ("changes", "added", "removed"),
    [
        (
            {"norm_at": "pooled"},
            {"pooled_norm.weight", "pooled_norm.bias"},
            {"encoder.norm.weight", "encoder.norm.bias"},
        ),
        ({"norm": "post"}, set(), {"encoder.norm.weight", "encoder.norm.bias"}),
        (
            {"norm_bias": False},
            set(),
            {
                "encoder.blocks.0.norm1.bias",
                "encoder.blocks.0.norm2.bias",
                "encoder.norm.bias",
            },
        ),
        (
            {"branch_norm": 0.2},
            {"encoder.blocks.0.scale1.weight", "encoder.blocks.0.scale2.weight"},
            set(),
        ),
        ({"classes": 0}, set(), {"head.weight", "head.bias"}),
        ({"class_token": False, "pool": "mean"}, set(), {"cls_token"}),
        ({"position": "none"}, set(), {"positions.0.table"}),
        ({"position": "sincos2d"}, set(), {"positions.0.table"}),
        ({"position": "rope"}, set(), {"positions.0.table"}),
        (
            {"position": "relative"},
            {"encoder.blocks.0.attention.offsets"},
            {"positions.0.table"},
        ),
        (
            {"position": "conditional"},
            {"positions.0.conv.weight", "positions.0.conv.bias"},
            {"positions.0.table"},
        ),
        (
            {"position": "relative_bias"},
            {"encoder.blocks.0.attention.offset_bias.table"},
            {"positions.0.table"},
        ),
        ({"position_at": "shared_layers", "depth": 1}, set(), set()),
        ({"qkv_bias": False}, set(), {"encoder.blocks.0.attention.qkv.bias"}),
        ({"proj_bias": False}, set(), {"encoder.blocks.0.attention.proj.bias"}),
        (
            {"proj": False},
            set(),
            {f"encoder.blocks.0.attention.proj.{part}" for part in ("weight", "bias")},
        ),
        (
            {"stem": "shifted"},
            {"stem.norm_before.weight", "stem.norm_before.bias"},
            set(),
        ),
        (
            {"stem": "conv", "patch_size": 4},
            {"stem.convs.0.conv.weight", "stem.convs.1.conv.weight"},
            {"stem.proj.weight", "stem.proj.bias"},
        ),
        (
            {"stem": "conv", "patch_size": 2, "conv_strides": (2,), "conv_widths": ()}
            | {"conv_norm": "batch"},
            {"stem.convs.0.conv.weight"}
            | {f"stem.convs.0.norm.{part}" for part in ("weight", "bias")}
            | {f"stem.convs.0.norm.{part}" for part in ("running_mean", "running_var")}
            | {"stem.convs.0.norm.num_batches_tracked"},
            {"stem.proj.weight", "stem.proj.bias"},
        ),
        (
            {"stem": "resnet", "resnet_layers": (), "resnet_width": 32},
            {"stem.resnet.root.conv.weight"}
            | {f"stem.resnet.root.norm.{part}" for part in ("weight", "bias")},
            set(),
        ),
        (
            {"attention": "lsa"},
            {"encoder.blocks.0.attention.temperature"},
            set(),
        ),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value)[:50],
)
def test_names_that_a_setting_changes(
    changes: dict[str, Any], added: set[str], removed: set[str]
) -> None:
    assert difference(**changes) == (added, removed)


@pytest.mark.parametrize(
    ("changes", "name", "shape"),
    [
        ({"position_prefix": "all", "registers": 3}, "positions.0.table", (20, 12)),
        ({"position_prefix": "none", "registers": 3}, "positions.0.table", (16, 12)),
        ({"registers": 3}, "positions.0.table", (17, 12)),
        ({"position": "relative"}, "encoder.blocks.0.attention.offsets", (31, 4)),
        (
            {"position": "relative", "pool_after": 1, "depth": 2},
            "encoder.blocks.0.attention.offsets",
            (31, 4),
        ),
        (
            {"position": "relative", "pool_after": 1, "depth": 2},
            "encoder.blocks.1.attention.offsets",
            (7, 4),
        ),
        ({"position": "conditional"}, "positions.0.conv.weight", (12, 1, 3, 3)),
        (
            {"position": "relative_bias", "image_size": (8, 12)},
            "encoder.blocks.0.attention.offset_bias.table",
            (3, 7, 11),
        ),
        ({"stem": "shifted"}, "stem.proj.weight", (12, 15, 2, 2)),
        ({"stem": "shifted"}, "stem.norm_before.weight", (60,)),
        ({"stem": "resnet", "resnet_width": 32}, "stem.proj.weight", (12, 32, 2, 2)),
        (
            {"stem": "resnet", "resnet_width": 32, "resnet_layers": (1,)},
            "stem.proj.weight",
            (12, 128, 2, 2),
        ),
    ],
)
def test_shapes_that_a_setting_changes(
    changes: dict[str, Any], name: str, shape: tuple[int, ...]
) -> None:
    assert shapes(ViTConfig(**{**PLAIN, **changes}))[name] == shape


def test_a_table_for_every_layer_or_one_for_all() -> None:
    every = shapes(ViTConfig(**{**PLAIN, "depth": 3, "position_at": "every_layer"}))
    shared = shapes(ViTConfig(**{**PLAIN, "depth": 3, "position_at": "shared_layers"}))
    assert [n for n in every if "positions" in n] == [f"positions.{i}.table" for i in range(3)]
    assert [n for n in shared if "positions" in n] == ["positions.0.table"]


@some_cases
def test_copies_and_state_dicts(case: str) -> None:
    model = build(CASES[case])
    images = images_for(model.config)
    expected = model(images)
    duplicate = copy.deepcopy(model)
    assert torch.equal(duplicate(images), expected)
    other = VisionTransformer(model.config).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), expected)
    with torch.no_grad():
        next(duplicate.parameters()).add_(1.0)
    assert torch.equal(model(images), expected)


@some_cases
def test_built_without_memory_and_filled_later(case: str) -> None:
    model = build(CASES[case])
    images = images_for(model.config)
    with torch.device("meta"):
        empty = VisionTransformer(model.config)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    empty.load_state_dict(model.state_dict(), assign=True)
    tensors = [*empty.parameters(), *empty.buffers()]
    assert not any(tensor.is_meta for tensor in tensors)
    assert torch.equal(empty.eval()(images), model(images))


@some_cases
def test_a_forward_pass_without_memory_spoils_nothing(case: str) -> None:
    # A size of its own, so that no other test has computed its constants before.
    rows, columns = pair(CASES[case].patch_size)
    if CASES[case].stem == "resnet":
        rows, columns = 8 * rows, 8 * columns
    config = replace(CASES[case], image_size=(6 * rows, 10 * columns))
    with torch.device("meta"):
        empty = VisionTransformer(config).eval()
        images = torch.empty(2, config.channels, *pair(config.image_size))
        assert empty(images).shape == (2, config.classes)
    model = build(config)
    assert model(images_for(config)).isfinite().all()


@some_cases
def test_precisions(case: str) -> None:
    model = build(CASES[case])
    images = images_for(model.config)
    exact = copy.deepcopy(model).double()(images.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(model(images).double(), exact, atol=1e-4, rtol=1e-4)  # float32
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())
    found = half(images.to(torch.bfloat16))
    assert found.dtype == torch.bfloat16
    # bfloat16 carries 8 bits through two layers: enough to tell a broken path from rounding.
    assert (found.double() - exact).norm() < 0.1 * exact.norm()
    features = half.features(images.to(torch.bfloat16), layers=[0])
    assert features.tokens.dtype == torch.bfloat16
    assert half.attention(images.to(torch.bfloat16))[0].dtype == torch.bfloat16


def test_no_buffers_but_those_of_batch_norm() -> None:
    for name, config in CASES.items():
        buffers = [key for key, _ in VisionTransformer(config).named_buffers()]
        assert all(".norm." in key for key in buffers), name
        assert bool(buffers) == (config.conv_norm == "batch"), name


def test_every_parameter_gets_a_gradient() -> None:
    for name, config in CASES.items():
        model = VisionTransformer(config).train()
        randomise(model)
        model(images_for(config)).square().sum().backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, (name, key)
            assert parameter.grad.isfinite().all(), (name, key)
            # A mean over tokens does not depend on queries and keys.
            unread = config.attention == "mean" and ("q_norm" in key or "k_norm" in key)
            expected = bool(parameter.numel()) and not unread
            assert bool(parameter.grad.any()) == expected, (name, key)


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.5}, {"attention_dropout": 0.5}, {"drop_path": 0.9}], ids=str
)
def test_randomness_only_in_training(changes: dict[str, float]) -> None:
    model = build(replace(CASES["paper"], **changes))
    images = images_for(model.config, batch=16)
    plain = build(CASES["paper"])
    assert torch.equal(model(images), plain(images))
    model.train()
    assert not torch.allclose(model(images), model(images))


def test_dropout_begins_with_the_tokens() -> None:
    """Patches with their positions, as in the original code."""
    model = build(replace(CASES["paper"], dropout=0.25))
    images = images_for(model.config, batch=16)
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.eval()(images)
    model.train()(images)
    kept = seen[1] != 0
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(seen[1][kept], seen[0][kept] / 0.75)


def test_stochastic_depth_grows_linearly() -> None:
    config = replace(CASES["paper"], depth=5, drop_path=0.4)
    rates = [block.drop_path.rate for block in VisionTransformer(config).encoder.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    alone = VisionTransformer(replace(config, depth=1))
    assert [block.drop_path.rate for block in alone.encoder.blocks] == [0.0]


def test_one_batch_can_be_learned_by_heart() -> None:
    torch.manual_seed(0)
    model = create_model("vit_test")
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(10.0).log().item(), abs=1e-4)  # zero head
    assert losses[-1] < 0.05
    assert (model.eval()(images).argmax(1) == labels).all()


def test_source_is_nothing_at_first() -> None:
    assert VisionTransformer(CASES["paper"]).source is None


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_forward_with_less_work(name: str) -> None:
    config = CASES[name]
    model = VisionTransformer(config).double()
    randomise(model, seed=5)
    images = torch.randn(3, config.channels, *pair(config.image_size), dtype=torch.float64)
    weights = list(model.parameters())
    plain, lean = model(images), model.logits(images)
    torch.testing.assert_close(lean, plain, rtol=1e-9, atol=1e-9)
    expected, found = (
        torch.autograd.grad(
            logits.square().sum(), weights, allow_unused=True, materialize_grads=True
        )
        for logits in (plain, lean)
    )
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("attention", ["full", "sliding"])
def test_less_work_with_a_table_per_head(attention: str) -> None:
    # Of the class token's scores alone, which have no entry in the table.
    config = replace(CASES["relative_bias"], pool="cls", registers=2, attention=attention)
    model = VisionTransformer(config).double()
    randomise(model, seed=5)
    images = images_for(config, dtype=torch.float64)
    torch.testing.assert_close(model.logits(images), model(images), rtol=1e-9, atol=1e-9)


def test_the_last_block_works_for_the_class_token_alone() -> None:
    config = replace(CASES["paper"], patch_size=16, image_size=32, channels=3)
    model = VisionTransformer(config)
    seen: list[int] = []
    for block in model.encoder.blocks:
        block.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    images = torch.randn(1, 3, 32, 32)
    model.logits(images)
    assert seen == [5, 1]
    assert logits_of(model) == model.logits

    class Louder(VisionTransformer):
        def forward(self, images: Tensor | Sequence[Tensor]) -> Tensor:
            return 2 * super().forward(images)

    louder = Louder(model.config)
    assert logits_of(louder) is louder
