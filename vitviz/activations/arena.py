"""An arena: one piece of memory, taken at once, into which a large capture is copied."""

import torch
from torch import Tensor


class Arena:
    """Memory that is handed out from its beginning to its end, and freed as a whole.

    Tensors that are kept where the model made them leave gaps that its next tensors do not fit
    into: the process then takes a quarter more memory than it keeps.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._numbers = torch.empty(size, dtype=torch.uint8).view(dtype)
        self._used = 0  # beyond it no page was written yet, so that it takes no memory

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor in the arena, or outside of it where it does not fit."""
        start, end = self._used, self._used + tensor.numel()
        if tensor.dtype != self._numbers.dtype or end > len(self._numbers):
            return tensor.clone()
        self._used = end
        return self._numbers[start:end].view(tensor.shape).copy_(tensor)

    @property
    def unused(self) -> int:
        """Bytes that hold no tensor."""
        return self._numbers[self._used :].nbytes
