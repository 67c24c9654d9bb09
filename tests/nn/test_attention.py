"""Attention against its definition, and its two forms against each other."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitlab
import vitlab.nn.attention as attention_module
import vitlab.nn.attention_variants as variants_module
from reference.attention import attend, multi_head
from reference.random_weights import randomise
from vitlab.machine.device import PLAIN_ATTENTION, attention_form
from vitlab.nn.attention import (
    MultiHeadAttention,
    SelfAttention,
    attention_weights,
    dot_product_attention,
)
from vitlab.nn.attention_variants import VariantAttention, log_temperature
from vitlab.nn.init import position_table
from vitlab.nn.pattern import Axial, Others, Pattern, Sliding, Sparse
from vitlab.nn.rope import Rope

# A different prime for every axis: no transposed or broadcast mistake can keep the shape.
B, A, M, N, K, V = 2, 3, 5, 11, 7, 13
D = 17
# float64 on both sides: only the order of the sums differs.
TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}
FORMS = {"plain": 10**6, "fused": 0}
"""The threshold that forces each form."""

both_forms = pytest.mark.parametrize("form", FORMS)


def use_plain_up_to(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for use in PLAIN_ATTENTION:
        monkeypatch.setitem(PLAIN_ATTENTION, use, tokens)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return draw(B, A, M, K, seed=1), draw(B, A, N, K, seed=2), draw(B, A, N, V, seed=3)


def boolean_mask(*shape: int) -> Tensor:
    """About half of the pairs, and one for every query at least."""
    mask = draw(*shape, seed=4) > 0
    mask[..., 2] = True
    return mask


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs and weights of every image and head, one query at a time."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    batch = q.shape[:-2]
    outputs = torch.empty(*batch, q.shape[-2], v.shape[-1], dtype=torch.float64)
    weights = torch.empty(*batch, q.shape[-2], k.shape[-2], dtype=torch.float64)
    for index in np.ndindex(*batch):
        own = None
        if mask is not None:
            own = mask.expand(*batch, *mask.shape[-2:])[index].numpy()
        boolean = own is not None and own.dtype == bool
        y, w = attend(
            q[index].numpy(),
            k[index].numpy(),
            v[index].numpy(),
            looks=own if boolean else None,
            bias=None if boolean else own,
            scale=scale,
        )
        outputs[index], weights[index] = torch.from_numpy(y), torch.from_numpy(w)
    return outputs, weights


MASKS = {
    "none": None,
    "boolean": boolean_mask(M, N),
    "boolean_per_head": boolean_mask(A, M, N),
    "boolean_per_image_and_head": boolean_mask(B, A, M, N),
    "boolean_per_image": boolean_mask(B, 1, M, N),
    "float": draw(M, N, seed=5),
    "float_per_image_and_head": draw(B, A, M, N, seed=6),
    "float_with_minus_infinity": draw(M, N, seed=7).masked_fill(~boolean_mask(M, N), float("-inf")),
}


@both_forms
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("mask", MASKS)
def test_dot_product_attention(
    mask: str, scale: float | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_up_to(FORMS[form], monkeypatch)
    q, k, v = qkv()
    assert attention_form("cpu", max(M, N), "inference") == form
    y = dot_product_attention(q, k, v, MASKS[mask], scale=scale)
    assert y.shape == (B, A, M, V)
    expected, weights = by_definition(q, k, v, MASKS[mask], scale)
    torch.testing.assert_close(y, expected, **TOLERANCE)
    found = attention_weights(q, k, MASKS[mask], scale=scale)
    torch.testing.assert_close(found, weights, **TOLERANCE)
    torch.testing.assert_close(found.sum(-1), torch.ones(B, A, M).double(), **TOLERANCE)


@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (2, 3, 2)])
@both_forms
def test_any_number_of_batch_axes(
    batch: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_up_to(FORMS[form], monkeypatch)
    q, k, v = draw(*batch, M, K), draw(*batch, N, K, seed=1), draw(*batch, N, V, seed=2)
    y = dot_product_attention(q, k, v)
    torch.testing.assert_close(y, by_definition(q, k, v)[0], **TOLERANCE)


@both_forms
def test_a_query_that_sees_nothing_gets_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plain_up_to(FORMS[form], monkeypatch)
    q, k, v = draw(B, A, M, K), draw(B, A, N, K, seed=1), draw(B, A, N, V, seed=2)
    mask = torch.ones(M, N, dtype=torch.bool)
    mask[1] = False
    y = dot_product_attention(q, k, v, mask)
    assert not y[:, :, 1].any()
    assert y.isfinite().all()
    full = dot_product_attention(q, k, v)
    torch.testing.assert_close(y[:, :, [0, 2]], full[:, :, [0, 2]], **TOLERANCE)


@both_forms
def test_one_query_and_one_key(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_plain_up_to(FORMS[form], monkeypatch)
    q, k, v = draw(B, 1, K), draw(B, 1, K), draw(B, 1, V)
    torch.testing.assert_close(dot_product_attention(q, k, v), v)


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_both_forms_agree(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for form, threshold in FORMS.items():
        use_plain_up_to(threshold, monkeypatch)
        q, k, v = (part.requires_grad_() for part in qkv())
        y = dot_product_attention(q, k, v, MASKS[mask])
        found[form] = torch.autograd.grad((y * draw(*y.shape, seed=9)).sum(), (q, k, v))
    for plain, fused in zip(found["plain"], found["fused"], strict=True):
        torch.testing.assert_close(plain, fused, **TOLERANCE)


@pytest.mark.parametrize("use", ["training", "inference"])
def test_the_form_follows_device_sizes_and_use(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = PLAIN_ATTENTION[use]
    assert attention_form("cpu", limit, use) == "plain"
    assert attention_form("cpu", limit + 1, use) == "fused"
    assert attention_form("cuda", limit, use) == "fused"
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")
    assert attention_form("cpu", limit, use) == "fused"


def test_a_gradient_makes_it_training(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def form(device: str, tokens: int, use: str) -> str:
        asked.append((device, tokens, use))
        return "plain"

    monkeypatch.setattr(attention_module, "attention_form", form)
    q, k, v = qkv()
    dot_product_attention(q, k, v)
    dot_product_attention(q.requires_grad_(), k, v)
    with torch.no_grad():
        dot_product_attention(q, k, v)
    assert asked == [("cpu", max(M, N), use) for use in ("inference", "training", "inference")]


def test_large_scores_do_not_overflow() -> None:
    q, k, v = (part.float() * 100 for part in qkv())
    y = dot_product_attention(q, k, v, scale=1.0)
    expected, _ = by_definition(q.double(), k.double(), v.double(), scale=1.0)
    torch.testing.assert_close(y.double(), expected, atol=1e-2, rtol=1e-5)  # float32


@both_forms
def test_dropout_of_weights(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With values of one, an output is the share of the weights that survived, scaled up."""
    use_plain_up_to(FORMS[form], monkeypatch)
    torch.manual_seed(0)
    q, k = torch.zeros(400, 1, K), torch.zeros(400, 100, K)
    y = dot_product_attention(q, k, torch.ones(400, 100, 1), dropout=0.25)
    kept = y.flatten() * 0.75  # share of 100 equal weights
    # Deviation of one share is sqrt(0.75 * 0.25 / 100) = 0.043, of the mean of 400 0.0022.
    assert kept.mean().item() == pytest.approx(0.75, abs=0.01)
    assert kept.std().item() == pytest.approx(0.0433, abs=0.01)


