"""The Vision Transformer in one file, bottom-up: patches, attention, block, model.

Equations (1)-(4) are those of Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021).
Parameters carry timm's names, so that loading a timm checkpoint is a copy.

Letters in the shape comments: B batch, C channels, H W picture height and width, P patch side,
R S rows and columns of the patch grid, N = R * S patches, T tokens (prefix + N), D embed_dim,
h heads, d = D / h.
"""

import math
from collections.abc import Mapping
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .common.language import MessageError

Positions = Literal["learned", "sincos1d", "sincos2d", "none"]


class Configuration(TypedDict):
    """The numbers that make one size of ViT; passed to `VisionTransformer` as keywords."""

    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    mlp_dim: int


#: B, L, H: ViT paper, Table 1. Ti, S: Touvron et al., DeiT (ICML 2021), Table 1.
#: G: Zhai et al., "Scaling Vision Transformers" (CVPR 2022), Table 2.
CONFIGURATIONS: Mapping[str, Configuration] = {
    "Ti/16": Configuration(patch_size=16, embed_dim=192, depth=12, num_heads=3, mlp_dim=768),
    "S/16": Configuration(patch_size=16, embed_dim=384, depth=12, num_heads=6, mlp_dim=1536),
    # 86 M parameters with 1,000 classes; L/16 has 307 M, H/14 632 M
    "B/16": Configuration(patch_size=16, embed_dim=768, depth=12, num_heads=12, mlp_dim=3072),
    "B/32": Configuration(patch_size=32, embed_dim=768, depth=12, num_heads=12, mlp_dim=3072),
    "L/16": Configuration(patch_size=16, embed_dim=1024, depth=24, num_heads=16, mlp_dim=4096),
    "L/32": Configuration(patch_size=32, embed_dim=1024, depth=24, num_heads=16, mlp_dim=4096),
    "H/14": Configuration(patch_size=14, embed_dim=1280, depth=32, num_heads=16, mlp_dim=5120),
    "G/14": Configuration(patch_size=14, embed_dim=1664, depth=48, num_heads=16, mlp_dim=8192),
}

#: Standard deviation of tokens, positions and linear weights before training: that of BERT (Devlin
#: et al., 2019), of DeiT's code (Touvron et al., 2021) and of timm's `init_weights_vit_timm`. The
#: ViT paper's own JAX code has it for positions only: its weights are Xavier's, CLS and head 0.
INITIAL_STD = 0.02  # torch truncates at 2, so in effect not at all


class HybridStem(nn.Sequential):
    """A small CNN whose feature map is cut into patches instead of the picture (section 3.1).

    Two 3x3 convolutions of stride 2, so that one step of the feature map is 4 pixels.
    """

    stride = 4

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, width, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(8, width),
            nn.ReLU(),
        )


class PatchEmbed(nn.Module):
    """x_p E of eq. 1: a convolution with kernel = stride = P is one matrix applied to each patch.

    With a stem, the convolution runs on the stem's feature map, and one patch of that map covers
    `stem.stride` times as many pixels.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        in_channels: int,
        embed_dim: int,
        stem_width: int,
    ) -> None:
        super().__init__()
        kernel = patch_size
        self.backbone = HybridStem(in_channels, stem_width) if stem_width else None
        if stem_width:
            in_channels, kernel = stem_width, patch_size // HybridStem.stride
            if kernel * HybridStem.stride != patch_size:
                raise ValueError(
                    f"With a stem the patch size must be a multiple of {HybridStem.stride}, "
                    f"got {patch_size}."
                )
        if image_size[0] % patch_size or image_size[1] % patch_size or min(image_size) < 1:
            raise MessageError(
                "The image size {rows} x {cols} is not a multiple of the patch size {patch_size}.",
                rows=image_size[0],
                cols=image_size[1],
                patch_size=patch_size,
            )
        self.image_size = image_size
        self.grid_size = (image_size[0] // patch_size, image_size[1] // patch_size)
        self.patch_size = (patch_size, patch_size)
        self.proj = nn.Conv2d(in_channels, embed_dim, kernel_size=kernel, stride=kernel)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[-2:]) != self.image_size:
            raise ValueError(
                f"Expected a picture of {self.image_size[0]} x {self.image_size[1]} pixels, "
                f"got {x.shape[-2]} x {x.shape[-1]}."
            )
        if self.backbone is not None:
            x = self.backbone(x)
        x = self.proj(x)  # (B, C, H, W) -> (B, D, R, S)
        return x.flatten(2).transpose(1, 2)  # (B, N, D)


class Attention(nn.Module):
    """Multi-head self-attention (MSA), appendix A of the paper, equations 5 to 8."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {embed_dim}.")
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)  # eq. 5
        self.proj = nn.Linear(embed_dim, embed_dim)  # eq. 8

    def queries_keys_values(self, z: Tensor) -> Tensor:
        B, T, D = z.shape
        qkv = self.qkv(z).reshape(B, T, 3, self.num_heads, D // self.num_heads)
        return qkv.permute(2, 0, 3, 1, 4)  # (3, B, h, T, d)

    def attention(self, z: Tensor) -> Tensor:
        """Compute A of eq. 6, (B, T, D) -> (B, h, T, T): row i holds the shares that token i gives.

        `forward` never holds this matrix: torch fuses eq. 6 and 7 into one call.
        """
        q, k, _ = self.queries_keys_values(z)  # each (B, h, T, d)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, h, T, T)
        return scores.softmax(dim=-1)

    def forward(self, z: Tensor) -> Tensor:
        q, k, v = self.queries_keys_values(z)  # each (B, h, T, d)
        heads = F.scaled_dot_product_attention(q, k, v)  # A v, eq. 6 and 7: (B, h, T, d)
        return self.proj(heads.transpose(1, 2).flatten(2))  # heads side by side: (B, T, D)


class Mlp(nn.Module):
    """Two layers with GELU between them, applied to each token alone."""

    def __init__(self, embed_dim: int, mlp_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, embed_dim)

    def forward(self, z: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(z)))


