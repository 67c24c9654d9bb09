"""Run the golden cases against a checkout and collect what they print and write."""

import atexit
import json
import os
import platform
import runpy
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from golden.cases import Case
from golden.material import write_material
from golden.normal import VOLATILE, clean, lines, read

CALLS = Path(__file__).with_name("calls.py")
LIMIT = 600
"""Seconds after which a command is ended."""


def environment(source: Path, work: Path) -> dict[str, str]:
    """The environment of every command: one thread, no network, no cache of the user."""
    kept = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join([str(source / "src"), str(CALLS.parents[1])]),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "VITLAB_BFLOAT16": "0",
        "VITLAB_ONNX": "0",
        "HF_HUB_OFFLINE": "1",
        "GIT_DIR": str(work / "no-repository"),  # runs and reports name no commit
        "HOME": str(work / "home"),
        "XDG_CACHE_HOME": str(work / "home" / "cache"),
        "MPLCONFIGDIR": str(work / "home" / "matplotlib"),
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "TZ": "UTC",
    }


def record(cases: list[Case], source: Path, work: Path) -> dict[str, Any]:
    """Run the cases one after another in `work` and return the whole record."""
    preload()
    folder = work / "work"
    folder.mkdir()
    write_material(folder)
    folders = {str(folder): "<work>", str(work): "<temporary>", str(source): "<source>"}
    entries: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for case in cases:
        code, used = run(case, folder, work)
        entries[case.name] = {"exit": code, **collect(case, folder, work, folders)}
        seconds[case.name] = round(used, 2)
        print(f"{case.name}: exit {code}, {seconds[case.name]} s", file=sys.stderr)
    return {"machine": machine(), "seconds": seconds, "entries": entries}


def preload() -> None:
    """Import torch and what else is slow once; every command is a fork of this process."""
    for name in ("torch", "torch._dynamo", "numpy", "PIL.Image", "einops", "typer", "rich.console"):
        __import__(name)
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", "onnxruntime"):
        with suppress(ImportError):
            __import__(name)


def machine() -> dict[str, str]:
    """What decides the last bits besides the code."""
    import numpy as np
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "processor": platform.machine(),
    }


def run(case: Case, folder: Path, work: Path) -> tuple[int, float]:
    """Run one case in a process of its own and return its exit code and seconds of computing."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            code = _inside(case, folder, work)
        except BaseException:
            traceback.print_exc()
            code = 70
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _inside(case: Case, folder: Path, work: Path) -> int:
    signal.alarm(LIMIT)
    os.chdir(folder)
    (work / "stdin").write_text(case.stdin)
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        mode = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(work / name, mode, 0o600), number)
    sys.argv = ["vitlab", *case.words] if case.words else [str(CALLS), case.call]
    try:
        if case.words:
            runpy.run_module("vitlab", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(CALLS), run_name="__main__")
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    atexit._run_exitfuncs()
    return code


def collect(case: Case, folder: Path, work: Path, folders: dict[str, str]) -> dict[str, Any]:
    """Output, messages and files of a case that was just run."""
    printed = (work / "stdout").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    try:
        parsed = clean(json.loads(printed), folders, VOLATILE | {*case.drop})
        found["json"] = outline(parsed) if case.outline else parsed
    except ValueError:
        found["printed"] = lines(printed, folders)
    found["messages"] = lines((work / "stderr").read_text(encoding="utf-8"), folders)
    paths = sorted({path for pattern in case.files for path in folder.glob(pattern)})
    found["files"] = {
        str(path.relative_to(folder)): read(path, folders) for path in paths if path.is_file()
    }
    return found


def outline(value: Any) -> Any:
    """A JSON value with the name of its type in place of each number and text."""
    if isinstance(value, dict):
        return {key: outline(item) for key, item in value.items()}
    if isinstance(value, list):
        return [outline(item) for item in value]
    return type(value).__name__
