"""Where a large capture is kept."""

import torch
from torch import Tensor


class Room:
    """Memory for what a capture keeps, taken all at once.

    What is kept where the model made it leaves holes in memory that the model's next tensors do
    not fit into: a quarter more is taken than is kept.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._numbers = torch.empty(size, dtype=torch.uint8).view(dtype)
        self._used = 0  # what is never used takes no memory

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor in this room, or elsewhere when it does not fit."""
        start, end = self._used, self._used + tensor.numel()
        if tensor.dtype != self._numbers.dtype or end > len(self._numbers):
            return tensor.clone()
        self._used = end
        return self._numbers[start:end].view(tensor.shape).copy_(tensor)

    @property
    def unused(self) -> int:
        """Bytes that nothing was kept in."""
        return self._numbers[self._used :].nbytes
