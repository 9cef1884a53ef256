"""The texts of the steps on Anatomy; encoder_layer.py has those of the boxes of a layer.

Names in braces are replaced by numbers of the model on screen. `_{…}` and `^{…}` are set as index
and exponent.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..common.language import mark


class StepText(NamedTuple):
    """The texts of one step.

    Attributes
    ----------
    title : str
    equation : int
        Its equation, (1) to (4), in the paper; 0 if the paper has none.
    say : str
        What happens to the numbers, in two or three sentences.
    """

    title: str
    equation: int
    say: str


#: The equations of the paper, as the page sets them.
EQUATIONS = (
    "(1) z_{0} = [x_{class}; x_{p}^{1}E; …; x_{p}^{N}E] + E_{pos}",
    "(2) z′_{ℓ} = MSA(LN(z_{ℓ−1})) + z_{ℓ−1}",
    "(3) z_{ℓ} = MLP(LN(z′_{ℓ})) + z′_{ℓ}",
    "(4) y = LN(z_{L}^{0})",
)

STEP_TEXTS: Mapping[str, StepText] = {
    "picture": StepText(
        mark("Picture"),
        1,
        mark(
            "The model gets {H} × {W} pixels with {channels}. Each channel is normalised: a fixed "
            "mean is subtracted, and the result is divided by a fixed standard deviation, so that "
            "the numbers lie around 0."
        ),
    ),
    "plain_picture": StepText(
        mark("Picture"),
        1,
        mark(
            "The model gets {H} × {W} pixels with {channels}. The numbers lie between 0 and 1: no "
            "mean is subtracted from them, and they are divided by nothing."
        ),
    ),
    "stem": StepText(
        mark("CNN stem"),
        0,
        mark(
            "This is a hybrid model: a CNN first turns the picture into a feature map of "
            "{shape}. The patches are cut from this map, not from the picture."
        ),
    ),
    "embedding": StepText(
        mark("Convolutions"),
        0,
        mark(
            "This family does not cut the picture into patches. Overlapping convolutions turn "
            "it into the first tokens, {shape}."
        ),
    ),
    "first_tokens": StepText(
        "z_{0}",
        1,
        mark(
            "vitviz does not open what this model does next, up to its first layer. That layer "
            "gets {shape} numbers: one row for each token."
        ),
    ),
    "patches": StepText(
        mark("Patches"),
        1,
        mark(
            "A grid cuts the {source} into N = {N} patches of {patch} {cells}. Each patch "
            "becomes one token. Patches of half the side would be four times as many.{pairs}"
        ),
    ),
    "flatten": StepText(
        mark("Flatten"),
        1,
        mark(
            "Each patch is written as one row of {flat} numbers, channel after channel. The "
            "row does not say which pixels were neighbours: the matrix E has to learn that."
        ),
    ),
    "project": StepText(
        mark("Project · E"),
        1,
        mark(
            "One learned matrix E turns the {flat} numbers of each patch into D = {D} "
            "numbers; it is the same for every patch. A convolution whose kernel size and "
            "stride are both P does the same, and that is how it is computed."
        ),
    ),
    "embedding_norm": StepText(
        "LayerNorm",
        0,
        mark(
            "This family normalises each token before its first layer: mean 0, standard "
            "deviation 1, then a learned scale γ and shift β."
        ),
    ),
    "embedding_norm_rms": StepText(
        "RMSNorm",
        0,
        mark(
            "This family normalises each token before its first layer: it is divided by the root "
            "mean square of its numbers, then multiplied by a learned scale γ."
        ),
    ),
    "prefix": StepText("+ {names}", 1, "{prefix}"),
    "positions": StepText(
        "+ E_{pos}",
        1,
        mark(
            "Attention alone does not know where a patch lies. So a {learned} vector for each "
            "position is added, and the same patch at another position becomes a different "
            "token."
        ),
    ),
    "pre_norm": StepText(
        "{norm}",
        0,
        mark("This model normalises every token once more before the first layer, as CLIP does."),
    ),
    "encoder": StepText(
        mark("Encoder × {L}"),
        2,
        mark(
            "{L} layers of the same structure, each with its own weights, turn z_{0} into "
            "z_{L}. The number of tokens and their width stay the same."
        ),
    ),
    "mixer": StepText(
        mark("Layers × {L}"),
        0,
        mark(
            "Each of the {L} layers first mixes the tokens by an MLP across the patches, and "
            "then processes each token on its own. There is no attention: the mixing weights "
            "are the same for every picture."
        ),
    ),
    # Touvron et al., ResMLP, 2021 (arXiv 2105.03404).
    "mixer_linear": StepText(
        mark("Layers × {L}"),
        0,
        mark(
            "Each of the {L} layers first mixes the tokens by one linear layer across the patches, "
            "and then processes each token on its own. There is no attention: the mixing weights "
            "are the same for every picture."
        ),
    ),
    # Liu et al., Pay Attention to MLPs, NeurIPS 2021 (arXiv 2105.08050).
    "mixer_gated": StepText(
        mark("Layers × {L}"),
        0,
        mark(
            "Each of the {L} layers is one MLP with a gate in its middle: half of its numbers are "
            "mixed across the patches and multiplied with the other half. There is no attention: "
            "the mixing weights are the same for every picture."
        ),
    ),
    "stage": StepText(
        mark("Stage {number}"),
        0,
        mark("Layers {first} to {last}: {grid} tokens of {D} numbers. {kinds}."),
    ),
    "class_attention": StepText(
        mark("Class attention"),
        0,
        mark(
            "In layers {first} to {last}, CLS joins the patches. It is the only query: it "
            "reads from the patches, which no longer change. One token leaves these layers."
        ),
    ),
    "output": StepText(
        "y = {norm}(z_{L}^{0})",
        4,
        mark(
            "Of the {T} tokens, only CLS is kept, and normalised once more. These {D} numbers "
            "are all that the head receives."
        ),
    ),
    "output_class": StepText(
        "y = {norm}(z_{L}^{0})",
        4,
        mark(
            "CLS is the only token that leaves the last layer, and it is normalised once more. "
            "These {D} numbers are all that the head receives."
        ),
    ),
    "output_cls": StepText(
        "y = z_{L}^{0}",
        4,
        mark(
            "Of the {T} tokens, only CLS is kept. These {D} numbers are all that the head receives."
        ),
    ),
    "output_distilled": StepText(
        "y = {norm}(z_{L})",
        4,
        mark(
            "Two tokens are kept and normalised once more: CLS, which was trained on labels, "
            "and DIST, which was trained on the answers of a teacher model. Each has a head "
            "of its own."
        ),
    ),
    "output_mean": StepText(
        mark("y: mean"),
        4,
        mark(
            "Every token is normalised once more. The head of this model reads the mean of "
            "all patches."
        ),
    ),
    "output_mean_norm": StepText(
        mark("y: {norm} of mean"),
        4,
        mark(
            "The mean of all patches is taken and then normalised. This is what the head of "
            "this model reads."
        ),
    ),
    "output_features": StepText(
        "y",
        4,
        mark(
            "The tokens of the last layer are combined into one vector y. These {D} numbers "
            "are all that the head receives."
        ),
    ),
    "head_hidden": StepText(
        "tanh",
        4,
        mark("This head has a hidden layer with tanh, as the paper uses during pre-training."),
    ),
    "head": StepText(
        mark("Head"),
        4,
        mark(
            "{maker} turns {read} into {K} numbers, one for each class: the logits. "
            "Softmax turns these into probabilities, which add up to 100 %.{paper}"
        ),
    ),
    "label_head": StepText(
        mark("Head"),
        4,
        mark(
            "{maker} turns {read} into {K} numbers, one for each label: the logits. The sigmoid "
            "turns each logit into a probability of its own, so several labels may apply to a "
            "picture, or none."
        ),
    ),
    "one_label_head": StepText(
        mark("Head"),
        4,
        mark(
            "{maker} turns {read} into one number: the logit. The sigmoid turns it into the "
            "probability of the only label."
        ),
    ),
    "value_head": StepText(
        mark("Head"),
        4,
        mark(
            "The head turns y into {K} numbers. They are values, as of a regression: their unit "
            "is not known here, and they are no probabilities."
        ),
    ),
    "one_value_head": StepText(
        mark("Head"),
        4,
        mark(
            "The head turns y into one number. It is a value, as of a regression: its unit is not "
            "known here, and it is no probability."
        ),
    ),
    "no_head": StepText(
        mark("Head"),
        4,
        mark("These weights have no head: the model ends with y, on which other models can build."),
    ),
    "embedding_head": StepText(
        mark("Head"),
        4,
        mark(
            "This head does not name classes. It gives an embedding, which is compared with "
            "other embeddings: in CLIP with those of texts."
        ),
    ),
}

#: Said of a head without a hidden layer.
FINE_TUNING = mark(
    " In the paper this is the head for fine-tuning; during pre-training it has one hidden layer "
    "with tanh."
)

#: Said after the patches, where each of them attends to each other one.
PAIRS = mark(" Attention would compare sixteen times as many pairs.")

#: Of the prefix tokens, by kind; the first is for models whose head reads CLS.
PREFIX_STEPS: Mapping[str, str] = {
    "cls": mark(
        "A learned vector, [CLS], is put in front of the patches; it is the same for every "
        "picture. The idea comes from BERT, a language model: a token that stands for no word "
        "gathers information from the whole sentence. The head reads this token."
    ),
    "cls unread": mark(
        "A learned vector, [CLS], is put in front of the patches, as BERT does with "
        "sentences. The head of this model does not read it: it reads the patches."
    ),
    "dist": mark(
        "DIST is a second such vector, which learns the answers of a teacher model (DeiT)."
    ),
    # Store: Darcet et al., ICLR 2024. Biases: Sun et al., COLM 2024 (arXiv 2402.17762). Both, and
    # no-ops: Fesser et al., 2026 (arXiv 2606.08105).
    "reg": mark(
        "Registers are further learned vectors, which the head does not read. What they do is "
        "disputed: they may store global information, or be a place to look at where a head is "
        "to change nothing."
    ),
}

#: Shown for a token whose numbers are not in the browser, in the app and in a file.
PARTIAL_APP = mark("This layer is large: click the token, and its numbers are sent.")
PARTIAL_FILE = mark(
    "This file holds these numbers for {token} only; the app shows them for every token."
)

#: Shapes in letters, by the names of steps and of their weights.
SHAPES: Mapping[str, str] = {
    "picture": "x: H × W × C",
    "stem": mark("feature map: H × W × C"),
    "embedding": mark("first tokens × D"),
    "first_tokens": "z_{0}: T × D",
    "patches": mark("patches: N × P × P × C"),
    "flatten": "x_{p}: N × P² C",
    "project.kernel": "Eᵀ: D × P² C",
    "project.bias": "b: D",
    "project": "x_{p} E: N × D",
    "embedding_norm": mark("tokens × D"),
    "prefix.tokens": mark("learned: D"),
    "prefix": "[x_{class}; x_{p} E]: T × D",
    "positions.table": "E_{pos}: T × D",
    "positions": "z_{0}: T × D",
    "pre_norm": "z_{0}: T × D",
    "encoder": "z_{L}: T × D",
    "stage": mark("tokens × D"),
    "class_attention": "CLS: 1 × D",
    "output.gamma": "γ: D",
    "output.beta": "β: D",
    "output": "y: D",
    "output_cls": "y: D",
    "output_distilled": "y: 2 × D",
    "output_mean": "y: D",
    "output_mean_norm": "y: D",
    "output_features": "y: D",
    "head_hidden": mark("hidden: D"),
    "head.weight": "W: K × D",
    "head.bias": "b: K",
    "head": mark("logits: K"),
    "value_head": mark("values: K"),
}
