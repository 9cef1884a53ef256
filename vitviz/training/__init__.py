"""Train the models in assets/: data, recipes, one loop, one evaluation on the test split.

A run lives in one folder and can be stopped and resumed: `checkpoint.safetensors` holds the
weights, their moving average and, as metadata, the progress of the run; `moments.npz` holds
snapshots of filters, positions and attention. The optimisers' momentum is not saved; it builds up
again within some twenty steps, during which the learning rate warms up again.
"""

from .augmentation import colour_jitter, cutmix, flip_and_shift, random_resized_crop
from .data import MEAN, STD, Split, load, load_cifar, normalise
from .evaluation import (
    Calibration,
    accuracy,
    calibration,
    calibration_error,
    evaluate,
    fit_grades,
    fit_temperature,
    predict,
)
from .loop import build, grow, train
from .objective import PlainAttention, rate_factor
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
    "build",
    "calibration",
    "calibration_error",
    "colour_jitter",
    "cutmix",
    "evaluate",
    "fit_grades",
    "fit_temperature",
    "flip_and_shift",
    "grow",
    "load",
    "load_cifar",
    "normalise",
    "predict",
    "random_resized_crop",
    "rate_factor",
    "record",
    "train",
]
