"""Run the fuzzers outside of pytest: `python -m fuzz [TARGET …] --seed 0 --cases 1000`.

Exit code 1 where a case failed. A single case runs again with `--first CASE --cases 1`.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VITLAB_ONNX", "0")
os.environ["VITLAB_DEBUG"] = "1"


def main() -> int:
    """Parse the command line, run the targets, and print the failures."""
    from fuzz.engine import fuzz
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--memory", type=float, default=6.0, help="GiB beyond those of the start")
    parser.add_argument("--folder", type=Path, help="where reproducers stay")
    given = parser.parse_args()
    names = [target.name for target in TARGETS]
    unknown = sorted(set(given.targets) - set(names))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; valid: {', '.join(names)}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="vitlab-fuzz-"))
    os.environ["VITLAB_DATA"] = os.environ["XDG_CACHE_HOME"] = str(folder / "home")
    limit_memory(given.memory)
    failed = 0
    for target in TARGETS:
        if given.targets and target.name not in given.targets:
            continue
        start = time.perf_counter()
        place = folder / f"{target.name}-{given.seed}"
        failures = fuzz(target, folder=place, seed=given.seed, cases=given.cases, first=given.first)
        took = time.perf_counter() - start
        print(f"{target.name}: {given.cases} cases, {took:.1f} s, {len(failures)} failures")
        for failure in failures:
            print(f"  {failure}", flush=True)
        failed += len(failures)
    return 1 if failed else 0


def limit_memory(gigabytes: float) -> None:
    """Bound the address space: what is in use once torch is imported, and so much more."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + int(gigabytes * (1 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
