"""Buffers for pixels: used again when nothing refers to them, filled by other processes."""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.picture_files import CLASSES, folder_of
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.loader import FileLoader
from vitlab.data.shared_pixels import Pixels, SharedPixels
from vitlab.images.preprocessing import HALF, Preprocessing
from vitlab.machine.device import pin_memory, pinning


def test_a_buffer_is_used_again_when_nothing_refers_to_it() -> None:
    memory = SharedPixels()
    shape = (3, 5, 7)
    first, second = memory.take(shape), memory.take(shape)
    assert first.pixels.shape == shape
    assert first.offset != second.offset
    tensor, place = torch.from_numpy(first.pixels[1:]), first.offset
    tensor[:] = 7
    del first
    assert memory.take(shape).offset not in (place, second.offset)  # the tensor still refers to it
    assert int(tensor.sum()) == 7 * tensor.numel()
    del tensor
    gc.collect()
    taken = [memory.take(shape) for _ in range(2)]
    assert place in [buffer.offset for buffer in taken]
    assert len({second.offset, *(buffer.offset for buffer in taken)}) == 3


def test_writing_to_the_file_is_writing_to_the_pixels() -> None:
    memory = SharedPixels()
    first, buffer = memory.take((2, 2)), memory.take((2, 3))
    assert first.offset != buffer.offset
    assert buffer.offset is not None
    os.pwrite(memory.descriptor, bytes(range(6)), buffer.offset)
    np.testing.assert_array_equal(buffer.pixels, [[0, 1, 2], [3, 4, 5]])
    memory.close()
    memory.close()
    assert buffer.pixels[1, 2] == 5  # still valid


def test_memory_is_pinned_once_and_released_at_the_end() -> None:
    pinned: list[int] = []
    released: list[int] = []

    def pin(pixels: Pixels) -> object:
        number = len(pinned)
        pinned.append(pixels.nbytes)
        return lambda: released.append(number)

    memory = SharedPixels(pin)
    held = [memory.take((5, 1000)) for _ in range(2)]
    del held
    gc.collect()
    memory.take((5, 1000))
    assert len(pinned) == 2
    assert all(size >= 5000 for size in pinned)
    memory.close()
    assert sorted(released) == [0, 1]


class Runtime:
    """What a loader calls of CUDA's runtime."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.locked: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert size > 0
        assert flags == 0
        self.locked.append(address)
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.locked.remove(address)
        return 0


def test_memory_is_pinned_by_the_runtime_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, runtime = np.zeros(64, np.uint8), Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    release = pin_memory(pixels)
    assert runtime.locked == [pixels.ctypes.data]
    release()
    assert runtime.locked == []
    assert pinning("cpu") is None
    assert pinning("cuda:1") is pin_memory


def test_memory_that_cannot_be_pinned_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime(code=2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pin_memory(np.zeros(64, np.uint8))()
    assert len(runtime.locked) == 1  # was not unregistered


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_loader_does_not_grow(tmp_path: Path) -> None:
    loader = FileLoader(
        folder_of(tmp_path, 23),
        batch_size=5,
        seed=0,
        augment=AugmentConfig(),
        preprocessing=Preprocessing(size=(24, 20), mean=HALF, std=HALF),
        classes=CLASSES,
        workers=2,
    )
    memory = loader._pool._memory
    assert memory is not None
    for step in range(30):
        loader.batch(step)
    assert os.fstat(memory.descriptor).st_size <= 8 * 8192  # a batch has 7200 bytes; 2 are ahead
    loader.close()


def test_pixels_go_through_pipes_where_no_file_can_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder_of(tmp_path, 7)
    settings = {
        "batch_size": 5,
        "seed": 0,
        "augment": AugmentConfig(flip="random"),
        "preprocessing": Preprocessing(size=(24, 20), mean=HALF, std=HALF),
        "classes": CLASSES,
    }
    monkeypatch.setattr("vitlab.data.pool.SUPPORTED", False)
    piped, here = (FileLoader(files, workers=workers, **settings) for workers in (1, 0))
    for step in range(3):
        assert torch.equal(piped.batch(step).images, here.batch(step).images)
    piped.close()
