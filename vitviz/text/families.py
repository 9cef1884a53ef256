"""The texts of each family on the Zoo page, and of the position encodings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..common.language import mark, tr


@dataclass(frozen=True, kw_only=True)
class Card:
    """The texts of one family.

    Attributes
    ----------
    difference : str
        How it differs from other families, in one or two sentences.
    missing : tuple of str
        What cannot be shown of it, and why.
    source : str
        Its paper.
    """

    difference: str
    missing: tuple[str, ...]
    source: str

    @property
    def differs(self) -> str:
        """The difference, in the language in use."""
        return tr(self.difference)

    @property
    def omissions(self) -> str:
        """The missing parts, in the language in use."""
        return " ".join(map(tr, self.missing))


#: What tells a model where a patch lies, by the names of `model.families.position_encodings`.
POSITION_ENCODINGS: Mapping[str, str] = {
    "embedding": mark("the position embedding added to it"),
    "relative bias": mark(
        "a bias that attention adds to each score, by the offset from query to key"
    ),
    "rotary": mark("a rotation of queries and keys by their positions (RoPE)"),
    "convolutions": mark(
        "its convolutions, which see neighbouring patches and the zeros at the edges"
    ),
    "mixing": mark("what mixes the patches, with weights for each position"),
}


def explain_positions(name: str, sources: Sequence[str]) -> str:
    """Say how a model encodes the position of a patch, in a sentence without its full stop.

    Parameters
    ----------
    name : of the model
    sources : as `model.families.position_encodings` returns them
    """
    if not sources:
        return tr("nothing tells {name} where a patch lies", name=name)
    if tuple(sources) == ("embedding",):
        return tr(
            "nothing tells {name} where a patch lies, except the position embedding added to it",
            name=name,
        )
    *others, last = (tr(POSITION_ENCODINGS[source]) for source in sources)
    names = tr("{listed} and {last}", listed=", ".join(others), last=last) if others else last
    return tr("what tells {name} where a patch lies is {listed}", name=name, listed=names)


_STEM = mark("Filters: the first layers are convolutions, and no filter is as large as a patch.")
_NO_POSITIONS = mark("And Positions: no position embedding is added to its tokens.")
_STAGES = (
    mark(
        "Rollout and Tokens, which need the same tokens in every layer: they change from stage to "
        "stage."
    ),
    _NO_POSITIONS,
)
_CONVOLUTIONS = mark("What its convolutions do: they have no A.")
CARDS: Mapping[str, Card] = {
    "ViT": Card(
        difference=mark(
            "One grid of patches from the first layer to the last, and a class token, "
            "CLS. Every token attends to every token."
        ),
        missing=(mark("Nothing: every page that is about one model shows it."),),
        source="Dosovitskiy et al., ICLR 2021, section 3.1",
    ),
    "DeiT": Card(
        difference=mark(
            "A ViT that was trained on ImageNet-1k alone. The distilled models, such as "
            "the one on the picture, have one more token: DIST learns the answer of a "
            "teacher, as CLS learns the label. It has its own row and column in A."
        ),
        missing=(
            mark("DIST on the picture: it is not a patch, so its share stands beside the map."),
        ),
        source="Touvron et al., ICML 2021 (arXiv 2012.12877, section 4)",
    ),
    "Hybrid": Card(
        difference=mark(
            "Patches are cut from the feature map of a CNN, not from the picture. A is a "
            "ViT's, on that map's grid."
        ),
        missing=(
            mark(
                "Filters: E is applied to feature maps, so its filters are not pictures. A "
                "token also knows more of the picture than its box, because the CNN sees "
                "beyond it."
            ),
        ),
        source="Dosovitskiy et al., ICLR 2021, section 3.1, Hybrid Architecture",
    ),
    "Swin": Card(
        difference=mark(
            "Patches attend only within windows. Every second layer shifts them by half a "
            "window (3 of 7 patches; not in the last stage here, where one window is the "
            "whole grid), and a mask keeps apart what the shift brings together from "
            "opposite borders. Each later stage halves the grid's sides."
        ),
        missing=_STAGES,
        source="Liu et al., ICCV 2021, sections 3.1 and 3.2, Fig. 4",
    ),
    "PVT": Card(
        difference=mark(
            "Every patch attends to every key, but in all stages except the last a key "
            "stands for several patches, so A is N x M. Each later stage halves the "
            "grid's sides. Shown is PVT v2, whose MLP holds a convolution over 3 x 3 patches."
        ),
        missing=_STAGES,
        source="Wang et al., ICCV 2021, section 3.3; v2: Computational Visual Media 2022",
    ),
    "CoAtNet": Card(
        difference=mark(
            "The first stages are convolutions; the last ones attend over their whole "
            "grid, with a bias for the offset of each pair added to the scores."
        ),
        missing=(_CONVOLUTIONS, _STEM, *_STAGES),
        source="Dai et al., NeurIPS 2021, section 2",
    ),
    "MaxViT": Card(
        difference=mark(
            "Each block convolves and then attends twice: within windows of neighbours, "
            "then among patches that lie equally far apart over the whole picture."
        ),
        missing=(_CONVOLUTIONS, _STEM, *_STAGES),
        source="Tu et al., ECCV 2022, Fig. 3",
    ),
    "CaiT": Card(
        difference=mark(
            "First the patches attend to each other, without CLS. In the last two layers "
            "CLS is the only query: A is one row, 1 x (1 + N)."
        ),
        missing=(
            mark(
                "Rollout and Tokens: CLS is not among the tokens of the first layers. Their "
                "heads are mixed before and after the softmax; a map shows a head before the "
                "second mixing."
            ),
        ),
        source="Touvron et al., ICCV 2021 (Going deeper with Image Transformers), section 3",
    ),
    "MLP-Mixer": Card(
        difference=mark(
            "No attention: an MLP mixes the patches, with weights that are the same for "
            "every picture. Every patch reaches every other."
        ),
        missing=(
            mark(
                "A, and the pages that need it: Distance, Rollout and Tokens. It only has weights."
            ),
        ),
        source="Tolstikhin et al., NeurIPS 2021, section 2 and Fig. 5",
    ),
}
