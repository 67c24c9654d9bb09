"""Images of any number of channels, of 8 bits and more, from arrays and TIFFs."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from vitlab.errors import ConfigError, DataError, InputError
from vitlab.images.bands import array_bands, read_array, read_tiff, tiff_bands
from vitlab.images.decode import Decoder
from vitlab.images.preprocessing import IMAGENET_MEAN, Preprocessing
from vitlab.images.statistics import read_settings, shown, spread

H, W, C = 37, 53, 5


def pixels(
    dtype: str = "u1", channels: int = C, highest: float = 250, seed: int = 0
) -> NDArray[Any]:
    draw = np.random.default_rng(seed).random((H, W, channels))
    return (draw * highest).astype(dtype)


def prepared(channels: int = C, **changes: Any) -> Preprocessing:
    numbers: dict[str, Any] = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    return Preprocessing(size=(H, W), **(numbers | changes))


LAYOUTS = list(
    product(("u1", "u2", "f4"), ("contig", "separate"), (None, (16, 32)), (None, "zlib"), "<>")
)


@pytest.mark.parametrize(("dtype", "planar", "tile", "compression", "order"), LAYOUTS)
def test_tiffs_of_five_bands_in_every_layout(
    tmp_path: Path, dtype: str, planar: str, tile: Any, compression: str | None, order: str
) -> None:
    wanted, file = pixels(dtype), tmp_path / "x.tif"
    stored = wanted if planar == "contig" else np.moveaxis(wanted, 2, 0)
    tifffile.imwrite(
        file,
        stored,
        photometric="minisblack",
        planarconfig=planar,
        tile=tile,
        compression=compression,
        predictor=2 if compression and dtype != "f4" else None,
        rowsperstrip=None if tile else 7,
        byteorder=order,
    )
    assert tiff_bands(file) == (C, dtype != "u1")
    assert np.array_equal(read_tiff(file), wanted)


def test_arrays_have_their_channels_first_or_last(tmp_path: Path) -> None:
    wanted = pixels()
    np.save(tmp_path / "last.npy", wanted)
    np.save(tmp_path / "first.npy", np.moveaxis(wanted, 2, 0))
    np.save(tmp_path / "grey.npy", wanted[..., 0])
    assert np.array_equal(read_array(tmp_path / "last.npy"), wanted)
    assert np.array_equal(read_array(tmp_path / "first.npy"), wanted)
    assert read_array(tmp_path / "grey.npy").shape == (H, W, 1)
    assert array_bands(tmp_path / "first.npy") == (C, False)
    np.save(tmp_path / "signal.npy", wanted[0, :, 0])
    assert np.array_equal(read_array(tmp_path / "signal.npy"), wanted[:1, :, :1])  # one row
    assert array_bands(tmp_path / "signal.npy") == (1, False)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        *(((25, 25, 200), 200), ((200, 9, 9), 200), ((5, 5, 5), 5), ((3, 3, 32), 32)),
        *(((7, 11, 5), 5), ((5, 7, 11), 5)),
    ],
)
def test_squares_tell_the_bands(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    np.save(tmp_path / "x.npy", np.zeros(shape, np.uint8))
    assert array_bands(tmp_path / "x.npy").channels == channels


@pytest.mark.parametrize("shape", [(25, 20, 200), (200, 9, 11), (5, 7, 5)])
def test_what_may_be_bands_or_a_side_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "x.npy", np.zeros(shape, np.uint8))
    with pytest.raises(InputError, match="whose axis of bands is ambiguous; valid"):
        read_array(tmp_path / "x.npy")


def test_an_array_that_holds_objects_is_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="an array of object; valid: numbers"):
        prepared().apply(tmp_path / "x.npy")


@pytest.mark.parametrize("kind", ["npy", "tif", "memory"])
def test_files_and_memory_are_prepared_alike(tmp_path: Path, kind: str) -> None:
    wanted = pixels()
    source: Any = wanted
    if kind == "npy":
        np.save(source := tmp_path / "x.npy", wanted)
    elif kind == "tif":
        layout = {"photometric": "minisblack", "planarconfig": "contig"}
        tifffile.imwrite(source := tmp_path / "x.tif", wanted, **layout)
    found = prepared().apply(source)
    assert found.shape == (C, H, W)
    assert np.array_equal((found * 255).round(), np.moveaxis(wanted, 2, 0))


def test_the_decoder_reads_what_preprocessing_does(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", pixels("u2", highest=9000))
    np.save(tmp_path / "rgb.npy", pixels(channels=3))
    for name, channels, white in (("x", C, 10_000.0), ("rgb", 3, None)):
        preparation = prepared(channels, white=white).resized((20, 24))
        wanted = preparation.apply(tmp_path / f"{name}.npy")
        found = Decoder(preprocessing=preparation).read(str(tmp_path / f"{name}.npy"), 0)
        assert np.array_equal(found / np.float32(255), wanted)


def test_a_random_crop_takes_the_same_part_of_every_band(tmp_path: Path) -> None:
    one = pixels(channels=1)
    np.save(tmp_path / "x.npy", np.repeat(one, C, axis=2))
    decoder = Decoder(preprocessing=prepared().resized(16), area=(0.2, 0.6), ratio=(0.8, 1.25))
    crops = [decoder.read(str(tmp_path / "x.npy"), seed) for seed in range(3)]
    for crop in crops:
        assert crop.shape == (C, 16, 16)
        assert all(np.array_equal(crop[0], band) for band in crop)
    assert not np.array_equal(crops[0], crops[1])


def test_transparency_is_a_channel_when_four_are_asked_for(tmp_path: Path) -> None:
    wanted = pixels(channels=4)
    Image.fromarray(wanted, "RGBA").save(tmp_path / "x.png")
    Image.fromarray(np.ascontiguousarray(wanted[..., :3])).save(tmp_path / "opaque.png")
    found = prepared(4).apply(tmp_path / "x.png")
    assert np.array_equal((found * 255).round(), np.moveaxis(wanted, 2, 0))
    assert (prepared(4).apply(tmp_path / "opaque.png")[3] == 1).all()


def test_sixteen_bits_are_scaled_to_white() -> None:
    deep = np.array([[0, 5000], [10_000, 40_000]], np.uint16)
    for white, wanted in ((None, [0, 19, 39, 156]), (10_000.0, [0, 128, 255, 255])):
        found = Preprocessing(size=(2, 2), mean=(0.0,), std=(1.0,), white=white).apply(deep)
        assert (found * 255).round().flatten().tolist() == wanted
    share = Preprocessing(size=(2, 2), mean=(0.0,), std=(1.0,), white=0.5)
    halves = share.apply(np.array([[0.0, 0.25], [0.5, 0.1]]))
    assert (halves * 255).round().flatten().tolist() == [0, 128, 255, 51]


def test_numbers_that_are_no_brightness_are_refused() -> None:
    with pytest.raises(InputError, match="values from -3; valid: 0 to 10"):
        Preprocessing(size=(1, 2), mean=(0.0,), std=(1.0,), white=10.0).apply(np.array([[-3.0, 1]]))
    with pytest.raises(InputError, match="values from nan"):
        Preprocessing(size=(1, 2), mean=(0.0,), std=(1.0,), white=1.0).apply(
            np.array([[np.nan, 1]])
        )
    with pytest.raises(InputError, match="valid: uint8 or uint16"):
        Preprocessing(size=(1, 2), mean=(0.0,), std=(1.0,)).apply(np.array([[0.5, 1]]))
    with pytest.raises(ConfigError, match="white 0"):
        Preprocessing(size=(1, 2), mean=(0.0,), std=(1.0,), white=0.0)


def files(folder: Path, arrays: list[NDArray[Any]], ending: str = "npy") -> list[Path]:
    paths = [folder / f"{i}.{ending}" for i in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        if ending == "npy":
            np.save(path, array)
        else:
            Image.fromarray(array).save(path)
    return paths


def test_looking_finds_channels_and_statistics(tmp_path: Path) -> None:
    arrays = [pixels(seed=i) for i in range(6)]
    paths = files(tmp_path, arrays)
    found = read_settings(paths, lambda: paths)
    values = np.concatenate([array.reshape(-1, C) for array in arrays]) / 255
    assert found.channels == C
    assert found.white is None
    np.testing.assert_allclose(found.mean, values.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.std, values.std(axis=0), atol=1e-5)
    assert found.note == "Images of 5 channels"


def test_statistics_are_of_training_files_alone(tmp_path: Path) -> None:
    paths = files(tmp_path, [pixels(highest=100), pixels(highest=250)])
    assert (
        read_settings(paths, lambda: paths[:1]).mean < read_settings(paths, lambda: paths[1:]).mean
    )


def test_colours_grey_and_depth(tmp_path: Path) -> None:
    colour = files(tmp_path, [pixels(channels=3)], "png")
    assert read_settings(colour, lambda: colour)[:2] == (3, IMAGENET_MEAN)
    grey = files(tmp_path, [pixels()[..., 0]], "bmp")
    assert read_settings(grey, lambda: grey).channels == 1
    assert read_settings(grey + colour, lambda: grey + colour).channels == 3
    assert read_settings(grey, lambda: grey, channels=3).mean == IMAGENET_MEAN
    deep = files(tmp_path, [pixels("u2", highest=4000)[..., 0]], "tiff")
    found = read_settings(deep, lambda: deep)
    assert found.channels == 1
    assert found.white is not None
    assert 3900 < found.white <= 4000
    full = files(tmp_path, [pixels("u2", highest=65535)])
    assert read_settings(full, lambda: full).white is None
    with pytest.raises(DataError, match="images of 3 and 5 channels; valid: one number"):
        read_settings(colour + full, lambda: colour)


def test_colours_of_sixteen_bits_keep_their_depth(tmp_path: Path) -> None:
    """Pillow alone would keep 16 levels of a camera's 12 bits."""
    wanted, file = pixels("u2", channels=3, highest=4000), tmp_path / "x.tif"
    tifffile.imwrite(file, wanted, photometric="rgb")
    found = read_settings([file], lambda: [file])
    assert (found.channels, found.note) == (
        3,
        f"Images of 3 channels of values from 0 to {found.white:g}",
    )
    preparation = prepared(3, white=found.white)
    levels = (preparation.apply(file) * 255).round()
    assert len(np.unique(levels)) > 250
    assert np.array_equal(Decoder(preprocessing=preparation).read(str(file), 0), levels)
    tifffile.imwrite(file, wanted * 16, photometric="rgb")
    assert read_settings([file], lambda: [file])[:3] == read_settings([], list)[:3]


def test_broken_files_are_no_reason_to_stop_looking(tmp_path: Path) -> None:
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    good = files(tmp_path, [pixels()])
    assert read_settings([tmp_path / "broken.npy", *good], lambda: good).channels == C
    broken = [tmp_path / "broken.npy"]
    assert read_settings(broken, lambda: broken).channels == 3
    with pytest.raises(DataError, match="no image can be read with 4 channels"):
        read_settings(broken, lambda: broken, channels=4)


def test_everything_can_be_shown(tmp_path: Path) -> None:
    wanted = pixels()
    np.save(tmp_path / "x.npy", wanted)
    assert np.array_equal(np.asarray(shown(tmp_path / "x.npy")), wanted[..., :3])
    np.save(tmp_path / "deep.npy", pixels("u2", channels=2, highest=500))
    picture = np.asarray(shown(tmp_path / "deep.npy"))
    assert picture.shape == (H, W, 3)
    assert picture.max() == 255


def test_spread() -> None:
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread([1, 2], 5) == [1, 2]
