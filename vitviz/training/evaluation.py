"""Accuracy and calibration: expected calibration error, and temperature scaling."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ..checkpoints import load_shipped, load_trained, shipped_names
from ..devices import device_named
from ..model import Preprocessing
from ..vit import VisionTransformer
from .attention import PlainAttention
from .data import Split, load
from .objective import Network

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
        What the logits must be divided by for the least negative log-likelihood (section 4.2).
    error_at_temperature : float
    """

    accuracy: float
    among_five: float
    confidence: float
    error: float
    temperature: float
    error_at_temperature: float


def preprocessing_of(network: Network, split: Split) -> Preprocessing:
    """How the split's pictures become the network's input: enlarged once, or reduced."""
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
    batch_size: int = 50,  # with more, attention of 257 tokens takes gigabytes
) -> Tensor:
    """Logits (n, K) of a split's pictures, each prepared as `capture` prepares a user's."""
    preprocess = preprocess or preprocessing_of(network, split)
    device = next(network.parameters()).device
    attention = PlainAttention() if device.type == "cpu" else nullcontext()
    network.eval()
    logits = []
    with torch.inference_mode(), attention:
        for first in range(0, len(split.pictures), batch_size):
            pictures = map(Image.fromarray, split.pictures[first : first + batch_size])
            x = torch.stack([preprocess(picture) for picture in pictures])
            logits.append(network(x.to(device)).float().cpu())
    return torch.cat(logits)


def accuracy(network: Network, split: Split) -> float:
    """Share of the split's pictures whose most probable class is their label."""
    right = predict(network, split).argmax(dim=1) == torch.from_numpy(split.labels)
    return float(right.float().mean())


def evaluate(
    model: str | Path, *, data: Path, split: str = "test", device: str = "cpu"
) -> Calibration:
    """Accuracy and calibration of a model of ours on the dataset that it was trained on.

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
    place = device_named(device)
    known = str(model) in shipped_names()
    shipped = load_shipped(str(model)) if known else load_trained(Path(model))
    module = VisionTransformer(**shipped.configuration)
    module.load_state_dict(shipped.state)
    preprocess = Preprocessing(
        input_size=module.patch_embed.image_size,
        mean=shipped.mean,
        std=shipped.std,
        detail=shipped.detail,
    )
    pictures = load(data, DATASETS[len(shipped.classes)], split)
    return calibration(module.to(place), pictures, preprocess)


def calibration(
    network: Network, split: Split, preprocess: Preprocessing | None = None
) -> Calibration:
    """Accuracy and calibration on a split; the temperature is fitted on the same pictures.

    References
    ----------
    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017),
    https://arxiv.org/abs/1706.04599.
    """
    logits, labels = predict(network, split, preprocess), torch.from_numpy(split.labels)
    temperature = fitted_temperature(logits, labels)
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
    """Share of the rows of logits (n, K) in which the label is among the `count` largest."""
    best = logits.topk(min(count, logits.shape[1]), dim=1).indices
    return float((best == labels[:, None]).any(dim=1).float().mean())


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of the least negative log-likelihood, found by golden-section search.

    The likelihood has one peak in 1 / T, as it is concave there.
    """

    def loss(inverse: float) -> float:
        return float(F.cross_entropy(logits * inverse, labels))

    low, high = 0.01, 100.0
    ratio = (5**0.5 - 1) / 2
    while high - low > 1e-4 * low:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return 2 / (low + high)


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error of probabilities (n, K)."""
    confidence, answer = (array.numpy() for array in probabilities.max(dim=1))
    right = answer == labels.numpy()
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [
        abs(float(confidence[place == number].sum() - right[place == number].sum()))
        for number in range(BINS)
    ]
    return sum(gaps) / len(right)
