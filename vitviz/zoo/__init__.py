"""`load_model`, `watch` and the catalogue of models; the only package that imports timm."""

from ..model.families import ModelError
from .architectures import find_architecture
from .catalogue import Entry, catalogue, fetch_weights, on_disk, weights_of
from .files import check_adapter, read_labels
from .first_layers import FIRST_LAYERS, FirstLayer
from .inputs import InputCost, input_cost, step_of, tokens_attending, whole_picture
from .loading import leave_cores_free, load_model, random_kernel, size_in
from .repositories import repository
from .sizes import PAPER_SIZES, PaperSize, Size, count_architecture, size_of
from .toys import TOYS, Toy, narrow_model, toy_model
from .watching import watch

__all__ = [
    "FIRST_LAYERS",
    "PAPER_SIZES",
    "TOYS",
    "Entry",
    "FirstLayer",
    "InputCost",
    "ModelError",
    "PaperSize",
    "Size",
    "Toy",
    "catalogue",
    "check_adapter",
    "count_architecture",
    "fetch_weights",
    "find_architecture",
    "input_cost",
    "leave_cores_free",
    "load_model",
    "narrow_model",
    "on_disk",
    "random_kernel",
    "read_labels",
    "repository",
    "size_in",
    "size_of",
    "step_of",
    "tokens_attending",
    "toy_model",
    "watch",
    "weights_of",
    "whole_picture",
]
