"""The nearest by cosine: the brute-force answer, whatever the pieces."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.errors import DataError, InputError
from vitlab.evaluation.feature_file import FeatureInfo
from vitlab.evaluation.similar import check_same, check_vectors, nearest
from vitlab.images.preprocessing import Preprocessing

COUNT, WIDTH = 211, 13
INFO = FeatureInfo(
    model="a.safetensors",
    weights="a" * 64,
    kind="pooled",
    layer=None,
    preprocessing=Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
    shape=(WIDTH,),
    folder="/",
)


def vectors() -> NDArray[np.float32]:
    random = np.random.default_rng(0)
    lengths = 10.0 ** random.uniform(-3, 3, (COUNT, 1))
    return (random.normal(size=(COUNT, WIDTH)) * lengths).astype(np.float32)


def pieces(features: NDArray[np.float32], size: int) -> list[NDArray[np.float32]]:
    return [features[start : start + size] for start in range(0, len(features), size)]


@pytest.mark.parametrize("size", [1, 17, COUNT])
@pytest.mark.parametrize("top", [1, 7, COUNT, 1000])
def test_equals_brute_force(size: int, top: int) -> None:
    features, query = vectors(), np.random.default_rng(1).normal(size=WIDTH).astype(np.float32)
    exact, asked = features.astype(np.float64), query.astype(np.float64)
    cosine = exact @ asked / np.linalg.norm(exact, axis=1) / np.linalg.norm(asked)
    expected = np.argsort(-cosine)[:top]
    found = nearest(pieces(features, size), query, top=top)
    np.testing.assert_array_equal(found.rows, expected)
    # Sums of 13 products in float32.
    np.testing.assert_allclose(found.similarity, cosine[expected], atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_equal_ones_keep_their_order(size: int) -> None:
    features = np.zeros((8, 3), np.float32)
    features[[1, 2, 5, 7], 0] = 1
    found = nearest(pieces(features, size), np.array([1, 0, 0], np.float32), top=3)
    assert found.rows.tolist() == [1, 2, 5]
    assert found.similarity.tolist() == [1, 1, 1]


def test_what_has_no_direction_is_like_nothing() -> None:
    features = np.array([[0, 0], [-1, 0], [1, 1]], np.float32)
    found = nearest([features], np.array([2, 0], np.float32), top=3)
    assert found.rows.tolist() == [2, 0, 1]
    np.testing.assert_allclose(found.similarity, [0.5**0.5, 0, -1], atol=1e-7)
    assert nearest([features], np.zeros(2, np.float32), top=1).similarity.tolist() == [0]


def test_nothing_to_search() -> None:
    assert nearest([], np.ones(2, np.float32), top=3).rows.tolist() == []
    with pytest.raises(InputError, match="top 0; valid: at least 1"):
        nearest([], np.ones(2, np.float32), top=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "cls"}, "holds pooled features of the last layer, the image has cls"),
        ({"layer": 3}, "the image has pooled features of layer 3; valid: the same for both"),
        ({"weights": "b" * 64}, "weights aaaaaaaaaaaa….*not of.*bbbbbbbbbbbb….*valid: the model"),
        (
            {"preprocessing": replace(INFO.preprocessing, crop=0.9)},
            "'crop': 1.0.*'crop': 0.9.*valid: the same for both",
        ),
    ],
)
def test_features_that_mean_something_else(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_same(INFO, replace(INFO, **changes))


def test_features_that_mean_the_same() -> None:
    check_same(INFO, replace(INFO, model="moved.safetensors", folder="/elsewhere"))
    check_vectors(INFO)
    with pytest.raises(DataError, match="grids of patches, not one vector an image"):
        check_vectors(replace(INFO, kind="patches"))
