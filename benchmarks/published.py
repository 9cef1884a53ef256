"""What papers say of their figures beside the same measures of weights that are on disk.

    python benchmarks/published.py MODEL --data PICTURES... [--out DIR]
    python benchmarks/published.py vit_small_patch14_dinov2 --checkpoint FILE --image-size 224 \
        --data PICTURES...
    python benchmarks/published.py --profile DIR [--profile DIR...]

MODEL is what `vitviz.load_model` takes, with its trained weights, those of --checkpoint, or with
--random none; its profile is kept in --out and used again from there. --profile prints profiles
that were made before. What stands for a paper is what its text, captions and tables say; where they
print no number, the words say so, and nothing is read off a plot. Prints Markdown; what it printed
of some weights is in benchmarks/published.md.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import vitviz
from vitviz import inspection
from vitviz.profiling import Profile, ProfileError

_LOCAL = 0.5  # a head is called local where it reaches less than half as far as equal sharing
_NORM = 150  # the length above which Darcet et al. call a token an outlier, of DINOv2 ViT-g


def side(profile: Profile) -> int:
    """Width of the input in pixels."""
    return int(profile.about["preprocessing"]["input_size"][1])


def equal_sharing(profile: Profile) -> float:
    """The distance in pixels of attention that is the same everywhere, in the first layer."""
    layer = profile.about["layers"][0]
    return float(inspection.uniform_distance(tuple(layer["query_grid"]), layer["patch_size"]))


def of_layer(values: np.ndarray) -> str:
    low, high = np.nanmin(values), np.nanmax(values)
    return f"{low:.1f} to {high:.1f} px"


def distances(profile: Profile) -> str:
    """Dosovitskiy et al., Fig. 7 right and 11: prefix columns cut off, as in their code."""
    found = profile.mean("distance_paper")
    half, width = len(found) // 2, side(profile)
    by_layer = ", ".join(f"{mean:.1f}" for mean in np.nanmean(found, axis=1))
    return (
        f"layer 1: heads from {of_layer(found[0])}; second half: {of_layer(found[half:])}; means "
        f"of the layers' heads {by_layer}; input {width} px, equal sharing "
        f"{equal_sharing(profile):.1f} px"
    )


def local_heads(profile: Profile) -> str:
    """Raghu et al., Fig. 3: how many heads are local in the two lowest and two highest layers."""
    found = profile.mean("distance") / equal_sharing(profile)
    lowest, highest = found[:2], found[-2:]
    counts = [int((each < _LOCAL).sum()) for each in (lowest, highest)]
    return (
        f"{counts[0]} of {lowest.size} heads of the two lowest layers are local and {counts[1]} of "
        f"{highest.size} of the two highest; they reach {np.nanmin(lowest):.2f} to "
        f"{np.nanmax(lowest):.2f} and {np.nanmin(highest):.2f} to {np.nanmax(highest):.2f} times "
        "as far as equal sharing"
    )


def most_local(profile: Profile) -> str:
    """Raghu et al., Fig. 4: the head of the two lowest layers that reaches least."""
    found = profile.mean("distance")[:2] / equal_sharing(profile)
    least = np.nanmin(found)
    return f"the most local head of the two lowest layers reaches {least:.2f} times as far"


def similarity(profile: Profile) -> str:
    """Raghu et al., Fig. 1: linear CKA between layers."""
    found = profile.cka()
    apart = found[~np.eye(len(found), dtype=bool)]
    third = max(1, len(found) // 3)
    return (
        f"mean of all pairs {np.nanmean(apart):.2f}, least {np.nanmin(apart):.2f}; lowest with "
        f"highest third {np.nanmean(found[:third, -third:]):.2f}; embedding with last layer "
        f"{found[0, -1]:.2f}"
    )


def skip_ratios(profile: Profile) -> str:
    """Raghu et al., Fig. 7: length of the skip connection by that of the branch."""
    said = []
    for branch in ("attention", "mlp"):
        means = profile.skip_ratio(branch).means  # (layers, prefix and patches)
        half = len(means) // 2
        for name, rows in (("first half", means[:half]), ("second half", means[half:])):
            prefix, patches = np.nanmean(rows, axis=0)
            said.append(f"{branch}, {name}: prefix {prefix:.3g}, patches {patches:.3g}")
    return "; ".join(said)


def outlier_share(profile: Profile) -> str:
    """Darcet et al., Fig. 3: tokens of the patches that are far longer than others at the end."""
    counts, edges = profile.norms
    last = counts[1, -1]
    bin_of_norm = int(np.searchsorted(edges, _NORM))
    above = last[bin_of_norm:].sum() / last.sum()
    middle = edges[np.searchsorted(np.cumsum(last), last.sum() / 2)]
    longest = edges[np.flatnonzero(last)[-1] + 1]
    share = profile.outlier_share.means[-1]
    return (
        f"{100 * share:.2f} % of the patches are at least five times as long as their picture's "
        f"median; {100 * above:.2f} % longer than {edges[bin_of_norm]:.0f}; median length about "
        f"{middle:.3g}, the longest at most {longest:.3g}"
    )


def outlier_depth(profile: Profile) -> str:
    """Darcet et al., Fig. 4a: after which layer outliers are there."""
    shares = 100 * profile.outlier_share.means
    most = int(np.nanargmax(shares))
    if shares[most] < 0.1:
        return f"no depth at which 0.1 % of the patches are outliers (most {shares[most]:.2f} %)"
    first = int(np.flatnonzero(shares >= 0.1)[0])
    return (
        f"0.1 % of the patches are outliers first after layer {first} of {len(shares) - 1}; most "
        f"after layer {most}, {shares[most]:.2f} %"
    )


def registers(profile: Profile) -> str:
    """Darcet et al., Fig. 7: models with register tokens."""
    prefix = profile.about["layers"][0]["prefix"]
    count = sum(name.startswith("reg") for name in prefix)
    if not count:
        return "no register tokens, so this cannot be shown"
    return f"{count} register tokens, {100 * profile.outlier_share.means[-1]:.2f} % outliers"


def least_distance(profile: Profile) -> str:
    """arXiv 2605.16390: the least mean attention distance of a head."""
    found = profile.mean("distance")
    layer, head = np.unravel_index(np.nanargmin(found), found.shape)
    height, width = profile.about["preprocessing"]["input_size"]
    least, of_first = float(found[layer, head]), float(np.nanmin(found[0]))
    diagonal = float(np.hypot(height, width))
    return (
        f"{least / width:.3f} of the side or {least / diagonal:.3f} of the diagonal (layer "
        f"{layer + 1}, head {head + 1}); in layer 1 {of_first / width:.3f} of the side"
    )


#: Paper and figure, what its text says, and the same of a profile.
FIGURES: tuple[tuple[str, str, Callable[[Profile], str]], ...] = (
    (
        "Dosovitskiy et al. 2021, Fig. 7 right and Fig. 11: attention distance by depth",
        "128 images of 224 px, 16 heads a layer. In the lowest layers some heads attend to most of "
        "the image and others stay near the query; distance grows with depth for all heads, and in "
        "the second half most attend widely. No distance is printed.",
        distances,
    ),
    (
        "Raghu et al. 2021, Fig. 1: similarity of layers (CKA)",
        "ViT-L/16 and ViT-H/14: a relatively uniform structure, with large similarity between "
        "lower and higher layers. No value is printed. Their heatmap has intermediate activations, "
        "too; here it is the tokens after whole layers.",
        similarity,
    ),
    (
        "Raghu et al. 2021, Fig. 3: local and global heads",
        "ViT-L/16 and ViT-H/14 pre-trained on JFT-300M, means over 5000 images: the two lowest "
        "layers have both local and global heads, and in the two highest all heads are global. No "
        "distance is printed; to call a head local where it reaches less than half as far as equal "
        "sharing is ours.",
        local_heads,
    ),
    (
        "Raghu et al. 2021, Fig. 4: the same with less training data",
        "ViT-L/16 and ViT-H/14 trained on ImageNet alone: the lower layers do not learn to attend "
        "locally. No distance is printed. Below in distances of equal sharing.",
        most_local,
    ),
    (
        "Raghu et al. 2021, Fig. 7: length of the skip connection by that of the branch",
        "ViT-B/16 trained on ImageNet: in the first half of the network the ratio is high for CLS "
        "and lower for the patches; in the second half it is the other way round. No ratio is "
        "printed.",
        skip_ratios,
    ),
    (
        "Darcet et al. 2024, Fig. 3: lengths of tokens at the output",
        "DINOv2 ViT-g/14: 2.37 % of the tokens are longer than 150, most lie between 0 and 100; "
        "outliers are about 10 times as long as others and about 2 % of the tokens. DINO ViT-B/16 "
        "has none.",
        outlier_share,
    ),
    (
        "Darcet et al. 2024, Fig. 4: where outliers appear",
        "DINOv2 ViT-g: from around layer 15 of 40, after a third of the training, and only in the "
        "three largest of six sizes (L, H and g). OpenCLIP and DeiT-III have outliers at sizes B "
        "and L. At how large a share outliers count as there, 0.1 %, is ours.",
        outlier_depth,
    ),
    (
        "Darcet et al. 2024, Fig. 7: with register tokens",
        "DINOv2, OpenCLIP and DeiT-III trained with registers: the outliers are gone. No number is "
        "printed in the text.",
        registers,
    ),
    (
        "arXiv 2605.16390: least mean attention distance of a head, trained on CIFAR-100",
        "0.316 with a plain protocol and 0.008 with a modern one; at most 0.024 in every condition "
        "with CutMix, at least 0.210 in every one without. The abstract, which is all that was "
        "read, does not say of what length these are shares.",
        least_distance,
    ),
)


def described(profile: Profile) -> str:
    about = profile.about
    measured = about["pictures"] - about["skipped"]
    found = f"{about['provenance']}; {measured:,} pictures"
    if about.get("source"):
        found += f" of {about['source']}"
    if profile.accuracy is not None:
        found += f"; {100 * profile.accuracy[0]:.2f} % of {profile.labelled:,} labels right"
    return f"{found}; proof error {about['proof_error']:.0e}"


def report(profiles: Sequence[Profile]) -> str:
    """Markdown: for each figure what the paper's text says, and a line for each profile."""
    letters = [chr(ord("A") + number) for number in range(len(profiles))]
    lines = ["| | weights and pictures |", "|---|---|"]
    for letter, one in zip(letters, profiles, strict=True):
        lines.append(f"| {letter} | {described(one)} |")
    for title, says, measure in FIGURES:
        lines += ["", f"## {title}", "", says, "", "| | here |", "|---|---|"]
        for letter, one in zip(letters, profiles, strict=True):
            lines.append(f"| {letter} | {measured(one, measure)} |")
    return "\n".join(lines)


