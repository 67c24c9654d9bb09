"""What a file of predictions was asked for: kept beside it, so that nothing else continues it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import FileError, VitlabError
from vitlab.io.files import write_json
from vitlab.task import Task

VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One command's predictions: `FILE.job.json`."""

    model: str
    fingerprint: str
    """Of the weights, the preprocessing and the labels."""
    images: tuple[str, ...]
    """Absolute names of files, folders and patterns."""
    written: tuple[str, ...] = ()
    """The same as they were given: records name what is found in them so."""
    top: int
    task: Task
    threshold: float | None
    """Probability from which on a label is told; None where the task has no labels to choose."""
    batch_size: int
    """Images at once: the last bits of a probability depend on its neighbours."""
    merge_tokens: int = 0
    """Tokens that are merged in each block."""
    engine: str = "torch"
    """What computes: the last bits of a probability depend on it, too."""
    finished: int = 0
    """Records that the file had when all images were done."""
    format_version: int = VERSION


def job_path(output: Path) -> Path:
    """Where the job of a file is kept."""
    return output.with_name(f"{output.name}.job.json")


def read_job(output: Path) -> Job | None:
    """The job that a file was begun with, if one was."""
    path = job_path(output)
    if not path.exists():
        return None
    try:
        content = parse_json(path.read_text())
        if content.get("format_version") != VERSION:
            raise ValueError(f"format_version {content.get('format_version')}; valid: {VERSION}")
        return from_dict(Job, content)
    except (VitlabError, ValueError, AttributeError) as error:
        raise FileError(f"{path}: not a job ({error}); --overwrite starts anew") from error


def write_job(output: Path, job: Job) -> None:
    """Keep the job, whole or not at all."""
    write_json(job_path(output), to_dict(job))


def continued(job: Job, before: Job, output: Path, *, batch_size: int | None) -> Job:
    """The job as it was begun; an error where another was."""
    changes = {
        "another number of merged tokens": (
            before.merge_tokens,
            job.merge_tokens,
            before.merge_tokens == job.merge_tokens,
        ),
        "another engine": (before.engine, job.engine, before.engine == job.engine),
        "another model": (before.model, job.model, before.fingerprint == job.fingerprint),
        "other images": (_names(before), _names(job), before.images == job.images),
        "images written as": (
            " ".join(before.written[:3]),
            " ".join(job.written[:3]),
            not before.written or before.written == job.written,
        ),
        "another task": (before.task, job.task, before.task == job.task),
        "another top": (before.top, job.top, before.top == job.top),
        "another threshold": (
            before.threshold,
            job.threshold,
            before.threshold == job.threshold,
        ),
        "another batch size": (
            before.batch_size,
            batch_size,
            batch_size in (None, before.batch_size),
        ),
    }
    for what, (then, now, same) in changes.items():
        if not same:
            advice = f"--engine {then} continues, " if what == "another engine" else ""
            raise FileError(
                f"{output} was begun with {what} ({then}, now {now}); "
                f"{advice}--overwrite starts anew"
            )
    return replace(job, batch_size=before.batch_size, finished=before.finished)


def _names(job: Job) -> str:
    shown = [os.path.relpath(name) if os.path.isabs(name) else name for name in job.images[:3]]
    return " ".join([*shown, *(["…"] if len(job.images) > 3 else [])])
