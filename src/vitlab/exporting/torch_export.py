"""`torch.export` files: the graph and its weights, for torch itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from vitlab.errors import ConfigError
from vitlab.exporting.program import quiet
from vitlab.exporting.verify import Run


def write_program(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the graph; `torch.export.load(path, extra_files=…)` returns the metadata."""
    with quiet():
        torch.export.save(program, str(path), extra_files=dict(metadata))


def run_program(path: Path) -> Run:
    """Function that runs the file."""
    with quiet():
        module = torch.export.load(str(path)).module()
    return lambda images: module(torch.from_numpy(images)).detach().numpy()


# AOTInductor packages: the model compiled for this kind of machine, for torch's runtime.


def write_package(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    """Compile the graph with the system's compiler and write it."""
    inductor: Any = torch._inductor
    settings = {
        "aot_inductor.metadata": dict(metadata),
        "freezing": True,
        "cpp.dynamic_threads": True,  # else the number of threads here is compiled in
    }
    try:
        with quiet():
            inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=settings
            )
    except inductor.exc.CppCompileError as error:
        raise _no_compiler(error) from error


def run_package(path: Path) -> Run:
    """Function that runs the package."""
    package = load_package(path)
    return lambda images: package(torch.from_numpy(images)).detach().numpy()


def load_package(path: Path, *, callers: int = 1) -> Any:
    """Load the package for `callers` at once; it is code, so its origin must be trusted."""
    with quiet():
        from torch._inductor.package.package import load_package as load  # public: no callers

        return load(str(path), num_runners=callers)


def require_compiler() -> None:
    """Raise for a missing compiler before anything is read or written."""
    try:
        with quiet():
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
    except Exception as error:
        raise _no_compiler(error) from error


def _no_compiler(error: Exception) -> ConfigError:
    return ConfigError(
        f"an AOTInductor package needs a C++ compiler, and none works ({_reason(error)}); "
        f"install one (on Linux: g++), or use --format onnx or torch-export"
    )


def _reason(error: BaseException) -> str:
    """Root cause of the error, its first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__
