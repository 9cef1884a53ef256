"""How many of timm's transformers and mixers vitviz reads.

    python benchmarks/survey.py [PATTERN]

Each architecture is made at random weights, for a small picture where it takes one, run once
plainly and once watched. It counts as proved when every layer proves its whole attention against
the block's own output and the logits are bit-identical to the plain run. Of models above LARGE
parameters, the blocks after the second of each stage are left out, as they repeat it. A refusal
is a ModelError of one sentence; anything else is a failure, and makes the exit status 1.

Beside each that counts as proved stands how many layers timm's own `AttentionExtract` has maps of,
by its hooks on dropout: the place that tools for rollout hook too, and that fused attention never
calls.
"""

import argparse
import re
import sys
import warnings
from collections import Counter
from typing import Any

import timm
import torch
from PIL import Image
from timm.utils import AttentionExtract
from torch import nn

from vitviz import capture
from vitviz.families import family_of
from vitviz.model import Model, ModelError, Preprocessing

#: The files of timm whose models attend to tokens, or mix them without.
MODULES = (
    "beit",
    "byoanet",
    "cait",
    "coat",
    "convit",
    "crossvit",
    "csatv2",
    "davit",
    "deepseek_vit",
    "deit",
    "edgenext",
    "efficientformer",
    "efficientformer_v2",
    "efficientvit_mit",
    "efficientvit_msra",
    "eva",
    "fastvit",
    "gcvit",
    "gemma4_vit",
    "hiera",
    "hieradet_sam2",
    "iformer",
    "levit",
    "lowformer",
    "maxxvit",
    "metaformer",
    "mlp_mixer",
    "mobilenetv5",
    "mobilevit",
    "mvitv2",
    "naflexvit",
    "nest",
    "nextvit",
    "pit",
    "pvt_v2",
    "qwen3_vit",
    "sequencer",
    "shvit",
    "swiftformer",
    "swin_transformer",
    "swin_transformer_v2",
    "swin_transformer_v2_cr",
    "tiny_vit",
    "tnt",
    "twins",
    "visformer",
    "vision_transformer",
    "vision_transformer_hybrid",
    "vision_transformer_relpos",
    "vision_transformer_sam",
    "vitamin",
    "volo",
    "xcit",
)
LARGE = 120_000_000  # parameters
SIDES = (112, 128, 160)  # pixels; tried in turn, before the architecture's own


def on_meta(name: str, side: int | None) -> Any:
    """The architecture on the meta device, for pictures of this side."""
    options = {} if side is None else {"img_size": side}
    with torch.device("meta"):
        return timm.create_model(name, **options)


def shortened(module: Any) -> bool:
    """Leave two blocks a stage; whether any went."""
    stages = getattr(module, "layers", None) or getattr(module, "stages", None) or [module]
    changed = False
    for stage in stages:
        for name in ("blocks", "blocks_token_only"):
            blocks = getattr(stage, name, None)
            if blocks is not None and len(blocks) > 2:
                setattr(stage, name, blocks[:2])
                changed = True
    return changed


@torch.no_grad()
def filled(module: nn.Module) -> nn.Module:
    """The module with random weights, scaled to keep the variance (1 / fan-in)."""
    module = module.to_empty(device="cpu").eval()
    torch.manual_seed(0)
    for part in module.modules():
        if hasattr(part, "init_non_persistent_buffers"):
            part.init_non_persistent_buffers()
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.fill_(name.endswith("running_var"))
    for parameter in module.parameters():
        if parameter.ndim < 2:
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(std=parameter[0].numel() ** -0.5)
    return module


def smallest(name: str) -> tuple[nn.Module, tuple[int, int], bool]:
    """A module that runs, the size of its input, and whether it was shortened."""
    for side in (*SIDES, None):
        try:
            module = on_meta(name, side)
            size = (side, side) if side else tuple(module.pretrained_cfg["input_size"][-2:])
            parameters = sum(p.numel() for p in module.parameters())
            cut = parameters > LARGE and shortened(module)
            family_of(module)
            module = filled(module)
            with torch.inference_mode():
                module(torch.zeros(1, 3, *size))
            return module, size, cut
        except ModelError:
            raise
        except Exception:
            if side is None:
                raise
    raise AssertionError("the architecture's own size was tried last")


def layers_extracted(module: nn.Module, x: torch.Tensor) -> int:
    """The number of layers of which timm's own extractor returns attention by default."""
    try:
        found = AttentionExtract(module, method="hook")(x)
    except RuntimeError:  # nothing has the name that it looks for
        return 0
    return sum(maps is not None for maps in found.values())


def verdict(name: str, image: Image.Image) -> tuple[str, str]:
    """The outcome in one word, and its detail."""
    family_of(on_meta(name, None))  # refused before any weight is made
    module, size, cut = smallest(name)
    model = Model(
        module,
        name=name,
        preprocessing=Preprocessing(input_size=size, mean=(0.5,) * 3, std=(0.25,) * 3),
        trained=False,
        weights="random weights",
    )
    with torch.inference_mode():
        plain = module(model.preprocess(image)[None])
    acts = capture(model, image)
    detail = f"{model.family}, {size[0]} x {size[1]}"
    if acts.logits is not None and not (acts.logits == plain[0].numpy()).all():
        return "failed", f"{detail}: watching changed the logits"
    if all(layer.kind == "mixing" for layer in acts.layers):
        return "weights", f"{detail}: {model.token_mixing(0).shape[0]} maps of weights a layer"
    for number, layer in enumerate(acts.layers):
        if layer.refusal:
            return "failed", f"{detail}: {layer.refusal}"
        for _ in acts.windows(number):  # proves the whole layer
            break
    with torch.inference_mode():
        maps = layers_extracted(module, model.preprocess(image)[None])
    detail = f"{detail}, {acts.depth} layers, {maps} by AttentionExtract"
    return ("proved in part" if cut else "proved"), detail


def names(pattern: str) -> list[str]:
    return [name for module in MODULES for name in timm.list_models(pattern, module=module)]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split(".")[0])
    parser.add_argument("pattern", nargs="?", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # timm's own, on outdated names
    image = Image.effect_noise((300, 260), 90).convert("RGB")
    counts: Counter[str] = Counter()
    by_timm: Counter[str] = Counter()
    for name in names(arguments.pattern):
        try:
            word, detail = verdict(name, image)
        except ModelError as error:
            word, detail = "refused", str(error)
        except Exception as error:
            word, detail = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        counts[word] += 1
        if word.startswith("proved"):
            layers, maps = map(int, re.findall(r"(\d+) layers, (\d+) by", detail)[0])
            by_timm["every layer" if maps >= layers else "some" if maps else "none"] += 1
        print(f"{word:14} {name:50} {detail}", flush=True)
    total = sum(counts.values())
    print(f"\n{total} architectures of timm {timm.__version__}")
    for word in ("proved", "proved in part", "weights", "refused", "failed"):
        print(f"{counts[word]:5} {word}")
    print(
        f"\nOf the {by_timm.total()} proved, timm's AttentionExtract has by its hooks maps of "
        f"every layer for {by_timm['every layer']}, of some for {by_timm['some']}, of none for "
        f"{by_timm['none']}"
    )
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
