"""`vitlab demo`."""

import json

from command import Command


def test_the_demo_shows_a_model_and_the_shapes_of_one_image(command: Command) -> None:
    outcome = command("demo")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Parameters: 7,690,762" in outcome.out
    shapes = json.loads(command("demo", "--json").out)["shapes"]
    assert shapes == {
        "images": [1, 3, 32, 32],
        "logits": [1, 10],
        "attention of layer 0": [1, 12, 5, 5],
    }
