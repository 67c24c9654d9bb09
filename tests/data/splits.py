"""Both splits of a source in memory."""

from vitlab.data.datasets import DataSource
from vitlab.data.images import ArraySet


def splits(source: DataSource) -> tuple[ArraySet, ArraySet]:
    assert source.open_test is not None
    train, test = source.open_train(), source.open_test()
    assert isinstance(train, ArraySet)
    assert isinstance(test, ArraySet)
    return train, test
