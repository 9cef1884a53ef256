"""The texts of the boxes of an encoder layer on Anatomy."""

from collections.abc import Mapping

from ..common.language import mark
from .anatomy import StepText

#: Boxes of an encoder layer. `qkv` stands for queries, keys and values.
BOXES: Mapping[str, StepText] = {
    "before": StepText(
        "z_{ℓ−1}",
        2,
        mark(
            "Layer {l} gets {T} tokens of {D} numbers. These rows are the residual stream: "
            "every layer reads from it and adds to it, and nothing else connects the layers."
        ),
    ),
    "norm1": StepText(
        "LN",
        2,
        mark(
            "LayerNorm brings each token to mean 0 and standard deviation 1, then multiplies "
            "by γ and adds β. So the next step gets numbers of the same size, however long a token "
            "has grown, and many layers can be trained. It stands before attention (pre-norm), so "
            "the stream itself is passed on unchanged along the line at the left. The first "
            "Transformer had it after each addition (post-norm)."
        ),
    ),
    "norm1_rms": StepText(
        "RMSNorm",
        2,
        mark(
            "RMSNorm divides each token by the root mean square of its numbers, then multiplies "
            "by γ. The mean is not subtracted. So the next step gets numbers of the same size, "
            "however long a token has grown. It stands before attention (pre-norm)."
        ),
    ),
    "qkv": StepText(
        "q k v",
        2,
        mark(
            "Three matrices turn every token into a query q, a key k and a value v: what it "
            "looks for, what it is found by, and what it passes on. They are split into "
            "{heads} of D_{h} = {d} numbers.{rotation}"
        ),
    ),
    # Su et al., RoFormer, 2021 (arXiv 2104.09864); for patches: Heo et al., ECCV 2024.
    "rotated": StepText(
        "RoPE",
        0,
        mark(
            "Pairs of numbers of q and k are rotated by angles that depend on row and column of "
            "the patch. Lengths stay the same. The product of a rotated q and a rotated k depends "
            "on their offset: how far one patch lies from the other, and in which direction."
        ),
    ),
    "scores": StepText(
        "q kᵀ / √D_{h}",
        2,
        mark(
            "Query and key are multiplied number by number, and the products are summed. The "
            "sum is large if both point in the same direction. The sum of D_{h} products "
            "spreads about √D_{h} times as widely as one product; dividing by √D_{h} = {root} "
            "undoes that.{bias}"
        ),
    ),
    "attention": StepText(
        "softmax: A",
        2,
        mark(
            "Softmax turns the {T} scores of this query into shares that sum to 100 %: one "
            "row of A. If all scores were equal, each key would get {equal}."
        ),
    ),
    "heads": StepText(
        "A v",
        2,
        mark(
            "The output for this query is the sum of all values v, each multiplied by its "
            "share. In this model tokens exchange information only here; everything else in the "
            "layer processes each token on its own."
        ),
    ),
    "concatenated": StepText(
        mark("heads side by side"),
        2,
        mark(
            "Each head has its own q, k and v, and all work at the same time. Their results are "
            "put side by side: {h} × {d} numbers."
        ),
    ),
    "heads_norm": StepText(
        "LN", 2, mark("This family normalises the heads' results before they are mixed.")
    ),
    "projected": StepText(
        "U_{msa}",
        2,
        mark(
            "One more learned matrix, U_{msa}, mixes the results of the heads into {D} "
            "numbers: this is MSA({norm}(z_{ℓ−1}))."
        ),
    ),
    # Touvron et al., Going deeper with Image Transformers, ICCV 2021, section 2.
    "layer_scale1": StepText(
        "LayerScale",
        2,
        mark(
            "Each number is multiplied by a learned factor. The factors usually begin small, so "
            "that at first the layers add almost nothing."
        ),
    ),
    "after_attention": StepText(
        "+ → z′_{ℓ}",
        2,
        mark(
            "The result is added to the input of the layer, number by number. Attention "
            "changes the stream here by {attention} of its length (mean over all tokens)."
        ),
    ),
    "norm2": StepText(
        "LN", 3, mark("LayerNorm again, with a γ and a β of its own, before the MLP.")
    ),
    "norm2_rms": StepText(
        "RMSNorm", 3, mark("RMSNorm again, with a γ of its own, before the MLP.")
    ),
    "hidden": StepText(
        mark("MLP: hidden"),
        3,
        mark(
            "The MLP processes each token on its own, with the same weights for all: it moves "
            "no information between patches. It computes new features from what attention has "
            "gathered, which weighted means alone cannot do. Its first matrix turns {D} numbers "
            "into {M}."
        ),
    ),
    "activated": StepText(
        "{activation}",
        3,
        "{activating}",
    ),
    "mlp": StepText(
        mark("MLP: out"),
        3,
        mark("A second matrix turns the hidden units back into {D} numbers."),
    ),
    "layer_scale2": StepText(
        "LayerScale", 3, mark("Again each number is multiplied by a learned factor.")
    ),
    "after": StepText(
        "+ → z_{ℓ}",
        3,
        mark(
            "The result is added to the stream too: the MLP changes it here by {mlp} of its "
            "length. z_{ℓ} goes to {next}."
        ),
    ),
}
ACTIVATING: Mapping[str, str] = {
    "plain": mark(
        "{activation} lets large positive numbers pass and brings negative ones close to 0. "
        "Without it, one matrix could do the work of both."
    ),
    "gated": mark(
        "One half of the hidden units goes through {activation} and is multiplied by the "
        "other half: a gate for each number."
    ),
}
#: Said after q, k and v; the rotation only where q and k before it are not available.
NORMALISED = mark(" This model then normalises each q and each k.")
ROTATION = mark(" They are shown after this model has rotated q and k by their positions (RoPE).")
BIAS = mark(" This family then adds a bias that depends on the positions of query and key.")
#: For a layer that cannot be opened.
CLOSED: Mapping[str, str] = {
    "before": mark("Layer {l} gets {T} tokens of {D} numbers, the residual stream."),
    "after_attention": mark("The result of the first half of the layer is added: {closed}."),
    "after": mark("The result of the second half of the layer, the MLP, is added too."),
}
KINDS_CLOSED: Mapping[str, str] = {
    "mixing": mark("weights across the patches, the same for every picture"),
    "window": mark("attention within windows"),
    "grid": mark("attention within windows of spread patches"),
    "pooled": mark("attention to pooled keys"),
    "class": mark("attention of CLS to all patches"),
    "global": mark("attention, in a form that is not opened here"),
}
#: The names of all steps and boxes in the table of their shapes.
NAMES: Mapping[str, str] = {
    "picture": mark("Picture"),
    "stem": mark("CNN stem"),
    "embedding": mark("Convolutions"),
    "first_tokens": mark("input of layer 1"),
    "patches": mark("Patches"),
    "flatten": mark("Flatten"),
    "project": mark("Project · E"),
    "embedding_norm": mark("norm of the patches"),
    "prefix": mark("prefix tokens added"),
    "positions": mark("position embeddings added"),
    "pre_norm": mark("norm before layer 1"),
    "encoder": mark("all layers"),
    "stage": mark("a stage"),
    "class_attention": mark("Class attention"),
    **dict.fromkeys(
        (
            *("output", "output_cls", "output_distilled"),
            *("output_mean", "output_mean_norm", "output_features"),
        ),
        mark("input of the head, y"),
    ),
    "head_hidden": mark("hidden layer of the head"),
    **dict.fromkeys(("head", "value_head", "no_head", "embedding_head"), mark("Head")),
    "before": mark("input of the layer"),
    "norm1": mark("norm before attention"),
    "unrotated_queries": mark("queries before RoPE"),
    "unrotated_keys": mark("keys before RoPE"),
    "queries": mark("queries, q"),
    "keys": mark("keys, k"),
    "values": mark("values, v"),
    "scores": mark("scores, q kᵀ / √D"),
    "attention": mark("attention, A"),
    "heads": mark("outputs of the heads, A v"),
    "concatenated": mark("heads side by side"),
    "heads_norm": mark("norm of the heads"),
    "projected": mark("output projection"),
    "layer_scale1": mark("LayerScale after attention"),
    "after_attention": mark("attention added"),
    "norm2": mark("norm before the MLP"),
    "hidden": mark("MLP: hidden"),
    "activated": mark("MLP: activated"),
    "mlp": mark("MLP: out"),
    "layer_scale2": mark("LayerScale after the MLP"),
    "after": mark("MLP added: output of the layer"),
}
