"""Trains the models in assets/: data, recipes, one loop, one evaluation on the test split.

A run lives in one folder and can be stopped and resumed: `checkpoint.safetensors` holds the
weights, their moving average and, as metadata, how far the run has come; `moments.npz` holds what
the model showed on the way. The optimisers' momentum is not kept; it rebuilds within some twenty
steps, during which the rate warms up again.
"""

from .attention import PlainAttention
from .augmentation import augment, crop, cutmix, recolour
from .data import MEAN, STD, Split, load, load_cifar, normalise
from .evaluation import (
    Calibration,
    accuracy,
    calibration,
    calibration_error,
    evaluate,
    fitted_temperature,
    predict,
)
from .loop import build, grow, train
from .objective import rate_factor
from .publishing import record
from .recipes import RECIPES, Recipe, Stage

__all__ = [
    "MEAN",
    "RECIPES",
    "STD",
    "Calibration",
    "PlainAttention",
    "Recipe",
    "Split",
    "Stage",
    "accuracy",
    "augment",
    "build",
    "calibration",
    "calibration_error",
    "crop",
    "cutmix",
    "evaluate",
    "fitted_temperature",
    "grow",
    "load",
    "load_cifar",
    "normalise",
    "predict",
    "rate_factor",
    "recolour",
    "record",
    "train",
]
