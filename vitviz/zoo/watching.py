"""`watch`: a `Model` of a module that is in memory already, put back as it was afterwards."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import nn

from ..families import FAMILIES, ModelError, family_of
from ..model import Model, Preprocessing
from ..vit import VisionTransformer
from .architectures import embeds, preprocessing_of
from .processors import ImageProcessor, Preset, labels_from, preprocessing_beside, preprocessing_in


class Watched(Model):
    """A `Model` that is a context manager too: at its end the module is in the mode it came in."""

    def __init__(self, module: nn.Module, modes: dict[nn.Module, bool], **options: Any) -> None:
        super().__init__(module, **options)
        self._modes = modes

    def __enter__(self) -> "Watched":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _restore(self._modes)


def watch(
    module: nn.Module,
    *,
    preprocessing: Preprocessing | ImageProcessor | Preset | None = None,
    labels: Sequence[str] | None = None,
    name: str | None = None,
) -> Watched:
    """Look into a module in memory.

    The module is switched to evaluation, and nothing else of it is changed. As a context manager,
    every part of it has its old mode again at the end:

        with vitviz.watch(net) as model:
            acts = vitviz.capture(model, image)

    Parameters
    ----------
    module : nn.Module
        Of a family that vitviz reads, or a wrapper with one part that is.
    preprocessing : Preprocessing, an image processor of transformers, or torchvision's, optional
        How a picture becomes the module's input. Left out for modules of timm, which know it, and
        for those that transformers loaded from a folder with the file of an image processor; of
        torchvision it is what `weights.transforms()` returns.
    labels : sequence of str, optional
        Names of the classes, one for each output; those in the module's configuration where left
        out.
    name : str, optional
        On figures and tables; the class of the module where left out.

    Returns
    -------
    Watched
        A `Model`; its weights are called trained, as nothing is known of them.

    Raises
    ------
    ModelError
        When it is no module, no part of it is of a known family, or several are, or when its
        preprocessing or a label for each output is missing.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"Expected a module of torch, got {type(module).__name__}: load_model takes names and "
            "files."
        )
    path, part = _readable(module)
    how = _own_preprocessing(part) if preprocessing is None else preprocessing_in(preprocessing)
    outputs = family_of(part).parts(part).outputs
    if labels is None:
        labels = labels_from(getattr(getattr(part, "config", None), "id2label", None))
    elif len(labels) != outputs:
        raise ModelError(f"Expected a label for each of {outputs} outputs, got {len(labels)}.")
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        return Watched(
            part,
            modes,
            name=name or ".".join(filter(None, (type(module).__name__, path))),
            preprocessing=how,
            trained=True,
            weights="weights in memory",
            labels=None if labels is None else tuple(labels),
            embeds=labels is None and _embeds(part, outputs),
        )
    except BaseException:
        _restore(modes)
        raise


def _embeds(part: Any, outputs: int) -> bool:
    """Whether a head of timm gives an embedding, as CLIP's does, by timm's configurations."""
    known: Any = getattr(part, "pretrained_cfg", None) or {}
    return embeds(known["architecture"], outputs) if known.get("architecture") else False


def _own_preprocessing(part: Any) -> Preprocessing:
    """What the module itself, or a file beside it, says of its pictures."""
    own: Preprocessing | None = None
    if hasattr(part, "pretrained_cfg") and not isinstance(part, VisionTransformer):
        own = preprocessing_of(part, getattr(getattr(part, "patch_embed", None), "img_size", None))
    elif hasattr(part, "config"):
        own = preprocessing_beside(part.config)
    if own is None:
        raise ModelError(
            f"{type(part).__name__} does not say how it wants its pictures: give watch a "
            "preprocessing=vitviz.model.Preprocessing(input_size=..., mean=..., std=...), the "
            "image processor of transformers or the transforms of torchvision that belong to it."
        )
    return own


def _readable(module: nn.Module) -> tuple[str, nn.Module]:
    """The part of a module that is of a known family, and its path; the module itself at best."""
    found: dict[str, nn.Module] = {}
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{outer}.") or not outer for outer in found)
        if not inside and any(family.recognises(part) for family in FAMILIES):
            found[path] = part
    if not found:
        family_of(module)  # says why not
    if len(found) != 1:
        raise ModelError(
            f"{type(module).__name__} has {len(found)} parts that can be watched: "
            f"{', '.join(found)}; give watch one of them."
        )
    return found.popitem()


def _restore(modes: dict[nn.Module, bool]) -> None:
    for part, training in modes.items():
        part.training = training
