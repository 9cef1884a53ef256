"""A small residual CNN: the teacher of the distilled ViT, and its rival when data are few."""

from torch import Tensor, nn
from torch.nn import functional as F


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
