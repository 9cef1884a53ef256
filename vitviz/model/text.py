"""`TextTower`: turn phrases into vectors with a model's own text tower and tokenizer."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.language import Message, reason_of, shorten
from .devices import own_precision
from .families import ModelError
from .words import Words, describe_templates

#: Characters of one phrase or template; the longest context of a published CLIP takes fewer.
MAX_PHRASE = 1000
_BATCH = 64  # texts in one pass


class TextTower:
    """The text side of a model, with the tokenizer that belongs to it.

    Parameters
    ----------
    module : nn.Module
        A module with `get_text_features`, as in transformers, or `encode_text`, as in open_clip;
        and with `logit_scale` or `temperature`, perhaps `logit_bias`.
    tokenizer : callable
        A tokenizer or processor of transformers for the first kind, one of open_clip for the other.
    name : str
        What the model is called, for the provenance line.
    """

    def __init__(self, module: nn.Module, tokenizer: Callable[..., Any], name: str) -> None:
        self.module, self.tokenizer, self.name = module, tokenizer, name

    def words(self, phrases: Sequence[str], template: str | Sequence[str] = "{}") -> Words:
        """Return classes from phrases; see `Model.with_words`.

        Raises
        ------
        ModelError
            When a phrase is empty or too long, or a template has no place for it.
        """
        names = _check_phrases(phrases)
        templates = _check_phrases((template,) if isinstance(template, str) else template)
        for each in templates:
            if each.count("{}") != 1:
                raise ModelError(
                    "Expected a template with one {{}} for the phrase, got {template!r}.",
                    template=each,
                )
        texts = [each.replace("{}", name) for name in names for each in templates]
        with own_precision(), torch.inference_mode():
            rows = [self._embed(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]
            vectors = torch.cat(rows).view(len(names), len(templates), -1).mean(dim=1)
            module: Any = self.module
            bias = getattr(module, "logit_bias", None)
            return Words(
                names,
                F.normalize(vectors, dim=-1).numpy(),
                logit_scale=_scale_of(module),
                logit_bias=None if bias is None else float(bias),
                source=Message(
                    "the text tower of {name}{note}",
                    name=self.name,
                    note=describe_templates(templates),
                ),
                templates=templates,
            )

    def _embed(self, texts: list[str]) -> Tensor:
        """Return a vector of length 1 for each text."""
        try:
            inputs = self._tokens(texts)
            module: Any = self.module
            size = max(p.num_embeddings for p in module.modules() if isinstance(p, nn.Embedding))
            largest = int(inputs["input_ids"].max())
            if largest >= size:  # on a GPU, it would end the process
                raise ModelError(
                    "The tokenizer gives token {largest}, and the text tower of {name} knows "
                    "{known} tokens. Give the tokenizer that belongs to it.",
                    largest=largest,
                    known=size,
                    name=self.name,
                )
            place = next(module.parameters()).device
            inputs = {key: value.to(place) for key, value in inputs.items()}
            if _is_transformers(module):
                output = module.get_text_features(**inputs)
                output = getattr(output, "pooler_output", output)
            else:
                output = module.encode_text(inputs["input_ids"])
            return F.normalize(output.float(), dim=-1).cpu()
        except ModelError:
            raise
        except Exception as error:  # a tokenizer or module of the user's may raise anything
            raise ModelError(
                "The text tower of {name} could not read the phrases ({reason}). Give it the "
                "tokenizer that belongs to it.",
                name=self.name,
                reason=reason_of(error),
            ) from error

    def _tokens(self, texts: list[str]) -> dict[str, Tensor]:
        """Return the input of the text tower; refuse a text that its context would cut off."""
        if not _is_transformers(self.module):
            return {"input_ids": self._tokens_of_open_clip(texts)}
        tokenizer: Any = getattr(self.tokenizer, "tokenizer", self.tokenizer)  # in a processor
        config: Any = self.module.config
        # SigLIP reads the last token, which is padding, and was trained without a mask.
        is_padded = getattr(self.module, "logit_bias", None) is not None
        context = int(config.text_config.max_position_embeddings)
        if not is_padded:  # RoBERTa has two positions more than it reads
            context = min(context, tokenizer.model_max_length)
        for text in texts:
            self._check_length(text, len(tokenizer(text)["input_ids"]), context)
        inputs = tokenizer(
            texts,
            padding="max_length" if is_padded else True,
            max_length=context if is_padded else None,
            return_tensors="pt",
        )
        return {"input_ids": inputs["input_ids"]} if is_padded else dict(inputs)

    def _tokens_of_open_clip(self, texts: list[str]) -> Tensor:
        context = int(getattr(self.module, "context_length", 77))
        tokens: Tensor = self.tokenizer(texts, context_length=context)
        # These tokenizers cut off silently. With room for all, only padding may be added.
        room = context + max(len(text.encode()) for text in texts) + 8
        whole: Tensor = self.tokenizer(texts, context_length=room)
        for text, short, long in zip(texts, tokens.tolist(), whole.tolist(), strict=True):
            added = Counter(long) - Counter(short)
            if len(added) > 1 or sum(added.values()) != room - context:
                padding = long.count(max(added, key=lambda token: added[token]))
                self._check_length(text, max(room - padding, context + 1), context)
        return tokens

    def _check_length(self, text: str, count: int, context: int) -> None:
        if count > context:
            raise ModelError(
                "The text {text!r} has {count} tokens, and the text tower of {name} reads "
                "{context}. Shorten it.",
                text=shorten(text, 60),
                count=count,
                context=context,
                name=self.name,
            )


def has_text_tower(module: nn.Module) -> bool:
    """Whether a module encodes texts, with a scale of the logits."""
    methods = (getattr(module, name, None) for name in ("get_text_features", "encode_text"))
    scales = (getattr(module, name, None) for name in ("logit_scale", "temperature"))
    return any(map(callable, methods)) and any(isinstance(each, Tensor) for each in scales)


def _scale_of(module: Any) -> float:
    """Return the factor of the cosines; TIPS and ALIGN have its inverse."""
    if isinstance(getattr(module, "logit_scale", None), Tensor):
        return float(module.logit_scale.exp())
    return float(1 / module.temperature)


def phrases_in(text: str) -> list[str]:
    """Return the phrases in a text, one in each line that is not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_transformers(module: Any) -> bool:
    return callable(getattr(module, "get_text_features", None))


def _check_phrases(texts: Sequence[str]) -> list[str]:
    """Return phrases or templates without blanks around them."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts) or not texts:
        raise ModelError("Expected a list of phrases, got {texts!r}.", texts=texts)
    for text in texts:
        if not text.strip():
            raise ModelError("A phrase is empty. Write at least one character.")
        if len(text) > MAX_PHRASE:
            raise ModelError(
                "A phrase has {count:,} characters; at most {most:,} are read.",
                count=len(text),
                most=MAX_PHRASE,
            )
    return [text.strip() for text in texts]