class Block(nn.Module):
    """One encoder layer: attention mixes the tokens, the MLP works on each; both are added."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.attn = Attention(embed_dim, num_heads)
        self.norm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.mlp = Mlp(embed_dim, mlp_dim)

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.attn(self.norm1(z))  # eq. 2
        return z + self.mlp(self.norm2(z))  # eq. 3


class PreTrainingHead(nn.Module):
    """The head with one hidden layer and tanh that the paper uses while pre-training only."""

    def __init__(self, embed_dim: int, hidden_dim: int, num_classes: int) -> None:
        super().__init__()
        self.pre_logits = nn.Linear(embed_dim, hidden_dim)
        self.out = nn.Linear(hidden_dim, num_classes)

    def forward(self, y: Tensor) -> Tensor:
        return self.out(torch.tanh(self.pre_logits(y)))


class VisionTransformer(nn.Module):
    """The Vision Transformer.

    Parameters
    ----------
    image_size : int or (int, int)
        Height and width of the input in pixels; one number means a square.
    patch_size, embed_dim, depth, num_heads, mlp_dim : int
        The size; `**CONFIGURATIONS["B/16"]` gives the paper's.
    in_channels : int
    num_classes : int
        0 leaves the head out: the output is then y of eq. 4.
    positions : "learned", "sincos1d", "sincos2d" or "none"
        The paper learns E_pos. Sines and cosines of the patch's number are those of Vaswani et
        al. (2017), of its row and column those of MoCo v3 (Chen et al., ICCV 2021).
    class_token, distillation_token : bool
        Distillation follows DeiT: a second token with a head of its own; in use the two heads'
        logits are averaged. Without a class token, y is the mean of the patch tokens.
    registers : int
        Further tokens without a head (Darcet et al., "Vision Transformers Need Registers", 2024).
    pretraining_head : bool
        One hidden layer with tanh instead of a single linear layer.
    stem_width : int
        Channels of the hybrid's CNN; 0 cuts the picture itself into patches.
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_dim: int = 3072,
        in_channels: int = 3,
        num_classes: int = 1000,
        positions: Positions = "learned",
        class_token: bool = True,
        distillation_token: bool = False,
        registers: int = 0,
        pretraining_head: bool = False,
        stem_width: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(image_size, int):
            image_size = (image_size, image_size)
        if distillation_token and not class_token:
            raise ValueError("A distillation token needs a class token beside it.")
        self.patch_embed = PatchEmbed(
            (image_size[0], image_size[1]), patch_size, in_channels, embed_dim, stem_width
        )
        self.embed_dim = embed_dim
        self.num_classes = num_classes
        self.has_class_token = class_token
        self.num_prefix_tokens = class_token + distillation_token + registers

        self.cls_token = _token(1, embed_dim) if class_token else None
        self.dist_token = _token(1, embed_dim) if distillation_token else None
        self.reg_token = _token(registers, embed_dim) if registers else None
        self.pos_embed: Tensor | None
        if positions == "learned":
            rows, cols = self.patch_embed.grid_size
            self.pos_embed = _token(self.num_prefix_tokens + rows * cols, embed_dim)
        else:
            table = fixed_positions(
                positions, embed_dim, self.patch_embed.grid_size, self.num_prefix_tokens
            )
            self.register_buffer("pos_embed", table)

        self.blocks = nn.ModuleList(Block(embed_dim, num_heads, mlp_dim) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)

        self.head: nn.Module
        if not num_classes:
            self.head = nn.Identity()
        elif pretraining_head:
            self.head = PreTrainingHead(embed_dim, embed_dim, num_classes)
        else:
            self.head = nn.Linear(embed_dim, num_classes)
        self.head_dist = (
            nn.Linear(embed_dim, num_classes) if distillation_token and num_classes else None
        )
        self.apply(_initialise)

    def embed(self, x: Tensor) -> Tensor:
        """Return z_0 = [x_class; x_p^1 E; ...] + E_pos of eq. 1: (B, C, H, W) -> (B, T, D)."""
        z = self.patch_embed(x)  # (B, N, D)
        prefix = [t for t in (self.cls_token, self.dist_token, self.reg_token) if t is not None]
        z = torch.cat([t.expand(len(z), -1, -1) for t in prefix] + [z], dim=1)  # (B, T, D)
        return z if self.pos_embed is None else z + self.pos_embed

    def forward_features(self, x: Tensor) -> Tensor:
        """Return LN(z_L) of every token: (B, C, H, W) -> (B, T, D)."""
        z = self.embed(x)
        for block in self.blocks:
            z = block(z)
        return self.norm(z)

    def forward_head(self, z: Tensor) -> Tensor:
        """Return logits from normalised tokens: y = LN(z_L^0) (eq. 4), then the head."""
        if not self.has_class_token:
            return self.head(z[:, self.num_prefix_tokens :].mean(dim=1))
        logits = self.head(z[:, 0])
        if self.head_dist is not None:
            logits = (logits + self.head_dist(z[:, 1])) / 2
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _token(count: int, embed_dim: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, count, embed_dim), std=INITIAL_STD))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=INITIAL_STD)
        nn.init.zeros_(module.bias)


