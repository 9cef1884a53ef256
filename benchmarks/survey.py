"""How many transformers and mixers of timm, transformers and torchvision vitviz reads.

    python benchmarks/survey.py [PATTERN] [--library timm|transformers|torchvision]

Each architecture is made at random weights, for a small picture where it takes one, run once
plainly and once watched. It counts as proved when every layer proves its whole attention against
the block's own output and the logits are bit-identical to the plain run; a class of transformers,
when it does so with each attention that it has, eager and fused. Of models of timm and torchvision
above LARGE parameters, the blocks after the second of each stage are left out, as they repeat it;
of those of transformers, which are classes and no sizes, always. A refusal is a ModelError of one
sentence; anything else is a failure, and makes the exit status 1.

Beside each of timm's that counts as proved stands how many layers timm's own `AttentionExtract`
has maps of, with fused attention switched off: by its default way, "fx", which traces the module
and looks for its softmax, and by its hooks on dropout, the place that tools for rollout hook too.
"""

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import timm
import torch
import torchvision
import transformers
from PIL import Image
from timm.utils import AttentionExtract
from torch import nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
)

from vitviz import capture
from vitviz.model import Model, ModelError, Preprocessing
from vitviz.model.families import family_of

WAYS = ("fx", "hook")  # of timm's AttentionExtract; the first is its default
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
#: The folders of transformers whose classifiers attend to tokens; the others are CNNs, poolings,
#: and models of language. DiNAT is left out, as it needs a library of its own.
CLASSIFYING = (
    "beit",
    "clip",
    "cvt",
    "data2vec-vision",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "donut-swin",
    "hiera",
    "ijepa",
    "imagegpt",
    "levit",
    "metaclip_2",
    "mobilevit",
    "mobilevitv2",
    "perceiver",
    "pvt",
    "pvt_v2",
    "segformer",
    "siglip",
    "siglip2",
    "swiftformer",
    "swin",
    "swinv2",
    "vit",
    "vit_msn",
)
#: Image encoders of transformers that have no class with a head.
ENCODERS = (
    "Aimv2VisionModel",
    "CLIPVisionModelWithProjection",
    "DINOv3ViTModel",
    "MLCDVisionModel",
    "SiglipVisionModel",
    "Siglip2VisionModel",
    "ViTMAEModel",
    "VitDetModel",
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


def layers_extracted(module: nn.Module, x: torch.Tensor, method: str) -> int:
    """Count the layers of which timm's own extractor returns attention, by one of its two ways."""
    for part in module.modules():
        if hasattr(part, "fused_attn"):  # which has neither a softmax nor a dropout to be seen
            part.fused_attn = False
    try:
        found = AttentionExtract(module, method=method)(x)
    except Exception:  # it cannot be traced, or nothing has the name that is looked for
        return 0
    return sum(maps is not None for maps in found.values())


def of_timm(name: str) -> Iterator[tuple[nn.Module, tuple[int, int], bool]]:
    family_of(on_meta(name, None))  # refused before any weight is made
    yield smallest(name)


def of_torchvision(name: str) -> Iterator[tuple[nn.Module, tuple[int, int], bool]]:
    """The architecture; of a large ViT, which has no buffers, two blocks."""
    make = torchvision.models.get_model_builder(name)
    with torch.device("meta"):
        outline: Any = make()
    family_of(outline)
    cut = sum(p.numel() for p in outline.parameters()) > LARGE
    if cut:
        outline.encoder.layers = outline.encoder.layers[:2]
        yield filled(outline), (224, 224), cut
    else:
        yield make().eval(), (224, 224), cut


def of_transformers(name: str) -> Iterator[tuple[nn.Module, tuple[int, int], bool]]:
    """The class with two layers a stage, with each attention that it has."""
    kind = getattr(transformers, name)
    config = kind.config_class()
    for part in (config, getattr(config, "vision_config", None)):
        if hasattr(part, "depths"):
            part.depths = [2] * len(part.depths)
        elif hasattr(part, "num_hidden_layers"):
            part.num_hidden_layers = 2
        if hasattr(part, "num_cross_attention_heads"):  # of Perceiver, as its files have it
            part.num_cross_attention_heads = 1
    side = getattr(getattr(config, "vision_config", config), "image_size", 224)
    height, width = (side, side) if isinstance(side, int) else side
    with torch.device("meta"):
        family_of(kind(config))
    torch.manual_seed(0)
    for attention in ("eager", "sdpa") if kind._supports_sdpa else ("eager",):
        config._attn_implementation = attention
        yield kind(config).eval(), (height, width), False


LIBRARIES = {"timm": of_timm, "transformers": of_transformers, "torchvision": of_torchvision}


def verdict(library: str, name: str, image: Image.Image) -> tuple[str, str]:
    """The outcome in one word, and its detail."""
    word, detail = "failed", "nothing was made"
    for module, size, cut in LIBRARIES[library](name):
        word, detail = proved(library, name, module, size, image)
        if word == "failed":
            break
        word = "proved in part" if cut and word == "proved" else word
    return word, detail


def proved(
    library: str, name: str, module: nn.Module, size: tuple[int, int], image: Image.Image
) -> tuple[str, str]:
    model = Model(
        module,
        name=name,
        preprocessing=Preprocessing(input_size=size, mean=(0.5,) * 3, std=(0.25,) * 3),
        trained=False,
        weights="random weights",
    )
    with torch.inference_mode():
        plain: Any = module(model.preprocess(image)[None])
    for answer in ("logits", "image_embeds", "pooler_output"):  # of transformers
        plain = getattr(plain, answer, plain)
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
    detail = f"{detail}, {acts.depth} layers"
    if library == "timm":
        with torch.inference_mode():
            x = model.preprocess(image)[None]
            maps = {way: layers_extracted(module, x, way) for way in WAYS}
        detail += "".join(f", {count} by {way}" for way, count in maps.items())
    return "proved", detail


def names(library: str) -> list[str]:
    if library == "timm":
        return [name for module in MODULES for name in timm.list_models(module=module)]
    if library == "torchvision":
        known = torchvision.models.list_models(module=torchvision.models)
        return [name for name in known if "vit" in name or "swin" in name]
    listed = [CLASSIFIERS[place] for place in CLASSIFYING]
    classes = [name for each in listed for name in ([each] if isinstance(each, str) else each)]
    return [*classes, *ENCODERS]


def surveyed(library: str, pattern: str, image: Image.Image) -> Counter[str]:
    """Print each architecture of a library, and count the outcomes."""
    counts: Counter[str] = Counter()
    by_timm: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    for name in names(library):
        if not fnmatch(name, pattern):
            continue
        try:
            word, detail = verdict(library, name, image)
        except ModelError as error:
            word, detail = "refused", str(error)
        except Exception as error:
            word, detail = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        counts[word] += 1
        if word.startswith("proved") and library == "timm":
            (layers,) = map(int, re.findall(r"(\d+) layers", detail))
            for way, counted in by_timm.items():
                (maps,) = map(int, re.findall(rf"(\d+) by {way}", detail))
                counted["every layer" if maps >= layers else "some" if maps else "none"] += 1
        print(f"{word:14} {name:50} {detail}", flush=True)
    version = {"timm": timm, "transformers": transformers, "torchvision": torchvision}[library]
    print(f"\n{counts.total()} architectures of {library} {version.__version__}")
    for word in ("proved", "proved in part", "weights", "refused", "failed"):
        print(f"{counts[word]:5} {word}")
    for way, counted in by_timm.items():
        if counted:
            print(
                f"\nOf the {counted.total()} proved, timm's AttentionExtract, fused attention off, "
                f"has by its way {way!r} maps of every layer for {counted['every layer']}, of some "
                f"for {counted['some']}, of none for {counted['none']}"
            )
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split(".")[0])
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--library", choices=LIBRARIES, help="one of them only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # timm's own, on outdated names
    transformers.logging.set_verbosity_error()
    image = Image.effect_noise((300, 260), 90).convert("RGB")
    chosen = [arguments.library] if arguments.library else [*LIBRARIES]
    failed = [surveyed(library, arguments.pattern, image)["failed"] for library in chosen]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
