"""Models of transformers whose later stages have coarser grids: Swin, Swin V2 and PVT v2."""

from typing import Any

from torch import Tensor, nn

from .description import Family, Grid, ModelError, Parts, Site, layer_at
from .staged import halved, pvt_sites
from .transformers import Encoder, heads_of, image_size, outputs_of, run, table_at
from .windows import shifted_windows

_SWIN = {
    "SwinLayer": Encoder(
        place="swin", name="SwinModel", wholes={"SwinForImageClassification": "swin"}
    ),
    "Swinv2Layer": Encoder(
        place="swinv2", name="Swinv2Model", wholes={"Swinv2ForImageClassification": "swinv2"}
    ),
}
_PVT = Encoder(place="pvt_v2", name="PvtV2Model", wholes={"PvtV2ForImageClassification": "pvt_v2"})


def _swin_of(module: nn.Module) -> Encoder | None:
    """The row of a Swin all of whose blocks are known."""
    for block, encoder in _SWIN.items():
        if encoder.path(module) is not None:
            stages = encoder.of(module).encoder.layers
            known = all(type(b).__name__ == block for stage in stages for b in stage.blocks)
            return encoder if known else None
    return None


def _swin(module: nn.Module) -> tuple[Encoder, Any]:
    """Of a module that is recognised; some of its blocks may be exchanged."""
    row = next(encoder for encoder in _SWIN.values() if encoder.path(module) is not None)
    return row, row.of(module)


def _swin_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """The picture is padded to whole patches, and the grid to even sides before it is halved."""
    row, encoder = _swin(module)
    step: Grid = encoder.embeddings.patch_embeddings.projection.kernel_size
    grid: Grid = (-(-input_size[0] // step[0]), -(-input_size[1] // step[1]))
    sites = []
    for number, stage in enumerate(encoder.encoder.layers):
        if number:
            grid, step = halved(grid), (2 * step[0], 2 * step[1])
        for index, block in enumerate(stage.blocks):
            name = row.path_of(module, f"encoder.layers.{number}.blocks.{index}")
            heads = encoder.config.num_heads[number]
            layer = layer_at(name, grid, step, input_size, heads=heads, stage=number)
            window, shift = int(block.window_size), int(block.shift_size)
            if type(block).__name__ == "SwinLayer" and min(grid) <= window:
                if min(grid) < window:  # its table of relative positions is for whole windows
                    raise ModelError(
                        "This Swin of transformers attends in windows of {window} x {window} "
                        "patches, and a picture of {height} x {width} pixels has {rows} x "
                        "{cols} in stage {stage}: give it larger pictures.",
                        window=window,
                        height=input_size[0],
                        width=input_size[1],
                        rows=grid[0],
                        cols=grid[1],
                        stage=number + 1,
                    )
                shift = 0
            windows = shifted_windows(grid, (window,) * 2, (shift,) * 2, padded_first=True)
            middle = "layernorm_after" if type(block).__name__ == "SwinLayer" else "intermediate"
            sites.append(Site(layer=layer, block=block, middle=middle, windows=windows))
    return tuple(sites)


def _swin_parts(module: Any) -> Parts:
    row, encoder = _swin(module)
    return Parts(
        embedding=encoder.embeddings.patch_embeddings,
        kernel=encoder.embeddings.patch_embeddings.projection,
        norm=encoder.layernorm,
        pooled_norm=None,
        positions=table_at(row, module, "embeddings.position_embeddings"),
        prefix=(),
        heads=heads_of(module),
        width=encoder.num_features,
        outputs=outputs_of(module),
    )


def _run_swin(module: Any, x: Tensor) -> Tensor:
    return run(module, x, image_size(_swin(module)[1].config))


def _is_pvt(module: nn.Module) -> bool:
    return _PVT.path(module) is not None and all(
        type(block).__name__ == "PvtV2BlockLayer"
        for stage in _PVT.of(module).encoder.layers
        for block in stage.blocks
    )


def _pvt_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    stages = enumerate(_PVT.of(module).encoder.layers)
    return pvt_sites(
        [
            (
                _PVT.path_of(module, f"encoder.layers.{number}.blocks"),
                stage.patch_embedding.proj,
                stage.blocks,
            )
            for number, stage in stages
        ],
        input_size,
        _pvt_attention,
        middle="layer_norm_2",
    )


def _pvt_attention(block: Any) -> tuple[int, Any, Any]:
    """Heads and pooling as `pvt_sites` asks for them; what is not used is not there."""
    attn = block.attention
    pool, strided = (getattr(attn, name, None) for name in ("pool", "spatial_reduction"))
    return attn.num_attention_heads, pool, strided


def _pvt_parts(module: Any) -> Parts:
    stages = _PVT.of(module).encoder.layers
    return Parts(
        embedding=stages[0].patch_embedding,
        kernel=stages[0].patch_embedding.proj,
        norm=stages[-1].layer_norm,
        pooled_norm=None,
        positions="",
        prefix=(),
        heads=heads_of(module),
        width=int(stages[-1].layer_norm.normalized_shape[0]),
        outputs=outputs_of(module),
    )


TRANSFORMERS_STAGED = (
    Family(
        name="Swin",
        recognises=lambda module: _swin_of(module) is not None,
        sites=_swin_sites,
        parts=_swin_parts,
        run=_run_swin,
        positional_attention=lambda module: True,
    ),
    Family(
        name="PVT v2",
        recognises=_is_pvt,
        sites=_pvt_sites,
        parts=_pvt_parts,
        run=lambda module, x: run(module, x, None),
        positional_attention=lambda module: True,
        any_size=True,
    ),
)
