"""`watch`: read a module that is already in memory, and restore its training mode afterwards."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ..activations.order import explain_order
from ..common.language import reason_of
from ..model import Model, Preprocessing
from ..model.answers import Answers, Labels
from ..model.devices import TOLERANCE
from ..model.families import (
    FAMILIES,
    ModelError,
    family_of,
    is_changed,
    is_compiled,
    is_known_to_copy,
)
from ..model.model import ChangeTokens, collect_inputs, noise_input
from ..model.preprocessing import RESIZINGS
from ..model.recording import Recorder, hook_this_thread
from ..model.text import has_text_tower
from ..vit import VisionTransformer
from .architectures import embedding_widths, preprocessing_of
from .processors import (
    ImageProcessor,
    Transforms,
    labels_from,
    preprocessing_beside,
    preprocessing_in,
)
from .texts import text_tower_of

#: Share of a changed patch's effect on its token that other tokens may have; a module that scales
#: its input by the picture's own mean and deviation changes all a little.
_SPREAD = 0.2


class WatchedModel(Model):
    """A `Model` as a context manager: leaving it restores the module's training mode."""

    def __init__(self, module: nn.Module, modes: dict[nn.Module, bool], **options: Any) -> None:
        super().__init__(module, **options)
        self._modes = modes

    def __enter__(self) -> "WatchedModel":
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
    preprocessing: Preprocessing | ImageProcessor | Transforms | None = None,
    labels: Labels | None = None,
    answers: Answers | None = None,
    name: str | None = None,
    tokenizer: Callable[..., Any] | None = None,
) -> WatchedModel:
    """Look into a module in memory.

    The module is switched to evaluation mode, and nothing else in it is changed. As a context
    manager, every part of it has its old mode again at the end:

        with vitviz.watch(net) as model:
            acts = vitviz.capture(model, image)

    Parameters
    ----------
    module : nn.Module
        A module of a family that vitviz reads, or a wrapper with one such part.
    preprocessing : Preprocessing, an image processor of transformers, or torchvision's, optional
        How a picture becomes the module's input. Not needed for modules of timm, and for modules
        that transformers loaded from a folder with an image processor. For torchvision, give what
        `weights.transforms()` returns.
    labels : sequence of str or dictionary, optional
        Names of the classes, one for each output. Default: those in the module's configuration. A
        dictionary is {number: name}, as `id2label`, or {name: number}, as `class_to_idx`. A single
        output may have two labels, for no and yes: its sigmoid is the probability of the second.
    answers : "classes", "labels", "values" or "embedding", optional
        What the outputs mean, see `Model.answers`. Default: detected.
    name : str, optional
        Name on figures and tables. Default: the class of the module.
    tokenizer : tokenizer of transformers or open_clip, optional
        For `Model.with_words` of a module with a text tower. Default: the one in the folder that
        transformers loaded the module from; open_clip's own for a vocabulary of its size.

    Returns
    -------
    WatchedModel
        A `Model`; its weights count as trained, as nothing is known about them.

    Raises
    ------
    ModelError
        When it is not a module, no part or several parts of it are of a known family, its
        preprocessing is unknown, or labels do not match its outputs.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"Expected a module of torch, got {type(module).__name__}. Load names and files by "
            "load_model."
        )
    path, part = find_readable_part(module)
    own = preprocessing is None
    if preprocessing is None:
        preprocessing = _own_preprocessing(part)
    preprocessing = preprocessing_in(preprocessing)
    configs = (getattr(each, "config", None) for each in (module, part))
    candidates = (labels_from(getattr(config, "id2label", None)) for config in configs)
    own_labels = next((each for each in candidates if each is not None), None)
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        model = WatchedModel(
            module,
            modes,
            path=path,
            name=name or type(module).__name__,
            preprocessing=preprocessing,
            trained=True,
            weights=f"weights in memory, attention of {path} ({type(part).__name__})"
            if path
            else "weights in memory",
            labels=own_labels,
            embedding_widths=embedding_widths(_architecture(part)),
        )
        is_known = (
            not path and not is_changed(module) and is_known_to_copy(module, model.layers[-1].name)
        )
        if not is_known:
            if not own:
                _keep_channels(model, preprocessing)
            _follow_resizing(model)
        if path:
            _check_whole(model, own)
        if not is_known:
            _check_places(model)
            model.misplaced = explain_order(model)
        if answers is not None:
            model.answers = answers
        if labels is not None:
            model.labels = labels
        if has_text_tower(module):
            model.text_loader = partial(text_tower_of, module, tokenizer, model.name)
        return model
    except BaseException:
        _restore(modes)
        raise


class _KeepFirstTokens(Recorder):
    """Keep the tokens before the first block."""

    def before_block(self, layer: int, tokens: Tensor) -> None:
        if layer == 0:
            self.tokens = tokens


def _keep_channels(model: Model, given: Preprocessing) -> None:
    """Keep the given number of channels if the module takes it.

    A module may repeat a grey channel for a part that was trained on colours.
    """
    adapted = model.preprocess
    if len(given.mean) == len(adapted.mean):
        return
    model.preprocess = given
    with torch.inference_mode():
        try:
            model.run(noise_input(model))
        except Exception:
            model.preprocess = adapted


def _follow_resizing(model: Model) -> None:
    """Treat it as preprocessing if a module resizes its input before it embeds patches.

    An input that has the new size already is left as it is, so nothing else changes.

    Raises
    ------
    ModelError
        When the module changes the size of its input in another way.
    """
    x = noise_input(model)
    with torch.inference_mode(), collect_inputs(model.parts.embedding) as read:
        try:
            answer = model.run(x)
        except Exception:
            return  # the checks after this one say why
    if not read or read[0].shape[2:] == x.shape[2:]:
        return
    wanted = read[0]

    def stop_other_size(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].shape != wanted.shape:  # a factor enlarges again, perhaps to a giant picture
            raise ValueError("resized again")

    size, (high, wide) = model.preprocess.input_size, wanted.shape[2:]
    for name in RESIZINGS:
        resized = replace(
            model.preprocess, input_size=(high, wide), detail=size[0] / high, resizing=name
        )
        if resized.fitted_size != size:
            break
        stop = hook_this_thread(model.parts.embedding.register_forward_pre_hook, stop_other_size)
        with torch.inference_mode(), stop, collect_inputs(model.parts.embedding) as read:
            try:
                same_answer = model.run(resized.resize(x[0])[None])
            except Exception:  # it is resized again
                break
        pairs = (read[0], wanted), (same_answer, answer)
        if all(one.shape == other.shape and _agree(one, other) for one, other in pairs):
            model.preprocess = resized
            model.weights += f", which gets inputs of {size[0]} x {size[1]} px resized"
            return
    before, after = (" x ".join(map(str, each)) for each in (size, (high, wide)))
    raise ModelError(
        f"{model.name} changes its input from {before} to {after} pixels before it embeds patches, "
        "so their places are unknown. Give watch the part that follows; its output may be another."
    )


def _agree(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * other.abs().max())


def _check_whole(model: Model, own: bool) -> None:
    """Check that the output of a module around a known part depends on that part.

    Parameters
    ----------
    own : bool
        Whether the preprocessing is that of the part.

    Raises
    ------
    ModelError
        When the module cannot run, does not use its part, or changes the picture before the part
        though the preprocessing is the part's.
    """
    x = noise_input(model)
    names: dict[str, Any] = dict(name=model.name, part=model.path)
    with torch.inference_mode(), collect_inputs(model.parts.embedding) as read:
        try:
            answer = model.run(x)
            with model.recording(ChangeTokens(len(model.layers) - 1, torch.neg)):
                other = model.run(x)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                "{name} cannot be run as a whole ({reason}). Give watch its part {part}; its "
                "output may be another.",
                reason=reason_of(error),
                **names,
            ) from error
    if torch.equal(answer, other):
        raise ModelError(
            "The output of {name} does not depend on the last block of its part {part}. Give watch "
            "that part.",
            **names,
        )
    if own and not torch.equal(read[0], x):
        raise ModelError(
            "{name} changes the picture before its part {part} sees it, so that part's "
            "preprocessing is wrong for it. Give watch a preprocessing.",
            **names,
        )


def _check_places(model: Model) -> None:
    """Check that each patch of the picture becomes the expected token, the same in each pass.

    A module around a known part may turn the picture, and a subclass may reorder its tokens. The
    proof of a layer would not notice.

    Raises
    ------
    ModelError
        When the module cannot run, answers the same input differently, or a changed patch changes
        another token most.
    """
    first, site = model.layers[0], model.sites[0]
    x = noise_input(model)
    answer, plain = _first_tokens(model, x)
    again, _ = _first_tokens(model, x)
    if (answer - again).abs().max() > TOLERANCE * answer.abs().max():
        raise ModelError(
            f"{model.name} gives one picture another answer each time. Check for dropout or noise "
            "that stays on in evaluation."
        )
    if site.steps or site.layout == "channels":  # each token is made of many patches
        return
    (rows, cols), (high, wide) = first.query_grid, first.patch_side
    # A mirror image, a turn or a transposition moves at least one of these.
    for row, col in ((0, cols - 1), (rows - 1, cols // 2)):
        other = x.clone()
        other[..., row * high : (row + 1) * high, col * wide : (col + 1) * wide] += 1
        change = (plain - _first_tokens(model, other)[1]).norm(dim=-1)
        token, expected = int(change.argmax()), len(first.prefix) + row * cols + col
        place = f"the patch in row {row}, column {col}"
        if change.max() > 0 and token != expected:
            raise ModelError(
                f"{model.name} turns {place} into token {token}, expected {expected}, so maps "
                "would be misplaced. It turns the picture or reorders its tokens."
            )
        others = torch.cat([change[:expected], change[expected + 1 :]])
        kernel = model.parts.kernel
        if (
            isinstance(kernel, nn.Conv2d)
            and kernel.kernel_size == kernel.stride
            and others.max() > _SPREAD * change[expected]
        ):
            raise ModelError(
                f"{model.name} spreads {place} over several tokens, so maps would be misplaced. It "
                "crops, moves or resizes the picture."
            )


def _first_tokens(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a module's output, and the tokens (T, D) before its first block."""
    recorder = _KeepFirstTokens()
    try:
        with torch.inference_mode(), model.recording(recorder):
            output = model.run(x)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{model.name} cannot run on an input of shape {tuple(x.shape)}: {reason_of(error)}."
        ) from error
    return output.float(), recorder.tokens.flatten(1, -2)[0].float()


