"""Forward, backward and AdamW on the CPU: vitlab's step against its peers in a plain loop.

    python benchmarks/training.py
    python benchmarks/training.py --only vit_ti16 --rounds 20 --json training.json

The same weights, images and settings; before anything is timed, all must have the same losses over
the first steps. `VITLAB_RUNTIME=plain` switches off what `vitlab/runtime.py` chooses. A ratio
is their time divided by ours: above 1 we are faster. Needs the extra `dev`.
"""

from peers import parser, run

SETTINGS = {"vit_cifar_pure": 128, "vit_ti16": 32}
"""Images of one step."""


def main() -> None:
    """Measure both networks."""
    options = parser(str(__doc__), rounds=12, seconds=6.0)
    options.add_argument("--only", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    chosen = options.parse_args()
    run("training", [(model, SETTINGS[model]) for model in chosen.only], chosen)


if __name__ == "__main__":
    main()
