"""Parts on a Ray cluster: Ray Data hands their numbers to workers that hold the model.

Workers write the parts themselves, like the processes of any other launcher. Needs the extra `ray`.
"""

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from vitlab.errors import FileError, InputError, MissingExtra, VitlabError, one_line
from vitlab.jobs.parts.parts import MOST_THREADS, Done, PartsJob, computed_here
from vitlab.machine.world import check_alone

LOCAL = "local"
"""Address of a cluster on this machine, which ends with the command."""
TIMEOUT = 10.0
"""Seconds in which a cluster must answer."""
NUMBER, IMAGES, FAILED, ERROR = "number", "images", "failed", "error"
"""Columns of what workers get and return; an error is that of a user."""


Compute = Callable[[Sequence[int]], Iterator[Done]]
"""Computes the parts with these numbers."""


def computing(job: PartsJob, open_job: Callable[[], PartsJob], address: str | None) -> Compute:
    """Computation in this process, or by workers of a cluster that open the job themselves."""
    if address is None:
        return partial(computed_here, job)
    check_alone("--ray", "valid: one")
    return partial(computed_on_ray, address, open_job)


class Worker:
    """A process of the cluster; it opens the model with its first part."""

    def __init__(self, open_job: Callable[[], PartsJob], folder: str) -> None:
        """`folder` is the one in which the command was started."""
        self._open, self._folder = open_job, folder
        self._job: PartsJob | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Compute the parts with these numbers."""
        images, error = 0, ""
        failed: list[tuple[str | None, str]] = []
        try:
            for number in batch[NUMBER].tolist():
                for done in self._opened().compute(number):
                    images += done.images
                    failed += done.failed
        except VitlabError as found:
            error = str(found)
        return {IMAGES: [images], FAILED: [json.dumps(failed)], ERROR: [error]}

    def _opened(self) -> PartsJob:
        if self._job is None:
            try:
                os.chdir(self._folder)
            except OSError as error:
                raise FileError(
                    f"{self._folder}: {error.strerror}; valid: a folder of all machines"
                ) from error
            self._job = self._open()
        return self._job


def computed_on_ray(
    address: str, open_job: Callable[[], PartsJob], numbers: Sequence[int]
) -> Iterator[Done]:
    """Compute parts on a cluster, `local` or at an address; yields after each part."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it warns of every dataset's workers
    ray = _import()
    try:
        _reach(address)
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"--ray {address}: {one_line(error)}") from error
    try:
        for row in _dataset(ray, open_job, numbers).iter_rows():
            if row[ERROR]:
                raise InputError(row[ERROR])
            yield Done(row[IMAGES], [(path, reason) for path, reason in json.loads(row[FAILED])])
    finally:
        ray.shutdown()


def _import() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("ray", "--ray") from None
    for name in ("ray.data", "ray.data.exceptions"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ray


def _reach(address: str) -> None:
    """Raise unless a cluster answers; Ray tries for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), TIMEOUT).close()


def _dataset(ray: Any, open_job: Callable[[], PartsJob], numbers: Sequence[int]) -> Any:
    """Dataset whose rows are the results of the parts."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    gpus = int(ray.cluster_resources().get("GPU", 0))
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    threads = max(min([MOST_THREADS, *filter(None, cores)]), 1)
    workers = gpus or sum(count // threads for count in cores) or 1
    needs = {"num_gpus": 1} if gpus else {"num_cpus": threads}
    rows = [{NUMBER: number} for number in numbers]
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Worker,
        fn_constructor_args=(open_job, os.getcwd()),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(workers, len(rows))),
        **needs,
    )
