"""One Plotly figure per measurement.

Every function takes arrays, many also a capture alone (`plots.attention_map(acts, layer, head)`),
and returns a `go.Figure` whose `layout.meta["alt"]` says in words what it shows. Plotly saves it:
`figure.write_html("a.html")`, and where kaleido is installed `figure.write_image("a.svg")`. Layers,
heads, rows and columns count from 1 on screen. Maps are drawn in pixels of the picture, each patch
one flat rectangle.
"""

from .captures import (
    attention_distance,
    attention_map,
    attention_rollout,
    class_probabilities,
    distance_histogram,
    offset_attention,
    picture,
    token_components,
    token_film,
    token_norms,
    token_scatter,
)
from .charts import position_profile
from .clicked import muted_heads, removed_patches
from .comparison import (
    distance_by_depth,
    distance_difference,
    joint_components,
    mutual_matches,
)
from .experiments import (
    answer_change,
    logit_lens,
    occlusion,
    removal_curves,
)
from .guesses import guesses, guesses_by_layer, with_guess, with_guessed_layer
from .maps import filter_response, patch_answers, receptive_fields, relevance
from .pairs import allowed_keys, allowed_pairs, attention_cost
from .template import KEY, QUERY, SHARES, enlarged
from .tiles import (
    filter_components,
    filter_tile,
    filters,
    position_similarity,
    position_tile,
    token_mixing,
)
from .training import (
    conditions,
    data_hunger,
    distance_by_layer,
    entropy_by_layer,
    training_curves,
)

__all__ = [
    "KEY",
    "QUERY",
    "SHARES",
    "allowed_keys",
    "allowed_pairs",
    "answer_change",
    "attention_cost",
    "attention_distance",
    "attention_map",
    "attention_rollout",
    "class_probabilities",
    "conditions",
    "data_hunger",
    "distance_by_depth",
    "distance_by_layer",
    "distance_difference",
    "distance_histogram",
    "enlarged",
    "entropy_by_layer",
    "filter_components",
    "filter_response",
    "filter_tile",
    "filters",
    "guesses",
    "guesses_by_layer",
    "joint_components",
    "logit_lens",
    "muted_heads",
    "mutual_matches",
    "occlusion",
    "offset_attention",
    "patch_answers",
    "picture",
    "position_profile",
    "position_similarity",
    "position_tile",
    "receptive_fields",
    "relevance",
    "removal_curves",
    "removed_patches",
    "token_components",
    "token_film",
    "token_mixing",
    "token_norms",
    "token_scatter",
    "training_curves",
    "with_guess",
    "with_guessed_layer",
]
