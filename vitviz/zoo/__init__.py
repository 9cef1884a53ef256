"""The catalogue of models, and `load_model`; the only package that imports timm."""

from ..families import ModelError
from .catalogue import Entry, catalogue, fetch_weights, on_disk, weights_of
from .loading import leave_cores_free, load_model

__all__ = [
    "Entry",
    "ModelError",
    "catalogue",
    "fetch_weights",
    "leave_cores_free",
    "load_model",
    "on_disk",
    "weights_of",
]