def _architecture(part: Any) -> str | None:
    """Return timm's name of the module's architecture; None for other modules."""
    config: Any = getattr(part, "pretrained_cfg", None) or {}
    return config.get("architecture")


def _own_preprocessing(part: Any) -> Preprocessing:
    """Return the preprocessing in the module's configuration, or in a file of its folder."""
    own: Preprocessing | None = None
    if hasattr(part, "pretrained_cfg") and not isinstance(part, VisionTransformer):
        embedding = family_of(part).parts(part).embedding  # a Mixer's is its stem
        size = getattr(embedding, "img_size", None) or getattr(part, "img_size", None)  # MaxViT
        own = preprocessing_of(part, size)
    elif hasattr(part, "config"):
        own = preprocessing_beside(part.config)
    if own is None:
        raise ModelError(
            f"The preprocessing of {type(part).__name__} is unknown. Give watch a "
            "preprocessing=vitviz.Preprocessing(input_size=..., mean=..., std=...), the image "
            "processor of transformers or the transforms of torchvision that belong to it."
        )
    return own


def find_readable_part(module: nn.Module) -> tuple[str, nn.Module]:
    """Return the part of a module that is of a known family, and its path."""
    parts: dict[str, nn.Module] = {}
    if is_compiled(module):
        family_of(module)  # raises
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{outer}.") or not outer for outer in parts)
        if not inside and any(family.recognises(part) for family in FAMILIES):
            parts[path] = part
    if not parts:
        family_of(module)  # raises the reason
    if len(parts) != 1:
        raise ModelError(
            f"{type(module).__name__} has {len(parts)} parts that can be watched. Give watch one "
            f"of them: {', '.join(parts)}."
        )
    return parts.popitem()


def _restore(modes: dict[nn.Module, bool]) -> None:
    for part, training in modes.items():
        part.training = training
