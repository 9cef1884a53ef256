"""What the page Anatomy says of each step, and of each box of an encoder layer.

Names in braces are numbers of the model on screen; `_` and `^` begin an index or an exponent, as in
z_0 or P², which the page sets as such.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Words(NamedTuple):
    """Of one step.

    Attributes
    ----------
    title : str
    equation : int
        Which of the equations (1) to (4) it belongs to; 0 where the paper has none.
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

STEPS: Mapping[str, Words] = {
    "picture": Words(
        "Picture",
        1,
        "The model gets {H} × {W} pixels with {C} numbers each: red, green and blue. From every "
        "number a mean is subtracted, and the rest is divided by a standard deviation, so that the "
        "numbers lie around 0.",
    ),
    "stem": Words(
        "CNN stem",
        0,
        "This is a hybrid model: a CNN turns the picture into a feature map of {shape} first. The "
        "patches are cut from this map, not from the picture.",
    ),
    "embedding": Words(
        "Convolutions",
        0,
        "This family does not cut the picture into patches. Convolutions that overlap turn it into "
        "the first tokens, {shape}.",
    ),
    "patches": Words(
        "Patches",
        1,
        "A grid cuts the {source} into N = {N} patches of {P} × {P} {cells}, which become the "
        "tokens. Patches of half the side would be four times as many, and attention would compare "
        "sixteen times as many pairs.",
    ),
    "flatten": Words(
        "Flatten",
        1,
        "Each patch is written as one row of {flat} numbers, channel after channel. What lay above "
        "what is no longer seen from the row itself; the matrix E has to learn it.",
    ),
    "project": Words(
        "Project · E",
        1,
        "One learned matrix E turns the {flat} numbers of each patch into D = {D}, the same matrix "
        "for every patch. A convolution whose kernel and stride are both P is this matrix, and "
        "that is how it is computed.",
    ),
    "embedding_norm": Words(
        "LayerNorm",
        0,
        "This family normalises each token before its first layer: mean 0, standard deviation 1, "
        "then a learned scale γ and shift β.",
    ),
    "prefix": Words("+ {names}", 1, "{prefix}"),
    "positions": Words(
        "+ E_{pos}",
        1,
        "Attention alone does not know where a patch lies. So a {learned} vector for each place is "
        "added, and the same patch at another place becomes another token.",
    ),
    "pre_norm": Words(
        "LayerNorm",
        0,
        "This model normalises every token once more before the first layer, as CLIP's do.",
    ),
    "encoder": Words(
        "Encoder × {L}",
        2,
        "{L} layers of the same build, each with weights of its own, turn z_{0} into z_{L}. The "
        "number of tokens and their width stay the same.",
    ),
    "mixer": Words(
        "Layers × {L}",
        0,
        "{L} layers mix the tokens by an MLP across the patches and then work on each token alone. "
        "There is no attention: the mixing weights are the same for every picture.",
    ),
    "stage": Words(
        "Stage {number}",
        0,
        "Layers {first} to {last}: {grid} tokens of {D} numbers. {kinds}.",
    ),
    "class_attention": Words(
        "Class attention",
        0,
        "In layers {first} to {last} CLS joins the patches: it alone asks, and the patches stay as "
        "they are. What leaves these layers is one token.",
    ),
    "output": Words(
        "y = LN(z_{L}^{0})",
        4,
        "Of the {T} tokens only CLS is kept, and normalised once more. These {D} numbers are all "
        "that the head learns about the picture.",
    ),
    "output_distilled": Words(
        "y = LN(z_{L})",
        4,
        "Two tokens are kept and normalised once more: CLS, which was trained on labels, and DIST, "
        "which was trained on the answers of a teacher model. Each has a head of its own.",
    ),
    "output_mean": Words(
        "y: mean",
        4,
        "Every token is normalised once more, and the mean of the patches is taken: this model's "
        "head reads all patches alike.",
    ),
    "output_mean_norm": Words(
        "y: LN of mean",
        4,
        "The mean of the patches is taken and then normalised: this model's head reads all patches "
        "alike.",
    ),
    "output_features": Words(
        "y",
        4,
        "The tokens of the last layer become one vector y: these {D} numbers are all that the head "
        "learns about the picture.",
    ),
    "head_hidden": Words(
        "tanh",
        4,
        "This head has a hidden layer with tanh, as the paper uses while pre-training.",
    ),
    "head": Words(
        "Head",
        4,
        "One linear layer turns y into {K} numbers, one for each class: the logits. Softmax makes "
        "shares of them that add up to 100 %. In the paper this head is for fine-tuning; while "
        "pre-training it has one hidden layer with tanh.",
    ),
    "no_head": Words(
        "Head",
        4,
        "These weights have no head: the model ends with y, and other models build on it. Nothing "
        "is put in its place.",
    ),
    "embedding_head": Words(
        "Head",
        4,
        "This head gives no classes but an embedding, which is compared with those of texts.",
    ),
}

#: Of the tokens in front of the patches, by their kind; the first is used where CLS is read.
PREFIX: Mapping[str, str] = {
    "cls": "A learned vector, [CLS], is put in front of the patches; it is the same for every "
    "picture. The idea comes from BERT, a language model: a token that stands for no word gathers "
    "what the whole sentence says, and the head reads the answer there.",
    "cls unread": "A learned vector, [CLS], is put in front of the patches, as BERT does with "
    "sentences. This model's head does not read it: it takes the mean of the patches.",
    "dist": "DIST is a second one, which learns what a teacher model says (DeiT).",
    "reg": "Registers are further learned vectors, which nothing reads: they give the layers room "
    "to work in, so that they need not use patches for it.",
}