def measured(profile: Profile, measure: Callable[[Profile], str]) -> str:
    try:
        return measure(profile)
    except ProfileError as error:
        return f"not known: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("model", nargs="?", help="what load_model takes")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights of a local file")
    parser.add_argument("--random", action="store_true", help="random weights")
    parser.add_argument("--image-size", type=int, metavar="N", help="pixels of a side")
    parser.add_argument("--data", nargs="+", default=[], metavar="PICTURES", help="as of profile")
    parser.add_argument("--limit", type=int, metavar="N", help="so many pictures, by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the profile")
    parser.add_argument(
        "--profile", action="append", default=[], metavar="DIR", help="a profile made before"
    )
    arguments = parser.parse_args()
    if bool(arguments.model) != bool(arguments.data):
        parser.error("a model needs --data, and --data a model")
    try:
        profiles = [vitviz.load_profile(folder) for folder in arguments.profile]
        if arguments.model:
            model = vitviz.load_model(
                arguments.model,
                checkpoint=arguments.checkpoint,
                image_size=arguments.image_size,
                pretrained=not arguments.random,
            )
            profiles.append(
                vitviz.profile(
                    model,
                    arguments.data,
                    limit=arguments.limit,
                    seed=arguments.seed,
                    out=arguments.out,
                    resume=arguments.out is not None,
                )
            )
    except (ProfileError, vitviz.ModelError) as error:
        parser.error(str(error))
    if not profiles:
        parser.error("name a model, or a profile")
    print(report(profiles))
    return 0


if __name__ == "__main__":
    sys.exit(main())
