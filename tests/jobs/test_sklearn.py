"""The scikit-learn estimator in scikit-learn's own tools."""

import pickle
import random
import runpy
import sys
from typing import Any

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn")

from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.pipeline import Pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402

import vitlab.sklearn  # noqa: E402
from vitlab.errors import InputError, MissingExtra  # noqa: E402
from vitlab.sklearn import ViTClassifier  # noqa: E402


@pytest.fixture
def data() -> tuple[Any, Any]:
    """Dark and bright noise, which two steps of a linear probe cannot mistake for long."""
    draw = np.random.default_rng(random.randrange(99))
    labels = np.array(["dark", "bright"])[np.arange(40) % 2]
    images = draw.integers(0, 60, (40, 32, 32, 3), np.uint8)
    images[labels == "bright"] += 190
    return images, labels


def test_fit_predict_and_score(data: tuple[Any, Any]) -> None:
    model = ViTClassifier(steps=20, linear_probe=True).fit(*data)
    assert list(model.classes_) == ["bright", "dark"]
    shares = model.predict_proba(data[0])
    assert shares.shape == (40, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert model.score(*data) > 0.9
    assert (model.predict(data[0] / 255) == model.predict(data[0])).all()


def test_pipeline_and_cross_validation(data: tuple[Any, Any]) -> None:
    estimator = ViTClassifier(steps=2, linear_probe=True)
    pipeline = Pipeline([("same", FunctionTransformer()), ("vit", estimator)])
    assert len(cross_val_score(pipeline, *data, cv=2)) == 2


def test_mistakes_are_one_line(data: tuple[Any, Any]) -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        ViTClassifier().predict(data[0])
    with pytest.raises(InputError, match="minutes 1 and steps 2"):
        ViTClassifier(minutes=1, steps=2).fit(*data)
    with pytest.raises(InputError, match="X of shape"):
        ViTClassifier().fit(data[0].reshape(40, -1), data[1])


def test_without_the_extra_the_module_imports_and_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    module = runpy.run_path(str(vitlab.sklearn.__file__))
    with pytest.raises(MissingExtra, match=r"pip install 'vitlab\[sklearn\]'"):
        module["ViTClassifier"](steps=1)


def test_a_fitted_estimator_can_be_cloned_and_pickled(data: tuple[Any, Any]) -> None:
    model = ViTClassifier(steps=2, linear_probe=True, seed=random.randrange(9)).fit(*data)
    assert sklearn.base.clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(
        again.predict_proba(data[0]), model.predict_proba(data[0]), atol=1e-6
    )