#: Boxes of an encoder layer. `qkv` stands for queries, keys and values.
BOXES: Mapping[str, Words] = {
    "before": Words(
        "z_{ℓ−1}",
        2,
        "Layer {l} gets {T} tokens of {D} numbers. These rows are the residual stream: every layer "
        "reads from it and adds to it, and nothing else connects the layers.",
    ),
    "norm1": Words(
        "LN",
        2,
        "LayerNorm brings each token to mean 0 and standard deviation 1, then multiplies by γ and "
        "adds β. It stands before attention (pre-norm), so the stream itself is passed on as it is "
        "along the line at the left; the first Transformer had it after each addition (post-norm).",
    ),
    "qkv": Words(
        "q k v",
        2,
        "Three matrices make a query q, a key k and a value v of every token: what it looks for, "
        "what it can be found by, and what it hands over. They are split into {h} heads of "
        "D_{h} = {d} numbers.",
    ),
    "scores": Words(
        "q kᵀ / √D_{h}",
        2,
        "Query and key are multiplied number by number, and the products are summed: the sum is "
        "large where both point the same way. A sum of D_{h} such products spreads about √D_{h} "
        "times as widely as one; dividing by √D_{h} = {root} undoes that.{bias}",
    ),
    "attention": Words(
        "softmax: A",
        2,
        "Softmax turns the {T} scores of this query into shares that sum to 100 %: one row of A. "
        "If all scores were equal, each key would get {equal}.",
    ),
    "heads": Words(
        "A v",
        2,
        "The query takes the value v of every token, multiplied by its share, and adds them up. "
        "Only here do tokens exchange information; all else works on each token alone.",
    ),
    "concatenated": Words(
        "heads side by side",
        2,
        "All {h} heads did this at the same time, each with its own q, k and v. Their results are "
        "put side by side: {h} × {d} numbers.",
    ),
    "heads_norm": Words(
        "LN", 2, "This family normalises the heads' results before they are mixed."
    ),
    "projected": Words(
        "U_{msa}",
        2,
        "One more learned matrix, U_{msa}, mixes the results of the heads into {D} numbers: this "
        "is MSA(LN(z_{ℓ−1})).",
    ),
    "layer_scale1": Words(
        "LayerScale",
        2,
        "Each number is multiplied by a learned factor, so that training can begin with layers "
        "that add almost nothing.",
    ),
    "after_attention": Words(
        "+ → z′_{ℓ}",
        2,
        "The result is added to what the layer got, number by number. Attention changes the stream "
        "here by {attention} of its length (mean of all tokens).",
    ),
    "norm2": Words("LN", 3, "LayerNorm again, with a γ and a β of its own, before the MLP."),
    "hidden": Words(
        "MLP: hidden",
        3,
        "The MLP works on each token alone, with the same weights for all: it moves nothing from "
        "patch to patch. Its first matrix makes {M} numbers of {D}.",
    ),
    "activated": Words(
        "{activation}",
        3,
        "{activating}",
    ),
    "mlp": Words(
        "MLP: out",
        3,
        "A second matrix brings the hidden units back to {D} numbers.",
    ),
    "layer_scale2": Words("LayerScale", 3, "Again each number is multiplied by a learned factor."),
    "after": Words(
        "+ → z_{ℓ}",
        3,
        "This is added to the stream too: the MLP changes it here by {mlp} of its length. z_{ℓ} "
        "goes to {next}.",
    ),
}
ACTIVATING: Mapping[str, str] = {
    "plain": "{activation} lets large positive numbers pass and brings negative ones near 0; "
    "without it, two matrices in a row would be no more than one.",
    "gated": "One half of the hidden units goes through {activation} and is multiplied with the "
    "other half: a gate for each number.",
}
BIAS = " Then this family adds a bias for the pair's places."
#: Of a layer that is not opened.
CLOSED: Mapping[str, str] = {
    "before": "Layer {l} gets {T} tokens of {D} numbers, the residual stream.",
    "after_attention": "What the first half of the layer made is added: {closed}.",
    "after": "The second half of the layer works on each token alone, and its result is added too.",
}
KINDS_CLOSED: Mapping[str, str] = {
    "mixing": "an MLP mixed the patches",
    "window": "attention, each patch within its window",
    "grid": "attention, each patch within a window of spread patches",
    "pooled": "attention of every patch to pooled keys",
    "class": "attention of CLS to all patches",
    "global": "attention, in a build of its own that is not opened here",
}

#: Shapes in letters, by the names of steps and of what they are made with.
SHAPES: Mapping[str, str] = {
    "picture": "x: H × W × C",
    "stem": "feature map: H × W × C",
    "embedding": "first tokens × D",
    "patches": "patches: N × P × P × C",
    "flatten": "x_{p}: N × P² C",
    "project.kernel": "Eᵀ: D × P² C",
    "project.bias": "b: D",
    "project": "x_{p} E: N × D",
    "embedding_norm": "tokens × D",
    "prefix.tokens": "learned: D",
    "prefix": "[x_{class}; x_{p} E]: T × D",
    "positions.table": "E_{pos}: T × D",
    "positions": "z_{0}: T × D",
    "pre_norm": "z_{0}: T × D",
    "encoder": "z_{L}: T × D",
    "stage": "tokens × D",
    "class_attention": "CLS: 1 × D",
    "output.gamma": "γ: D",
    "output.beta": "β: D",
    "output": "y: D",
    "output_distilled": "y: 2 × D",
    "output_mean": "y: D",
    "output_mean_norm": "y: D",
    "output_features": "y: D",
    "head_hidden": "hidden: D",
    "head.weight": "W: K × D",
    "head.bias": "b: K",
    "head": "logits: K",
}
