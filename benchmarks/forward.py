"""Eager forward pass on the CPU: vitlab against timm, transformers and vit-pytorch, same weights.

    python benchmarks/forward.py
    python benchmarks/forward.py --models vit_ti16 --batch 1 8 64 --rounds 30 --json forward.json

A ratio is their time divided by ours: above 1 we are faster. Needs the extra `dev`.
"""

from itertools import product

from networks import MODELS
from peers import parser, run


def main() -> None:
    """Measure every model at every batch size."""
    options = parser(str(__doc__), rounds=15, seconds=0.5)
    options.add_argument("--models", nargs="+", default=["vit_ti16", "vit_b16"], choices=MODELS)
    options.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    chosen = options.parse_args()
    run("forward", list(product(chosen.models, chosen.batch)), chosen)


if __name__ == "__main__":
    main()
