"""Attention distance of a model that is not shipped, recorded for the page Distance.

    python benchmarks/reference_distance.py ARCHITECTURE FILE --name NAME > RECORD.json

ARCHITECTURE is a name of timm and FILE its weights. Prints JSON: the mean over the sample pictures
of each head's attention distance, renormalised, as a share of the side of the model's input.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

import vitviz
from vitviz import inspection

SAMPLES = Path(__file__).parents[1] / "assets" / "samples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture")
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", required=True, help="what the page calls the model")
    parser.add_argument("--about", default="", help="a sentence on where the weights come from")
    arguments = parser.parse_args()
    model = vitviz.load_model(arguments.architecture, checkpoint=arguments.file)
    found = []
    for path in sorted(SAMPLES.glob("*.jpg")):
        acts = vitviz.capture(model, Image.open(path).convert("RGB"))
        found.append(inspection.attention_distance(acts))
    side = max(model.preprocess.input_size)
    shares = np.mean(found, axis=0) / side
    words = (
        f"{arguments.name}, measured on {len(found)} sample pictures at {side} x {side} pixels and "
        f"recorded, as the model is not shipped. {arguments.about}"
    )
    record = {
        "model": arguments.name,
        "about": words.strip(),
        "weights": model.weights,
        "distance": np.round(shares, 4).tolist(),
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
