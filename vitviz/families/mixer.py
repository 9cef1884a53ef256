"""MLP-Mixer, ResMLP and gMLP: no attention, but learned weights that mix the tokens."""

from typing import Any

from torch import Tensor

from ..language import Message
from .description import Family, Grid, Site, is_timm, layer_at

_WEIGHTS = {  # by the class of the block: the linear layer that sums over the tokens
    "MixerBlock": "mlp_tokens.fc1",
    "ResBlock": "linear_tokens",
    "SpatialGatingBlock": "mlp_channels.gate.proj",
}


def _sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    return tuple(
        Site(
            layer=layer_at(
                f"blocks.{index}",
                module.stem.dynamic_feat_size(input_size),
                module.stem.feat_ratio(as_scalar=False),
                input_size,
                heads=0,
                kind="mixing",
                refusal=Message(
                    "{layer} has no attention: it mixes tokens by weights that are the same for "
                    "every picture.",
                    layer=f"blocks.{index}",
                ),
            ),
            block=block,
            middle="" if type(block).__name__ == "SpatialGatingBlock" else "norm2",
            mixing=block.get_submodule(_WEIGHTS[type(block).__name__]),
        )
        for index, block in enumerate(module.blocks)
    )


def token_weights(site: Site) -> Tensor | None:
    """The token-mixing weights of a layer, (units, patches); None where it attends."""
    if site.layer.kind != "mixing" or site.mixing is None:
        return None
    return site.mixing.weight


def _is_mixer(module: Any) -> bool:
    return is_timm(module, "mlp_mixer", "MlpMixer") and all(
        type(block).__name__ in _WEIGHTS for block in module.blocks
    )


MIXER = (
    Family(
        name="MLP-Mixer",
        recognises=_is_mixer,
        sites=_sites,
        positional_attention=lambda module: True,
    ),
)
