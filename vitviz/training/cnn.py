"""Two CNNs: a residual one, compared with a ViT on few data, and a quick one, its teacher."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BIAS_RATE = 64  # factor on the learning rate of the biases of a WhitenedCnn's normalisation


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a skip connection (He et al., CVPR 2016, Fig. 2)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class Cnn(nn.Module):
    """A stem and three stages, each of which halves the picture and doubles the channels.

    Parameters
    ----------
    width : int
        Channels of the stem.
    num_classes : int
    """

    def __init__(self, *, width: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        for stage in range(3):
            channels = width * 2**stage
            layers += [
                nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(2 * channels),
                nn.ReLU(),
                ResidualBlock(2 * channels),
            ]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.features(x).mean(dim=(2, 3)))
        return y  # (B, 3, H, W) -> (B, K)


class WhitenedCnn(nn.Module):
    """A CNN that learns CIFAR in few epochs; its first layer is computed from the data and frozen.

    Its filters of 2 x 2 pixels whiten the pictures, each with its negative. Three groups of two
    convolutions follow; the first of each is pooled. Only the biases of batch normalisation are
    learned, `BIAS_RATE` times as fast as the rest.

    Parameters
    ----------
    widths : sequence of int
        Channels of the groups.
    num_classes : int

    References
    ----------
    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", https://arxiv.org/abs/2404.00498,
    section 3.
    """

    def __init__(self, *, widths: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad_(False)
        channels, groups = 24, []
        for width in widths:
            groups += [
                _init_identity(nn.Conv2d(channels, width, 3, padding=1, bias=False)),
                nn.MaxPool2d(2),
                _freeze_scale(nn.BatchNorm2d(width, momentum=0.4)),
                nn.GELU(),
                _init_identity(nn.Conv2d(width, width, 3, padding=1, bias=False)),
                _freeze_scale(nn.BatchNorm2d(width, momentum=0.4)),
                nn.GELU(),
            ]
            channels = width
        self.features = nn.Sequential(self.whiten, nn.GELU(), *groups, nn.AdaptiveMaxPool2d(1))
        self.head = nn.Linear(channels, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.features(x).flatten(1)) / 9
        return y  # (B, 3, H, W) -> (B, K)

    @torch.no_grad()
    def set_whitening(self, x: Tensor) -> None:
        """Set the first layer so that its outputs for the pictures (n, 3, H, W) are white."""
        patches = F.unfold(x, 2).transpose(1, 2).reshape(-1, 12)
        variance, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (directions / (variance + 5e-4).sqrt()).T.reshape(12, 3, 2, 2)
        self.whiten.weight.copy_(torch.cat([filters, -filters]))
        assert self.whiten.bias is not None
        self.whiten.bias.zero_()


def _init_identity(convolution: nn.Conv2d) -> nn.Conv2d:
    """Initialise the first outputs as copies of the inputs (Dirac initialisation)."""
    nn.init.dirac_(convolution.weight.data[: convolution.in_channels])
    return convolution


def _freeze_scale(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    norm.weight.requires_grad_(False)
    return norm
