"""Find the text tower and the tokenizer that belong to a model, in memory or in its folder."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ..common.language import reason_of
from ..model.families import ModelError
from ..model.text import TextTower

TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
#: Vocabularies of tokenizers of transformers; the first is enough alone.
TOKENIZERS = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
_OPEN_CLIP_VOCABULARY = 49408


def text_tower_of(module: nn.Module, tokenizer: Callable[..., Any] | None, name: str) -> TextTower:
    """Return the text tower of a module in memory.

    Raises
    ------
    ModelError
        When no tokenizer is given, and none belongs to the module.
    """
    if tokenizer is None:
        tokenizer = _own_tokenizer(module, name)
    return TextTower(module, tokenizer, name)


def _own_tokenizer(module: Any, name: str) -> Callable[..., Any]:
    folder = getattr(getattr(module, "config", None), "_name_or_path", None)
    if folder:
        return tokenizer_in(folder, name)
    size = max(p.num_embeddings for p in module.modules() if isinstance(p, nn.Embedding))
    if size == _OPEN_CLIP_VOCABULARY and not hasattr(module, "get_text_features"):
        return open_clip_of(name).SimpleTokenizer()
    raise ModelError(
        "The tokenizer of {name} is unknown. Give vitviz.watch the one that belongs to it as "
        "tokenizer=.",
        name=name,
    )


def tokenizer_in(folder: str | Path, name: str) -> Any:
    """Return the tokenizer of transformers in a folder, without running code from it.

    Raises
    ------
    ModelError
        When there is none that can be read.
    """
    transformers: Any = import_module("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # made of no file at all
            raise ValueError("it has no vocabulary")
        return tokenizer
    except Exception as error:  # readers of broken files raise many kinds of errors
        raise tokenizer_error(name, error) from error


def tokenizer_error(name: str, error: Exception) -> ModelError:
    return ModelError(
        "The tokenizer of {name} cannot be read ({reason}). Put the files of its tokenizer, such "
        "as {file}, into the model's folder.",
        name=name,
        reason=reason_of(error),
        file=TOKENIZERS[0],
    )


def open_clip_of(name: str) -> Any:
    """Return the module open_clip, or raise a ModelError that says how to install it."""
    try:
        return import_module("open_clip")
    except ImportError as error:
        raise ModelError(
            "{name} needs open_clip, which is not installed. Run `pip install open_clip_torch`.",
            name=name,
        ) from error
