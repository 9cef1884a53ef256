"""The catalogue of models that the app offers, and downloads of timm's trained weights."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..common.hub import HubError, Weights, download, find_cached, is_intact, remove_cached
from ..common.language import Message
from ..model.families import ModelError
from .architectures import find_architecture
from .checkpoints import shipped_names
from .repositories import cached_folder, download_error, fetch_repository, repository

SAFE_FILE = "model.safetensors"  # timm's name for weights on the hub


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    Attributes
    ----------
    family : str
        Shown before the name in the menu.
    weights : Weights or None
        Location of its trained weights on the hub; None for a shipped model.
    size : float
        Of the trained weights, in megabytes.
    """

    name: str
    family: str
    weights: Weights | None = None
    size: float = 0.0

    @property
    def shipped(self) -> bool:
        return self.weights is None

    @property
    def on_disk(self) -> bool:
        """Whether its trained weights need no download, without asking the network."""
        return self.weights is None or find_cached(self.weights) is not None


#: Family, name, tag and megabytes of timm's weights, copied from timm, as its import takes seconds.
_TIMM_MODELS = (
    ("ViT", "vit_tiny_patch16_224", "augreg_in21k_ft_in1k", 22.9),
    ("ViT", "vit_small_patch16_224", "augreg_in21k_ft_in1k", 88.2),
    ("ViT", "vit_base_patch16_224", "augreg2_in21k_ft_in1k", 346.3),
    ("ViT", "vit_large_patch16_224", "augreg_in21k_ft_in1k", 1217.3),
    ("DeiT", "deit_tiny_patch16_224", "fb_in1k", 22.9),
    ("DeiT", "deit_small_patch16_224", "fb_in1k", 88.2),
    ("DeiT", "deit_tiny_distilled_patch16_224", "fb_in1k", 23.6),
    ("DeiT", "deit3_small_patch16_224", "fb_in1k", 88.2),
    ("Hybrid", "vit_small_r26_s32_224", "augreg_in21k_ft_in1k", 145.7),
    ("DINOv2", "vit_small_patch14_dinov2", "lvd142m", 88.2),
    ("DINOv2", "vit_small_patch14_reg4_dinov2", "lvd142m", 88.2),
    ("DINOv3", "vit_small_patch16_dinov3", "lvd1689m", 86.3),
    ("EVA-02", "eva02_tiny_patch14_336", "mim_in22k_ft_in1k", 23.0),
    ("BEiT", "beit_base_patch16_224", "in22k_ft_in22k_in1k", 346.1),
    ("BEiT", "beitv2_base_patch16_224", "in1k_ft_in22k_in1k", 346.1),
    ("CLIP", "vit_base_patch32_clip_224", "laion2b_ft_in12k_in1k", 352.9),
    ("SigLIP", "vit_base_patch16_siglip_224", "v2_webli", 371.5),
    ("FlexiViT", "flexivit_small", "1200ep_in1k", 88.2),
    ("RelPos ViT", "vit_relpos_small_patch16_224", "sw_in1k", 87.9),
    ("CaiT", "cait_xxs24_224", "fb_dist_in1k", 47.8),
    ("Swin", "swin_tiny_patch4_window7_224", "ms_in1k", 113.2),
    ("Swin", "swinv2_tiny_window8_256", "ms_in1k", 113.4),
    ("PVT", "pvt_v2_b0", "in1k", 14.7),
    ("PVT", "pvt_v2_b2", "in1k", 101.5),
    ("Twins", "twins_svt_small", "in1k", 96.2),
    ("Twins", "twins_pcpvt_small", "in1k", 96.4),
    ("MaxViT", "maxvit_tiny_tf_224", "in1k", 123.7),
    ("CoAtNet", "coatnet_0_rw_224", "sw_in1k", 109.7),
    ("MLP-Mixer", "mixer_b16_224", "goog_in21k_ft_in1k", 239.5),
)


def catalogue() -> tuple[Entry, ...]:
    """Return the models that the app offers: shipped ones first, then timm's by family."""
    own = tuple(Entry(name, "ViT") for name in shipped_names())
    return own + _timm_entries()


@cache
def _timm_entries() -> tuple[Entry, ...]:
    return tuple(
        Entry(name, family, Weights(f"timm/{name}.{tag}", SAFE_FILE), size)
        for family, name, tag, size in _TIMM_MODELS
    )


def weights_of(name: str) -> Weights:
    """Return the location on the hub of an architecture's trained weights.

    Raises
    ------
    ModelError
        When timm has no such architecture, or no trained weights for it.
    """
    for entry in catalogue():
        if entry.name == name and entry.weights is not None:
            return entry.weights  # without the import of timm, which takes seconds

    architecture = find_architecture(name)
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(architecture)
    if config is None or not config.hf_hub_id:
        raise ModelError(
            "timm has no trained weights of {architecture} on the hub. Load it with "
            "pretrained=False.",
            architecture=architecture,
        )
    repo, _, revision = config.hf_hub_id.partition("@")
    # Beside pickled weights the hub has safetensors, which timm prefers, too.
    file = (config.hf_hub_filename or SAFE_FILE).replace("open_clip_pytorch_", "open_clip_")
    return Weights(repo, re.sub(r"\.(bin|pth?)$", ".safetensors", file), revision or "main")


def on_disk(name: str) -> bool:
    """Whether trained weights of an architecture or a repository need no download.

    Raises
    ------
    ModelError
        As `weights_of` does.
    """
    if repository(name):
        return cached_folder(name) is not None
    return find_cached(weights_of(name)) is not None


def fetch_weights(
    name: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    verify: bool = False,
) -> Path:
    """Return the file of trained weights in the cache; download it if it is not there.

    Parameters
    ----------
    name : str
        An architecture of timm, or a repository of the hub as "hf-hub:owner/name".
    progress : callable, optional
        Called several times a second during a download, with the bytes received and the bytes in
        total (None until that is known). An exception in it cancels the download.
    verify : bool
        True compares a cached file with its sha256, and downloads a damaged file again.

    Raises
    ------
    ModelError
        When the weights cannot be downloaded.
    """
    if repository(name):
        return fetch_repository(name, progress=progress, verify=verify)
    weights = weights_of(name)
    file = find_cached(weights)
    if file is not None and verify and not is_intact(file):
        remove_cached(file)
        file = None
    try:
        return file or download(weights, progress=progress)
    except HubError as error:
        name = name.removeprefix("timm/")
        what = Message("The trained weights of {name}", name=name)
        instead = Message("the shipped model or random weights")
        raise download_error(what, name, instead, error) from error
