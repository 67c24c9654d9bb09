"""Ways to compute DeiT-Ti in 8 bits: which answers stay the same, and how fast each is.

    python benchmarks/quantize.py
    python benchmarks/quantize.py --images 300 --json quantize.json

Every way is compared with the float32 file on the same photos, with one thread; speed is the
processor's time of the float32 file divided by that of the quantised one.
Needs the extra `export`, and real weights and photos (`deit.py` says where).
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from deit import BATCH, WEIGHTS, photos
from numpy.typing import NDArray

from vitlab.classify.engines.runtimes import run_onnx
from vitlab.exporting.quantize import Policy, write_int8
from vitlab.jobs.export import export

CALIBRATED = 64
WAYS = {
    "signed, 7 bits, per channel": Policy(),
    "signed, 8 bits, per channel": Policy(reduce_range=False),
    "unsigned, 8 bits, per channel": Policy(signed=False, reduce_range=False),
    "signed, 7 bits, per tensor": Policy(per_channel=False),
}
"""The first is what `vitlab export --quantize int8` does."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1500 - CALIBRATED)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    images, truth = photos(given.images + CALIBRATED)
    calibration = [
        images[first : first + BATCH] for first in range(given.images, len(images), BATCH)
    ]
    images, truth = images[: given.images], truth[: given.images]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "float.onnx"
        export(WEIGHTS, output=plain)
        wanted, seconds = answers(plain, images)
        print(f"float32: accuracy {(wanted.argmax(1) == truth).mean():.2%}, {len(images)} images")
        for kind, calibrated in (("dynamic", None), ("static", calibration)):
            for name, policy in WAYS.items():
                file = Path(shutil.copy(plain, Path(folder) / "int8.onnx"))
                write_int8(file, {}, calibrated, policy=policy)
                found, spent = answers(file, images)
                rows.append(
                    {
                        "way": f"{kind}: {name}",
                        "agreement": float((found.argmax(1) == wanted.argmax(1)).mean()),
                        "accuracy": float((found.argmax(1) == truth).mean()),
                        "error": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
                        "speed": seconds / spent,
                    }
                )
                print(told(rows[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


def answers(file: Path, images: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """The logits, and the seconds of one core that they took."""
    run = run_onnx(file)
    run(images[:BATCH])
    start = time.process_time()
    found = [run(images[first : first + BATCH]) for first in range(0, len(images), BATCH)]
    return np.concatenate(found), time.process_time() - start


def told(row: dict[str, Any]) -> str:
    return (
        f"{row['way']:40} same class {row['agreement']:.2%}, accuracy {row['accuracy']:.2%}, "
        f"error {row['error']:.1%}, speed {row['speed']:.2f}"
    )


if __name__ == "__main__":
    main()
