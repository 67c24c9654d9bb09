"""Which source files one command enters: run as `tracer.py OUT.json WORDS...`.

A file counts if a function in it is called. The code of modules and classes, which runs on import,
does not count; neither do lambdas and comprehensions.
"""

import json
import os
import runpy
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
CO_OPTIMIZED = 1
"""The flag of code that is a function's, not a module's or a class's."""


def files_entered(words: list[str], folder: Path) -> tuple[set[str], set[str]]:
    """Files of vitlab in which `vitlab WORDS` calls a function, and files that it imports."""
    output = folder / "traced.json"
    subprocess.run(
        [sys.executable, __file__, str(output), *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "VITLAB_ONNX": "0"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    entered, imported = json.loads(output.read_text())
    return set(entered), set(imported)


def imported_files() -> list[str]:
    """Paths of the imported modules of vitlab, without `__init__.py`."""
    modules = [module for name, module in list(sys.modules.items()) if name[:7] == "vitlab."]
    paths = {str(module.__file__) for module in modules if getattr(module, "__file__", None)}
    return sorted(path for path in paths if not path.endswith("__init__.py"))


def trace(words: list[str]) -> tuple[list[str], list[str], object]:
    """Run a command in this process: files entered, files imported and the exit code."""
    spec = find_spec("vitlab")
    assert spec is not None
    folder = str(Path(str(spec.origin)).parent) + os.sep
    entered, code = set[str](), None

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            found = frame.f_code
            if found.co_flags & CO_OPTIMIZED and not found.co_name.startswith("<"):
                entered.add(found.co_filename)

    sys.argv = ["vitlab", *words]
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        runpy.run_module("vitlab", run_name="__main__", alter_sys=True)
    except SystemExit as left:
        code = left.code
    finally:
        sys.setprofile(None)
    return sorted(entered), imported_files(), code


if __name__ == "__main__":
    output, *given = sys.argv[1:]
    entered, imported, code = trace(given)
    Path(output).write_text(json.dumps([entered, imported]))
    sys.exit(code)