def _sine_cosine(position: Tensor, dim: int, base: float) -> Tensor:
    """Return sines, then cosines, of `position` at dim / 2 frequencies: (N,) -> (N, dim)."""
    frequency = base ** (-torch.arange(dim // 2) / (dim // 2))
    angle = position[:, None] * frequency  # (N, dim / 2)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def fixed_positions(
    positions: Positions,
    embed_dim: int,
    grid: tuple[int, int],
    num_prefix_tokens: int,
    base: float = 10000.0,
) -> Tensor | None:
    """Return the table (1, T, D) of fixed position embeddings; prefix tokens get zeros.

    Frequencies fall from 1 to almost 1 / `base` radians a patch. The ViT paper has no such table:
    its appendix D.4 compares learned ones.

    References
    ----------
    sincos1d: Vaswani et al., "Attention Is All You Need" (2017), section 3.5.
    sincos2d: Chen et al., "An Empirical Study of Training Self-Supervised Vision Transformers"
    (MoCo v3, ICCV 2021).
    """
    if positions == "none":
        return None
    if positions not in ("sincos1d", "sincos2d"):
        raise ValueError(
            f"Positions must be learned, sincos1d, sincos2d or none, got {positions!r}."
        )
    parts = 2 if positions == "sincos1d" else 4
    if embed_dim % parts:
        raise ValueError(f"{positions} needs a width divisible by {parts}, got {embed_dim}.")
    rows, cols = grid
    if positions == "sincos1d":
        table = _sine_cosine(torch.arange(rows * cols), embed_dim, base)
    else:
        row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
        table = torch.cat(
            [_sine_cosine(axis.flatten(), embed_dim // 2, base) for axis in (row, col)], dim=1
        )
    return torch.cat([torch.zeros(num_prefix_tokens, embed_dim), table])[None]


def resize_position_embedding(
    pos_embed: Tensor,
    *,
    grid: tuple[int, int],
    num_prefix_tokens: int,
    old_grid: tuple[int, int] | None = None,
) -> Tensor:
    """Interpolate position embeddings to another patch grid, as fine-tuning does (section 3.2).

    Parameters
    ----------
    pos_embed : Tensor of shape (1, prefix + N, D)
    grid : (rows, columns) wanted
    num_prefix_tokens : int
        Leading rows that stand for no patch; they are kept as they are.
    old_grid : (rows, columns), optional
        The grid of `pos_embed`; a square one is assumed where it is left out.

    Returns
    -------
    Tensor of shape (1, prefix + rows * columns, D), interpolated bicubically with antialiasing.

    Raises
    ------
    ValueError
        When the patch rows do not fill the old grid.
    """
    prefix, patches = pos_embed[:, :num_prefix_tokens], pos_embed[:, num_prefix_tokens:]
    count, dim = patches.shape[1:]
    if old_grid is None:
        old_grid = (math.isqrt(count), math.isqrt(count))
    if old_grid[0] * old_grid[1] != count or not count:
        raise ValueError(
            f"{count} patch positions do not fill a grid of {old_grid[0]} x {old_grid[1]}."
        )
    if old_grid == tuple(grid):
        return pos_embed
    patches = patches.reshape(1, *old_grid, dim).permute(0, 3, 1, 2).float()  # (1, D, R, S)
    patches = F.interpolate(patches, size=tuple(grid), mode="bicubic", antialias=True)
    patches = patches.permute(0, 2, 3, 1).reshape(1, -1, dim).to(pos_embed.dtype)  # (1, N, D)
    return torch.cat([prefix, patches], dim=1)
