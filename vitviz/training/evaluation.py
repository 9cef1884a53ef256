"""Measure accuracy and calibration: expected calibration error, and temperature scaling."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ..model import Preprocessing
from ..model.answers import CONFIDENT, GRADES, WEAK, grade_of
from ..model.devices import find_device
from ..vit import VisionTransformer
from ..zoo.checkpoints import Shipped, load_trained, weights_file
from .data import Split, load
from .objective import Network
from .recipes import RECIPES

BINS = 15
DATASETS = {10: "cifar10", 100: "cifar100", 200: "tiny_imagenet"}  # by their number of classes


@dataclass(frozen=True)
class Calibration:
    """Accuracy, confidence and calibration of a model on some pictures.

    Attributes
    ----------
    accuracy : float
        Share of pictures whose most probable class is their label.
    among_five : float
        Share of pictures whose label is one of the five most probable classes (top-5 accuracy).
    confidence : float
        Mean probability of the most probable class.
    error : float
        Expected calibration error: over 15 equal bins of confidence, the mean distance between
        confidence and accuracy, weighted by the bins' pictures (Guo et al., ICML 2017, section 2).
    temperature : float
        The divisor of the logits with the least negative log-likelihood (section 4.2).
    error_at_temperature : float
    """

    accuracy: float
    among_five: float
    confidence: float
    error: float
    temperature: float
    error_at_temperature: float


def fitted_preprocessing(network: Network, split: Split) -> Preprocessing:
    """Return the preprocessing that resizes the split's pictures to the network's input."""
    side = split.pictures.shape[1]
    small = (side, side)
    size = network.patch_embed.image_size if isinstance(network, VisionTransformer) else small
    detail = min(1.0, side / size[0])
    return Preprocessing(input_size=size, mean=split.mean, std=split.std, detail=detail)


def predict(
    network: Network,
    split: Split,
    preprocess: Preprocessing | None = None,
    *,
    batch_size: int = 10,  # with 50, each picture takes half as long again
) -> Tensor:
    """Compute logits (n, K) of a split's pictures, each preprocessed as in `capture`."""
    preprocess = preprocess or fitted_preprocessing(network, split)
    device = next(network.parameters()).device
    network.eval()
    logits = []
    with torch.inference_mode():
        for first in range(0, len(split.pictures), batch_size):
            pictures = map(Image.fromarray, split.pictures[first : first + batch_size])
            x = torch.stack([preprocess(picture) for picture in pictures])
            logits.append(network(x.to(device)).float().cpu())
    return torch.cat(logits)


def accuracy(network: Network, split: Split) -> float:
    """Return the share of the split's pictures whose most probable class is their label."""
    right = predict(network, split).argmax(dim=1) == torch.from_numpy(split.labels)
    return float(right.float().mean())


def evaluate(
    model: str | Path, *, data: Path, split: str = "test", device: str = "cpu"
) -> Calibration:
    """Measure accuracy and calibration of a model of ours on the dataset that it was trained on.

    Parameters
    ----------
    model : str or Path
        A shipped model's name, or a file that `train` wrote.
    data : Path
        Folder with the dataset, see `load`.
    split : "test" or "train"
    device : "cpu", "cuda", "mps", ...

    Raises
    ------
    ValueError
        When there is no such model or device, or no data of its classes.
    """
    module, preprocess, shipped = _load_model(weights_file(model), device)
    pictures = load(data, DATASETS[len(shipped.classes)], split)
    return calibration(module, pictures, preprocess)


def _load_model(path: Path, device: str) -> tuple[VisionTransformer, Preprocessing, Shipped]:
    place = find_device(device)
    shipped = load_trained(path)
    module = VisionTransformer(**shipped.configuration)
    module.load_state_dict(shipped.state)
    preprocess = Preprocessing(
        input_size=module.patch_embed.image_size,
        mean=shipped.mean,
        std=shipped.std,
        detail=shipped.detail,
    )
    return module.to(place), preprocess, shipped


