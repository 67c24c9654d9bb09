"""The numbers of the paper's figures in Python, and the steps of one attention head.

    python docs/examples/figures.py

Writes into the current folder. The model here has random weights, so that it runs anywhere; put a
run, a bundle or a weight file of yours in its place.
"""

import vitlab

found = vitlab.figures("vit_test", images=8, only=["positions", "attention-distance", "cka"])
for layer in found["attention-distance"]["layers"]:
    print(
        "layer", layer["layer"], "looks", [round(head, 1) for head in layer["distance"]], "pixels"
    )
print("layers compared:", found["cka"]["layers"])

walked = vitlab.walkthrough("sample/test/117", "head.html", model="vit_test", layer=1, token=(1, 2))
weights = walked.walk.head.weights[walked.walk.query]
print("weights of", len(weights), "tokens sum to", round(float(weights.sum()), 6))
assert walked.walk.difference < 1e-5
