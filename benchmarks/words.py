"""What 50 phrases cost: seconds and memory of the text tower of CLIP ViT-B/32.

    python benchmarks/words.py [--model ViT-B-32] [--phrases 50]
    python benchmarks/words.py --parity

With --parity it prints instead how far logits lie from the library's own, for every configuration
of tests/test_text_towers.py, with random weights.

The weights are random and drawn in open_clip's own shapes. The first line is the building of both
towers; the others are the phrases in one template and in three, and the map of words of a picture.
Memory is the largest of the process so far.

On two cores that other programs kept busy (load 10), times are upper bounds:

    both towers                 2.24 s      1357 MB at most
    50 phrases                 14.03 s      1538 MB at most
    50 x 3 templates           35.52 s      1611 MB at most
    map of words               16.92 s      1611 MB at most
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
from PIL import Image

import vitviz
from vitviz.intervention import word_map

THREE = ("a photo of a {}.", "a close-up photo of a {}.", "a drawing of a {}.")


def clock(what: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = call()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:24}{time.perf_counter() - start:8.2f} s  {peak:8.0f} MB at most", flush=True)
    return result


def print_parity() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from test_text_towers import ALL, largest_differences

    print(f"{'library':14}{'configuration':34}{'phrases':>11}{'longest':>11}{'templates':>11}")
    for library, name in ALL:
        found = largest_differences(library, name)
        print(f"{library:14}{name:34}" + "".join(f"{each:11.1e}" for each in found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--phrases", type=int, default=50)
    parser.add_argument("--parity", action="store_true")
    given = parser.parse_args()
    if given.parity:
        print_parity()
        return
    module = clock("both towers", lambda: open_clip.create_model(given.model, load_weights=False))
    how = vitviz.Preprocessing(input_size=(224, 224), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = vitviz.watch(module, preprocessing=how)
    phrases = [f"a thing with the number {number}" for number in range(given.phrases)]
    asked = clock(f"{given.phrases} phrases", lambda: model.with_words(phrases))
    clock(f"{given.phrases} x 3 templates", lambda: model.with_words(phrases, THREE))
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    clock("map of words", lambda: word_map(asked, Image.fromarray(noise)))


if __name__ == "__main__":
    main()
