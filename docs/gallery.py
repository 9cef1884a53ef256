"""Draw every figure of `vitviz.plots` with the model that opens first.

    python docs/gallery.py FOLDER

writes gallery.html, and plotly.min.js that it loads, into the folder.
"""

import argparse
import inspect
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from plotly.offline import get_plotlyjs

import vitviz
from vitviz import attribution, inspection, intervention, plots
from vitviz.activations import FillPatches, MuteHeads, edited_input
from vitviz.common import DEFAULT_MODEL, SMALL_MODEL
from vitviz.common.files import assets
from vitviz.zoo.toys import toy_model

if TYPE_CHECKING:
    import plotly.graph_objects as go

LAYER, HEAD, PATCH = 5, 2, (6, 8)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Gallery of vitviz.plots</title>
<meta name="viewport" content="width=device-width">
<script src="plotly.min.js"></script>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(28rem, 1fr)); gap: 2rem }}
h2 {{ font: 600 1.1rem monospace }} p, figure {{ margin: 0 }}
section {{ min-width: 0 }}
</style></head><body>
<h1>Gallery of <code>vitviz.plots</code></h1>
<p>Every function on real numbers: {provenance}, a sample picture, and recorded training runs.
<a href="vitviz/plots.html">Reference</a></p>
<main>
{figures}
</main></body></html>
"""


def figures() -> Mapping[str, Callable[[], "go.Figure"]]:
    """Return the functions that draw the figures, by the names of `vitviz.plots`."""
    model = vitviz.load_model(DEFAULT_MODEL)
    image = vitviz.open_image((assets() / "samples" / "dog.jpg").read_bytes())
    acts = vitviz.capture(model, image)
    answers, labels = _answers(acts), acts.output_names
    top = int(answers.argmax())
    grid, crop, name = acts.grid, acts.crop, labels[top]
    parts = attribution.direct_logit_attribution(model, image, top)

    mask = np.zeros(grid, bool)
    mask[5:10, 5:10] = True
    hidden = [FillPatches(mask, "blur")]
    muted = [(0, 1), (3, 2)]
    changed = _answers(vitviz.capture(model, image, edits=[MuteHeads(muted)]))
    crossed = np.zeros((acts.depth, acts.num_heads), bool)
    crossed[tuple(np.transpose(muted))] = True

    kernel, table = model.patch_kernel, model.position_embedding
    assert kernel is not None
    assert table is not None
    components, explained = inspection.filter_components(kernel)
    similarity = inspection.position_similarity(table, grid=grid)
    relevance = attribution.relevance(model, image, top)
    class_maps = {"relevance": relevance, "Grad-CAM": attribution.grad_cam(model, image, top)}
    untrained = vitviz.load_model(DEFAULT_MODEL, pretrained=False, seed=0)
    mimetic = vitviz.load_model(DEFAULT_MODEL, pretrained=False, initialisation="mimetic")
    equal = inspection.uniform_distance(grid, acts.patch_size)
    starts = {
        called: inspection.attention_distance(vitviz.capture(start, image)).ravel() / equal
        for called, start in (("plain", untrained), ("mimetic", mimetic))
    }
    judged = vitviz.load_faithfulness(SMALL_MODEL)
    now, before = acts.measure(), vitviz.capture(untrained, image).measure()
    strongest = now.query_attention.reshape(-1, grid[0] * grid[1]).argmax(axis=1)
    wide, high = (crop[2] - crop[0]) / grid[1], (crop[3] - crop[1]) / grid[0]
    left, above = crop[0] + PATCH[1] * wide, crop[1] + PATCH[0] * high
    moose = vitviz.open_image((assets() / "samples" / "moose.jpg").read_bytes())
    others = vitviz.capture(model, moose)
    exchanged = intervention.patch_heads(model, [(image, moose)])
    alike = inspection.cross_similarity(acts, others)
    matches = inspection.mutual_matches(alike)
    both = inspection.joint_components(acts, others)[:2]
    distances = [one.distance / max(model.preprocess.input_size) for one in (before, now)]
    side, bits = max(model.preprocess.input_size), math.log2(len(acts.tokens(0)))

    swin = toy_model("Swin")
    shifted = vitviz.capture(swin, image)
    pairs = [inspection.allowed_pairs(shifted.attention(layer)) for layer in range(shifted.depth)]
    mixing = toy_model("MLP-Mixer").token_mixing(0)[:14]
    sides = (112, 224, 448, 896)
    tokens = [(side // 16) ** 2 for side in sides]
    costs = [inspection.multiply_adds(count, embed_dim=768, mlp_dim=3072) for count in tokens]

    def curve(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = intervention.deletion_curve(model, image, values, target=top, steps=8)
        return found.shares, found.probabilities

    chance = intervention.random_curve(
        intervention.deletion_curve, model, image, target=top, steps=8
    )

    def run(called: str) -> Any:
        return json.loads((assets() / "curves" / f"{called}.json").read_text(encoding="utf-8"))

    def hunger() -> "go.Figure":
        found = run("data_hunger")
        points: dict[str, list[tuple[float, float, float]]] = {}
        for one in sorted(found["runs"], key=lambda one: one["share"]):
            if one["seed"] == 0:
                error = 1.96 * math.sqrt(one["test_accuracy"] * (1 - one["test_accuracy"]) / 10_000)
                place = round(one["share"] * found["pictures"])
                points.setdefault(one["network"], []).append((place, one["test_accuracy"], error))
        return plots.data_hunger(points)

    return {
        "allowed_keys": lambda: plots.allowed_keys(
            inspection.allowed_pairs(shifted.attention_map(1, (1, 1))[:, None])[0],
            image,
            crop=shifted.crop_of(1),
            grid=shifted.layers[1].query_grid,
            query=(1, 1),
            query_name="the patch at row 2, column 2",
        ),
        "allowed_pairs": lambda: plots.allowed_pairs(
            pairs,
            titles=[f"Swin, layer {number + 1}" for number in range(len(pairs))],
            chosen=[None] * len(pairs),
            prefixes=[()] * len(pairs),
        ),
        "answer_change": lambda: plots.answer_change(answers, changed, labels, k=4),
        "attention_cost": lambda: plots.attention_cost(
            sides, tokens, dict(zip(("A", "the rest"), zip(*costs, strict=True), strict=True))
        ),
        "attention_distance": lambda: plots.attention_distance(acts, selected=(LAYER, HEAD)),
        "attention_map": lambda: plots.attention_map(acts, LAYER, HEAD, query=PATCH),
        "attention_rollout": lambda: plots.attention_rollout(acts),
        "class_probabilities": lambda: plots.class_probabilities(acts),
        "conditions": lambda: plots.conditions(
            starts, axis="distance of heads before training, % of equal sharing", reference=1.0
        ),
        "data_hunger": hunger,
        "distance_by_layer": lambda: plots.distance_by_layer(
            now.distance / side,
            before.distance / side,
            equal_sharing=inspection.uniform_distance(grid, acts.patch_size) / side,
        ),
        "distance_by_depth": lambda: plots.distance_by_depth(
            [one.mean(axis=1) for one in distances],
            names=["random weights", "trained"],
            equal_sharing=[
                np.full(acts.depth, inspection.uniform_distance(grid, acts.patch_size) / side)
            ]
            * 2,
        ),
        "distance_difference": lambda: plots.distance_difference(
            now.distance - before.distance, unit="px", names=("random weights", "trained")
        ),
        "distance_histogram": lambda: plots.distance_histogram(acts, LAYER, HEAD),
        "for_paper": lambda: plots.for_paper(plots.attention_map(acts, LAYER, HEAD, query=PATCH)),
        "head_grid": lambda: plots.head_grid(acts, LAYER, query=PATCH),
        "enlarged": lambda: plots.enlarged(plots.class_probabilities(acts), 1.25),
        "entropy_by_layer": lambda: plots.entropy_by_layer(
            now.entropy / bits, before.entropy / bits
        ),
        "filter_components": lambda: plots.filter_components(components, explained),
        "filter_product": lambda: plots.filter_product(
            model.preprocess(image).numpy()[:, : components.shape[2], : components.shape[3]],
            components[0],
            names=("the first patch", "component 1"),
        ),
        "filter_response": lambda: plots.filter_response(
            inspection.filter_response(model.preprocess(image).numpy(), components[0]),
            image,
            crop=crop,
            name="component 1",
        ),
        "word_map": lambda: plots.word_map(  # of what the heads of a layer write for the answer
            parts.by_token[LAYER, :, acts.num_prefix_tokens :].sum(axis=0).reshape(grid),
            image,
            crop=crop,
            title=f"part of the logit of {name}",
            signed=True,
        ),
        "parts_by_head": lambda: plots.parts_by_head(parts.heads, name=name),
        "filter_tile": lambda: plots.filter_tile(components[0], name="Component 1"),
        "filters": lambda: plots.filters(kernel[:48]),
        "guesses": lambda: plots.guesses(  # each head's strongest patch for CLS is its guess
            np.bincount(strongest, minlength=grid[0] * grid[1]).reshape(grid), image, crop=crop
        ),
        "guesses_of_percent": lambda: plots.guesses_of_percent({40: 3, 55: 8, 60: 5, 70: 2}),
        "guesses_by_layer": lambda: plots.guesses_by_layer(
            Counter(now.distance.argmin(axis=0).tolist()), acts.depth
        ),
        "joint_components": lambda: plots.joint_components(
            (both[0].reshape(*grid, 3), both[1].reshape(*grid, 3)),
            (image, moose),
            crops=(crop, others.crop),
        ),
        "judged_maps": lambda: plots.judged_maps(
            {map_: interval[:3] for map_, interval in judged.means["insertion_drop"].items()},
            measure="Insertion",
            unit="area",
            better=[
                map_ for map_ in judged.maps if judged.is_better("insertion_drop", map_, "random")
            ],
            chance="random",
        ),
        "logit_lens": lambda: plots.logit_lens(intervention.logit_lens(model, acts), labels),
        "muted_heads": lambda: plots.muted_heads(
            crossed, effects=intervention.head_effects(model, image)[..., top], name=name
        ),
        "mutual_matches": lambda: plots.mutual_matches(
            matches,
            alike[tuple(matches.T)],
            (image, moose),
            crops=(crop, others.crop),
            grid=grid,
        ),
        "occlusion": lambda: plots.occlusion(
            intervention.occlusion(model, image, target=top, block=4),
            image,
            crop=crop,
            name=name,
            block=4,
        ),
        "offset_attention": lambda: plots.offset_attention(acts, LAYER, HEAD),
        "patch_effects": lambda: plots.patch_effects(
            exchanged.mean, [str(number + 1) for number in range(acts.num_heads)], axis="head"
        ),
        "patch_answers": lambda: plots.patch_answers(
            intervention.patch_lens(model, acts, acts.depth),
            image,
            crop=crop,
            labels=labels,
            index=top,
        ),
        "picture": lambda: plots.picture(acts, query=PATCH),
        "position_profile": lambda: plots.position_profile(
            inspection.position_profile(similarity, position=PATCH), position=PATCH
        ),
        "position_similarity": lambda: plots.position_similarity(similarity, position=PATCH),
        "position_tile": lambda: plots.position_tile(similarity, position=PATCH),
        "ranked_maps": lambda: plots.ranked_maps(
            {called: inspection.patch_ranks(values) for called, values in class_maps.items()},
            image,
            crop=crop,
            values=class_maps,
        ),
        "receptive_fields": lambda: plots.receptive_fields(
            image, crop=crop, grid=grid, patch=PATCH, pixel=(crop[2] - crop[0]) / side
        ),
        "relevance": lambda: plots.relevance(relevance, image, crop=crop, name=name),
        "removal_curves": lambda: plots.removal_curves(
            {
                "relevance": curve(relevance),
                "random": (chance.shares, chance.probabilities),
            },
            name=name,
            putting_back=False,
            ranges={"random": (chance.low, chance.high)},
        ),
        "removed_patches": lambda: plots.removed_patches(
            edited_input(model, image, hidden), crop=crop, mask=mask, removal="blurred"
        ),
        "token_components": lambda: plots.token_components(acts, query=PATCH),
        "token_film": lambda: plots.token_film(acts),
        "token_mixing": lambda: plots.token_mixing(
            mixing, names=[f"unit {unit + 1}" for unit in range(len(mixing))]
        ),
        "token_norms": lambda: plots.token_norms(acts),
        "token_scatter": lambda: plots.token_scatter(acts),
        "training_curves": lambda: plots.training_curves(
            {"": run(DEFAULT_MODEL)["epochs"]},
            test_accuracy={"": run(DEFAULT_MODEL)["test_accuracy"]},
        ),
        "with_guess": lambda: plots.with_guess(
            plots.relevance(relevance, image, crop=crop, name=name),
            (left, above, left + wide, above + high),
        ),
        "with_guessed_layer": lambda: plots.with_guessed_layer(
            plots.attention_distance(acts, selected=(LAYER, HEAD)), LAYER
        ),
    }


def _answers(acts: vitviz.Activations) -> np.ndarray:
    assert acts.probabilities is not None
    return acts.probabilities


def write(folder: Path) -> None:
    """Write the page and the script that it loads."""
    drawn = {name: draw() for name, draw in sorted(figures().items())}
    parts = []
    for name, figure in drawn.items():
        (first, *_) = (inspect.getdoc(getattr(plots, name)) or "").partition("\n\n")
        alt = figure.layout.meta["alt"]
        chart = figure.to_html(full_html=False, include_plotlyjs=False, config={"responsive": True})
        parts.append(
            f'<section id="{name}"><h2><a href="vitviz/plots.html#{name}">{name}</a></h2>'
            f'<p>{escape(first)}</p><figure role="img" aria-label="{escape(alt)}">{chart}</figure>'
            "</section>"
        )
    line = vitviz.load_model(DEFAULT_MODEL).provenance
    folder.mkdir(parents=True, exist_ok=True)
    page = _PAGE.format(provenance=escape(line), figures="\n".join(parts))
    (folder / "gallery.html").write_text(page, encoding="utf-8")
    (folder / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the page is written")
    write(parser.parse_args().folder)
