"""`load_model`, `watch` and the catalogue of models; the only package that imports timm."""

from ..families import ModelError
from .architectures import architecture_named
from .catalogue import Entry, catalogue, fetch_weights, on_disk, weights_of
from .files import read_labels
from .inputs import InputCost, input_cost, step_of, whole_picture
from .kernels import random_kernel
from .loading import leave_cores_free, load_model, size_in
from .repositories import repository
from .sizes import PAPER_SIZES, PaperSize, Size, counted, size_of
from .toys import TOYS, Toy, narrow_model, toy_model
from .watching import watch

__all__ = [
    "PAPER_SIZES",
    "TOYS",
    "Entry",
    "InputCost",
    "ModelError",
    "PaperSize",
    "Size",
    "Toy",
    "architecture_named",
    "catalogue",
    "counted",
    "fetch_weights",
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
    "toy_model",
    "watch",
    "weights_of",
    "whole_picture",
]