def fit_grades(model: str | Path, *, data: Path, device: str = "cpu") -> dict[str, Any]:
    """Fit the three grades of answers on held-out pictures, and measure them on the test split.

    Returns
    -------
    dict
        As `write_metadata` puts it into the weights and `vitviz.model.answers.Grades` reads it.

    Raises
    ------
    ValueError
        As `evaluate`, or when no recipe says how many pictures the training held out.
    """
    path = weights_file(model)
    module, preprocess, shipped = _load_model(path, device)
    held_out = [one.held_out for one in RECIPES.values() if one.model == path.stem]
    if not held_out:
        raise ValueError(f"No recipe made {path.stem}, so its held-out pictures are not known.")
    dataset = DATASETS[len(shipped.classes)]
    results = {}
    for split, last in (("train", held_out[0]), ("test", None)):
        pictures = load(data, dataset, split, last=last)
        confidence, answer = predict(module, pictures, preprocess).softmax(dim=1).max(dim=1)
        results[split] = (confidence.numpy(), answer.numpy() == pictures.labels)
    thresholds = fit_thresholds(*results["train"])
    return {
        "weak_below": thresholds[0],
        "confident_from": thresholds[1],
        "held_out_pictures": len(results["train"][1]),
        "held_out": measure_grades(*results["train"], thresholds),
        "test_pictures": len(results["test"][1]),
        "test": measure_grades(*results["test"], thresholds),
    }


def fit_thresholds(confidence: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """Return the probabilities below which answers are weak, and from which they are confident.

    The share of right answers at each probability is estimated by isotonic regression: the
    non-decreasing function with the least squared error. Both thresholds are rounded up to whole
    percent, as the page shows them.

    Parameters
    ----------
    confidence : ndarray of shape (n,)
        Probability of the most probable class.
    right : bool ndarray of shape (n,)

    References
    ----------
    Zadrozny and Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability
    Estimates" (KDD 2002), section 3.
    """
    from sklearn.isotonic import IsotonicRegression  # late: slow to import

    wide = confidence.astype(np.float64)
    shares = IsotonicRegression().fit_transform(wide, right)

    def lowest_probability(share: float) -> float:
        """Return where at least this share of answers is right; above 1 if there is no such."""
        low = wide[shares >= share - 1e-9].min(initial=1.01)  # a mean of 0 and 1 is rounded
        return math.ceil(round(100 * low, 6)) / 100

    return lowest_probability(WEAK), lowest_probability(CONFIDENT)


def measure_grades(
    confidence: np.ndarray, right: np.ndarray, thresholds: tuple[float, float]
) -> dict[str, list[float]]:
    """Return, for each grade, its share of the answers and the share of these that are right."""
    grades = np.array([grade_of(float(one), *thresholds) for one in confidence])
    rates: dict[str, list[float]] = {}
    for grade in GRADES:
        mask = grades == grade
        rate = float(right[mask].mean()) if mask.any() else 0.0
        rates[grade] = [round(float(mask.mean()), 4), round(rate, 4)]
    return rates


def calibration(
    network: Network, split: Split, preprocess: Preprocessing | None = None
) -> Calibration:
    """Measure accuracy and calibration on a split; the temperature is fitted on the same pictures.

    References
    ----------
    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017),
    https://arxiv.org/abs/1706.04599.
    """
    logits, labels = predict(network, split, preprocess), torch.from_numpy(split.labels)
    temperature = fit_temperature(logits, labels)
    probabilities = logits.softmax(dim=1)
    confidence, answer = probabilities.max(dim=1)
    return Calibration(
        accuracy=float((answer == labels).float().mean()),
        among_five=top_accuracy(logits, labels, 5),
        confidence=float(confidence.mean()),
        error=calibration_error(probabilities, labels),
        temperature=temperature,
        error_at_temperature=calibration_error((logits / temperature).softmax(dim=1), labels),
    )


def top_accuracy(logits: Tensor, labels: Tensor, count: int) -> float:
    """Return the share of the rows of logits (n, K) whose label is among the `count` largest."""
    best = logits.topk(min(count, logits.shape[1]), dim=1).indices
    return float((best == labels[:, None]).any(dim=1).float().mean())


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Find the temperature, from 0.01 to 100, of the least negative log-likelihood.

    The likelihood is concave in 1 / T, so it has one peak.
    """
    from scipy.optimize import minimize_scalar  # late: slow to import

    wide = logits.double()  # single precision rounds the flat bottom of the loss

    def loss(logarithm: float) -> float:
        return float(F.cross_entropy(wide / math.exp(logarithm), labels))

    ends = (math.log(0.01), math.log(100))
    best = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-4})
    return math.exp(best.x)


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error of probabilities (n, K)."""
    confidence, answer = (array.numpy() for array in probabilities.max(dim=1))
    right = answer == labels.numpy()
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [
        abs(float(confidence[place == number].sum() - right[place == number].sum()))
        for number in range(BINS)
    ]
    return sum(gaps) / len(right)