@both_forms
@pytest.mark.parametrize(
    "widths", [{}, {"key_width": K}, {"key_width": K, "value_width": V}, {"value_width": V}]
)
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention(
    widths: dict[str, int], masked: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_plain_up_to(FORMS[form], monkeypatch)
    width = A * 5
    module = MultiHeadAttention(width, heads=A, **widths).double().eval()
    randomise(module)
    queries, tokens = draw(B, M, width, seed=1), draw(B, N, width, seed=2)
    mask = boolean_mask(M, N) if masked else None
    found, weights = module(queries, tokens, mask), module.weights(queries, tokens, mask)
    p = {name: value.numpy() for name, value in module.state_dict().items()}
    for image in range(B):
        y, w = multi_head(
            queries[image].numpy(),
            tokens[image].numpy(),
            p,
            heads=A,
            looks=None if mask is None else mask.numpy(),
        )
        torch.testing.assert_close(found[image], torch.from_numpy(y), **TOLERANCE)
        torch.testing.assert_close(weights[image], torch.from_numpy(w), **TOLERANCE)


def test_multi_head_attention_of_a_sequence_with_itself() -> None:
    module = MultiHeadAttention(A * 5, heads=A).double().eval()
    randomise(module)
    x = draw(B, N, A * 5)
    assert torch.equal(module(x), module(x, x))
    assert torch.equal(module.weights(x), module.weights(x, x))
    assert module.weights(x).shape == (B, A, N, N)


def test_multi_head_attention_drops_only_in_training() -> None:
    module = MultiHeadAttention(A * 5, heads=A, dropout=0.5).double()
    randomise(module)
    x = draw(B, N, A * 5)
    assert not torch.equal(module.train()(x), module(x))
    assert torch.equal(module.eval()(x), module(x))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width 17 does not split into 3 heads"):
        MultiHeadAttention(D, heads=A)
    assert MultiHeadAttention(D, heads=A, key_width=K).out.weight.shape == (D, A * K)


def test_attention_is_public() -> None:
    assert vitlab.dot_product_attention is dot_product_attention
    assert vitlab.MultiHeadAttention is MultiHeadAttention


PATTERNS: list[Pattern | None] = [None, Others(), Sliding(3), Axial("row"), Axial("column")]
PATTERNS.append(Sparse(4))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_self_attention_has_the_same_gradients_in_both_forms(
    pattern: Pattern | None, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, prefix = (13, 5), 2
    module = VariantAttention(
        SelfAttention(D, heads=A, head_width=8),
        prefix=prefix,
        pattern=pattern,
        norms=(nn.LayerNorm(8), nn.LayerNorm(8)),
        temperature=log_temperature(A, 8) if isinstance(pattern, Others) else None,
        rope=None if relative else Rope(8, grid=grid, theta=100.0),
        offsets=position_table(2 * 65 - 1, 8) if relative else None,
    ).double()
    randomise(module)
    x = draw(B, prefix + 65, D)
    found = []
    for threshold in FORMS.values():
        use_plain_up_to(threshold, monkeypatch)
        module.zero_grad()
        (module(x, grid) * draw(*x.shape, seed=9)).sum().backward()
        found.append({name: p.grad for name, p in module.named_parameters()})
    for name, gradient in found[0].items():
        assert gradient is not None, name
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, found[1][name], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("read", [None, 2])
def test_a_variant_without_parts_is_the_plain_attention(read: int | None, training: bool) -> None:
    plain = SelfAttention(D, heads=A, head_width=7, attention_dropout=0.25).train(training)
    randomise(plain)
    variant = VariantAttention(plain).train(training)
    x = draw(B, N, D).float()
    found = []
    for module in (plain, variant):
        torch.manual_seed(0)
        found.append(module(x, (1, N), read))
    assert torch.equal(found[0], found[1])
    assert list(plain.state_dict()) == list(variant.state_dict())
    assert torch.equal(plain.weights(x, (1, N)), variant.weights(x, (1, N)))


def test_self_attention_drops_its_output_in_training() -> None:
    torch.manual_seed(0)
    module = SelfAttention(D, heads=A, head_width=7, dropout=0.25)
    x = torch.randn(50, N, D)
    expected = module.eval()(x, (1, N))
    found = module.train()(x, (1, N))
    kept = found != 0
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(found[kept], expected[kept] / 0.75)


def test_groups_have_the_gradients_of_the_full_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, prefix = (13, 5), 2
    plain = SelfAttention(D, heads=A, head_width=7)
    module = VariantAttention(plain, prefix=prefix, pattern=Sliding(3)).double()
    randomise(module)
    found = []
    for by_groups in (True, False):
        if not by_groups:
            monkeypatch.setattr(variants_module, "pattern_groups", lambda *_: None)
        x = draw(B, prefix + 65, D).requires_grad_()
        y = module(x, grid)
        (y * draw(*x.shape, seed=9)).sum().backward()
        found.append((y.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=1e-10)
