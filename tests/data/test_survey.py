"""Every file looked at once: what is found, kept, and recalled."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data.picture_files import encoded, folder_of, picture, write_broken
from vitlab.config import from_dict, to_dict
from vitlab.data import duplicates as thumbnails
from vitlab.data import split as survey_module
from vitlab.data.images import FileSet, Survey
from vitlab.data.split import check_share, hold_out, survey_files, surveyed_groups
from vitlab.errors import DataError, InputError
from vitlab.images.decode import Decoder
from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


def with_more(data: FileSet, *paths: Path) -> FileSet:
    labels = torch.cat([data.labels, torch.zeros(len(paths), dtype=torch.int64)])
    return FileSet(paths=data.paths + paths, labels=labels)


def test_reasons_are_those_of_the_decoder(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    data = with_more(folder_of(tmp_path, 9), *write_broken(tmp_path / "bad"))
    found = survey_files(data)
    assert found.survey is not None
    assert found.paths == data.paths[:9]
    decoder = Decoder(
        preprocessing=Preprocessing(size=(9, 9), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    )
    assert set(found.survey.broken_paths) == set(data.paths[9:])
    for path, reason in found.survey.broken_paths.items():
        with pytest.raises(InputError) as told:
            decoder.read(os.fspath(path), 0)
        assert reason == str(told.value), path


def test_somebody_is_told_how_far_the_look_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thumbnails, "FILES", 4)
    told: list[tuple[int, int]] = []
    survey_files(folder_of(tmp_path, 9), watch=lambda done, total: told.append((done, total)))
    assert told == [(0, 9), (4, 9), (8, 9), (9, 9)]
    survey_files(folder_of(tmp_path, 3))
    assert len(told) == 4


def test_copies_of_a_broken_file_are_all_broken(tmp_path: Path) -> None:
    copies = [tmp_path / f"copy {i}.jpg" for i in range(3)]
    for path in copies:
        path.write_bytes(b"the same")
    found = survey_files(with_more(folder_of(tmp_path, 4), *copies))
    assert found.survey is not None
    assert set(found.survey.broken_paths) == set(copies)


def test_duplicates_are_known_by_name_in_every_part(tmp_path: Path) -> None:
    data = folder_of(tmp_path, 12)
    again = tmp_path / "again.jpg"
    again.write_bytes(data.paths[5].read_bytes())
    found = survey_files(with_more(data, again))
    assert found.survey is not None
    assert found.survey.duplicates == (("005.jpg", "again.jpg"),)
    part = found.subset(torch.tensor([12, 3, 5]))
    groups = surveyed_groups(part).tolist()
    assert groups[0] == groups[2] != groups[1]


def test_what_is_recalled_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "000 bad.jpg").write_bytes(b"")
    data = with_more(folder_of(tmp_path, 20), tmp_path / "000 bad.jpg")
    first = hold_out(data, share=0.3, seed=7)
    survey = survey_files(data).survey
    monkeypatch.setattr(survey_module, "compare_files", None)
    stored = from_dict(Survey, to_dict(survey))
    again = hold_out(survey_files(data, known=stored), share=0.3, seed=7)
    assert [part.paths for part in again] == [part.paths for part in first]
    with pytest.raises(TypeError):
        survey_files(data)


def test_a_folder_may_move_but_not_change(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    data = folder_of(tmp_path / "old", 6)
    survey = survey_files(data).survey
    (tmp_path / "old").rename(tmp_path / "new")
    moved = FileSet(paths=tuple(tmp_path / "new" / p.name for p in data.paths), labels=data.labels)
    assert len(survey_files(moved, known=survey)) == 6
    with pytest.raises(DataError, match="changed since the run began: 5 files instead of 6"):
        survey_files(moved.subset(torch.arange(5)), known=survey)
    moved.paths[0].write_bytes(encoded(picture(99), "JPEG"))
    with pytest.raises(DataError, match="6 files as before, but with other names or sizes"):
        survey_files(moved, known=survey)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg"))
    try:
        path.write_bytes(b"x")
    except OSError:
        pytest.skip("this disk takes only names that are text")
    found = survey_files(with_more(folder_of(tmp_path, 3), path))
    assert found.survey is not None
    assert set(found.survey.broken_paths) == {path}


def test_the_share_of_broken_files_is_of_all(tmp_path: Path) -> None:
    survey = Survey(folder="f", files=10, fingerprint="", broken={"a.jpg": "why", "b.jpg": "x"})
    check_share(survey, 0.2)
    with pytest.raises(DataError, match=r"2 of 10 images cannot be read, .*one is f.a\.jpg: why"):
        check_share(survey, 0.19)


def test_beyond_the_limit_nothing_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitlab.data import duplicates

    monkeypatch.setattr(duplicates, "NEAR_LIMIT", 3)
    monkeypatch.setattr(duplicates, "file_thumbnails", None)
    (tmp_path / "bad.jpg").write_bytes(b"")
    found = survey_files(with_more(folder_of(tmp_path, 5), tmp_path / "bad.jpg"))
    assert len(found) == 6


def test_neither_order_nor_labels_may_change(tmp_path: Path) -> None:
    """Images are held out by their places and labels."""
    paths = tuple(tmp_path / f"{number}.png" for number in range(5))
    for number, path in enumerate(paths):
        picture(number).save(path)
    labels = torch.tensor([0, 1, 0, 1, 1])
    known = survey_files(FileSet(paths=paths, labels=labels)).survey
    assert known is not None
    others = (
        FileSet(paths=paths[::-1], labels=labels.flip(0)),
        FileSet(paths=paths, labels=torch.tensor([1, 1, 0, 1, 1])),
    )
    for changed in others:
        with pytest.raises(DataError, match="another order or with other labels"):
            survey_files(changed, known=known)
        survey_files(changed, known=replace(known, order=""))  # as older runs have it
