"""Data hunger: a ViT and a small CNN that see equally many pictures, on shares of CIFAR-10.

    python benchmarks/data_hunger.py --data FOLDER_WITH_CIFAR --out runs/hunger

Every run sees the same number of pictures, whatever its share: of a small share it sees each more
often. Shares up to 10 % are drawn and trained with three seeds. Each run is measured once, on all
test pictures, and can be resumed; at the end OUT/data_hunger.json holds what the app shows.
"""

import argparse
import json
from pathlib import Path
from typing import Literal

from vitviz.training import Recipe, Stage, train

SEEN = 64_000  # pictures a run
HELD_OUT = 5000
TRAINING = 50_000 - HELD_OUT
SEEDS = {0.05: 3, 0.1: 3, 0.25: 1, 0.5: 1, 1.0: 1}
NETWORKS: dict[Literal["vit", "cnn"], dict[str, int]] = {
    "vit": dict(patch_size=4, embed_dim=128, depth=6, num_heads=4, mlp_dim=512, num_classes=10),
    "cnn": dict(width=16, num_classes=10),
}


def recipe(network: Literal["vit", "cnn"], share: float, seed: int) -> Recipe:
    return Recipe(
        model=f"{network}_{100 * share:.0f}_{seed}",
        dataset="cifar10",
        network=network,
        configuration=NETWORKS[network],
        stages=(Stage(image_size=32, epochs=SEEN / (share * TRAINING)),),
        held_out=HELD_OUT,
        share=share,
        seed=seed,
        style=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for share, seeds in SEEDS.items():
        for network in NETWORKS:
            for seed in range(seeds):
                run = recipe(network, share, seed)
                folder = arguments.out / run.model
                train(run, data=arguments.data, out=folder)
                curve = json.loads((folder / f"{run.model}.json").read_text())
                accuracy = curve["test_accuracy"]
                rows.append(dict(network=network, share=share, seed=seed, test_accuracy=accuracy))
                print(f"{network} {share:5.0%} seed {seed}: {accuracy:.2%}", flush=True)
    result = {"seen": SEEN, "pictures": TRAINING, "networks": NETWORKS, "runs": rows}
    (arguments.out / "data_hunger.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
