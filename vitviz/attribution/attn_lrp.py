"""AttnLRP: the answer is sent back through the model as relevance, by a rule for each operation.

The rules are carried out as gradients: relevance is a value times a gradient in which every
operation has the gradient of its rule. So a pass under `_Rules` computes what the model computes,
and its backward pass computes relevance.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..activations.targets import Target
from ..common.language import Message
from ..model import Model
from ..model.devices import own_precision
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..model.memory import gradient_bytes, require_memory
from ..model.recording import Recorder
from .outputs import hold_scale, output_question, output_value, sum_over_patches


@own_precision()
def attn_lrp(model: Model, image: Picture, target: Target) -> np.ndarray:
    """Map one target by AttnLRP: the relevance of the input, summed over the pixels of each patch.

    The relevance of an output is the target's value. Each operation passes it on to its inputs: a
    linear layer by how much each input adds (the epsilon rule with a vanishing epsilon); a product
    of two tensors to both by halves (the uniform rule); a softmax by its first-order term; an
    activation function and the scale of a norm as they are (the identity rule).

    Parameters
    ----------
    model, image, target
        As in `relevance`, but the target is a class or a vector.

    Returns
    -------
    ndarray of float64, shape (rows, cols)
        In the grid of the first layer and the unit of the target; negative where a patch speaks
        against it. Biases, positions, prefix tokens and the softmax keep a part of the relevance,
        so the patches do not sum to the target.

    Raises
    ------
    ModelError
        When the model applies an operation to the picture that has no rule here, has no such
        output, or the memory does not suffice.
    ValueError
        When there is no such class, or the target does not fit the output.

    Notes
    -----
    A product with a tensor that does not depend on the picture (a learned query, a scale) is a
    linear layer. The authors advise the gamma rule for the linear layers of a ViT, with factors
    that are tuned for each model; here all models have the same rules and nothing is tuned.

    References
    ----------
    Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers",
    ICML 2024, section 3; https://github.com/rachtibat/LRP-eXplains-Transformers for the form as
    gradients.
    """
    question = output_question(model, target, "AttnLRP")
    if question.class_index is None and callable(question.target):
        raise ValueError(
            "AttnLRP has no rule for a function of the output. Give a class or vector."
        )
    if model.embeds:
        raise ModelError(
            "AttnLRP begins at a logit, and {model} outputs an embedding.", model=model.name
        )
    what = Message("A map of one class of {model}", model=model.name)
    require_memory(gradient_bytes(model.sites), what, model.device)
    with torch.inference_mode(False), torch.enable_grad():
        x = model.to_device(prepare(model, image).x.clone())[None].requires_grad_()
        with model.recording(Recorder()):
            _mark(x)
            with _Rules(model.name):
                output = model.run(x)[0]
        if not _depends(output) or not output.requires_grad:
            raise ModelError(
                "AttnLRP cannot follow the picture through {model} to its answer. Check whether a "
                "part of the model is compiled, quantised or computes without gradients.",
                model=model.name,
            )
        (gradient,) = torch.autograd.grad(output_value(question, output), x)
    return sum_over_patches(model, (x * gradient)[0].detach().sum(dim=0))


_PICTURE, _SIGMOID = "picture", "sigmoid of the picture"
_FLAG = "_vitviz_depends_on"  # an attribute of a tensor that depends on the picture


def _mark(values: Any, kind: str = _PICTURE) -> Any:
    """Note that the tensors depend on the picture; return them."""
    for tensor in _tensors(values):
        if tensor.is_floating_point():
            setattr(tensor, _FLAG, kind)
    return values


def _depends(tensor: Any) -> bool:
    return hasattr(tensor, _FLAG)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors([*values.values()])


def _with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """Return the value, to the bit, with the gradient of another tensor."""
    return value.detach() + (other - other.detach())


def _share(values: Any, share: float) -> Any:
    """Return the arguments of a call, with the gradient of those of the picture times `share`."""
    if isinstance(values, Tensor):
        return _with_gradient_of(values, share * values) if _depends(values) else values
    if isinstance(values, list | tuple):
        return type(values)(_share(value, share) for value in values)
    return values


#: Sums and rearrangements: each input gets what it adds, which gradient times input is. Of a
#: softmax, gradient times input is the rule.
_LINEAR = frozenset(
    (
        *("linear", "conv2d", "batch_norm", "add", "radd", "iadd", "sub", "rsub", "isub"),
        *("neg", "mean", "sum", "avg_pool2d", "interpolate", "adaptive_avg_pool1d"),
        *("adaptive_avg_pool2d", "reshape", "reshape_as", "view", "view_as", "flatten"),
        *("unflatten", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims"),
        *("t", "contiguous", "cat", "concat", "concatenate", "stack", "expand", "expand_as"),
        *("getitem", "setitem", "select", "narrow", "split", "split_with_sizes", "chunk"),
        *("unbind", "tensor_split", "index_select", "gather", "take_along_dim", "flip"),
        *("roll", "repeat", "repeat_interleave", "pad", "squeeze", "unsqueeze", "clone"),
        *("dropout", "to", "float", "double", "half", "bfloat16", "type", "type_as"),
        *("requires_grad", "get", "softmax"),
    )
)
_PRODUCTS = frozenset({"mul", "multiply", "rmul", "imul", "matmul", "rmatmul", "bmm", "einsum"})
_QUOTIENTS = frozenset({"div", "divide", "truediv", "itruediv", "true_divide"})
#: Functions of one number that are 0 at 0.
_ACTIVATIONS = frozenset(
    (
        *("gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "mish"),
        *("hardswish", "tanh"),
    )
)
_QUICK = (1.702, 1.0)  # x * sigmoid(1.702 x), or of x: activations written as a product


class _Rules(TorchFunctionMode):
    """Compute as without it, with the gradient of the rule of each operation."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self.rules: Mapping[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._attention,
            "multi_head_attention_forward": self._multihead,
            "layer_norm": self._norm,
            "rms_norm": self._norm,
            "group_norm": self._group_norm,
            "normalize": self._unit_length,
            "sigmoid": lambda func, *args: _mark(func(*args), _SIGMOID),
            **dict.fromkeys(_PRODUCTS, self._product),
            **dict.fromkeys(_QUOTIENTS, self._quotient),
            **dict.fromkeys(_ACTIVATIONS, self._activation),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kinds = {getattr(each, _FLAG, None) for each in _tensors([args, kwargs])} - {None}
        if not kinds:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func)).strip("_")
        rule = self.rules.get(name)
        if rule is not None and (name in _PRODUCTS or _SIGMOID not in kinds):
            output = rule(func, *args, **kwargs)
        else:
            output = func(*args, **kwargs)
            shapeless = not any(each.requires_grad for each in _tensors(output))
            if name == "setitem":
                _mark(args[0])
            elif name != "get" and shapeless:
                return output  # a size, a comparison, or a constant
            if name not in _LINEAR or (_SIGMOID in kinds and not shapeless):
                self._refuse(name)
        for each in _tensors(output):
            if not _depends(each) and each.requires_grad:
                _mark(each)
        return output

    def _refuse(self, name: str) -> None:
        raise ModelError(
            "AttnLRP has no rule for the operation {operation}, which {model} applies to the "
            "picture.",
            operation=name,
            model=self.model,
        )

    def _product(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        factors = [each for each in _tensors(args) if _depends(each)]
        gates = [each for each in factors if getattr(each, _FLAG) == _SIGMOID]
        if gates:
            return self._multiply_gate(func, factors)
        if len(factors) == 1:
            return func(*args, **kwargs)
        if func.__name__.endswith("_") and not func.__name__.startswith("__"):
            self._refuse(
                func.__name__
            )  # its caller may read the changed tensor, not what it returns
        return func(*_share(args, 1 / len(factors)), **kwargs)

    def _multiply_gate(self, func: Any, factors: list[Tensor]) -> Tensor:
        """Multiply a tensor by its own sigmoid: an activation function, written as a product."""
        if len(factors) == 2 and factors[0].shape == factors[1].shape:
            for gate, x in (factors, factors[::-1]):
                if any(torch.equal(gate, (factor * x).sigmoid()) for factor in _QUICK):
                    output: Tensor = func(x, gate.detach())
                    return output
        self._refuse("sigmoid")
        raise AssertionError

    def _quotient(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(_depends, args[1:])):
            self._refuse("division by a value of the picture")
        return func(*args, **kwargs)

    def _activation(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        value = func(x.detach().clone(), *args, **kwargs)  # it may compute in place
        ratio = torch.where(x == 0, 0, value / torch.where(x == 0, 1, x))
        return _with_gradient_of(value, x * ratio.detach())

    def _norm(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        value = func(*args, **kwargs)
        return _with_gradient_of(value, hold_scale(Tensor.detach, func, *args, **kwargs))

    def _group_norm(
        self, func: Any, x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: Any = 0
    ) -> Tensor:
        value = func(x, groups, weight, bias, eps)
        channels = x.unflatten(1, (groups, -1)).flatten(2)
        centred = channels - channels.mean(2, keepdim=True)
        y = centred * (centred.square().mean(2, keepdim=True) + eps).rsqrt().detach()
        y = y.reshape(x.shape)
        if weight is not None:
            y = y * weight.reshape(-1, *[1] * (x.ndim - 2))
        return _with_gradient_of(value, y)

    def _unit_length(
        self,
        func: Any,
        x: Tensor,
        p: float = 2.0,
        dim: int = 1,
        eps: float = 1e-12,
        out: None = None,  # torch passes it on
    ) -> Tensor:
        length = x.detach().norm(p, dim, keepdim=True).clamp_min(eps)
        return _with_gradient_of(func(x, p, dim, eps), x / length)

    def _attention(
        self, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        # Of the relevance of A v, half is v's. The other half is sent through the softmax to
        # q k^T, and halved again if both depend on the picture.
        both = _depends(query) and _depends(key)
        within = _depends(query) or _depends(key)
        product = within and _depends(value)
        scores = (0.5 if product else 1.0) * (0.5 if both else 1.0)
        query, key = _share(query, scores), _share(key, scores)
        value = _share(value, 0.5 if product else 1.0)
        return func(query, key, value, *args, **kwargs)

    def _multihead(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        width: int,
        heads: int,
        in_weight: Tensor | None,
        in_bias: Tensor | None,
        bias_k: Tensor | None,
        bias_v: Tensor | None,
        add_zero_attn: bool,
        dropout: float,
        out_weight: Tensor,
        out_bias: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Compute what an `nn.MultiheadAttention` does, of tokens (T, B, D), in its parts."""
        masks = [options.get(name) for name in ("key_padding_mask", "attn_mask")]
        if (
            in_weight is None
            or add_zero_attn
            or any(each is not None for each in (bias_k, bias_v, *masks))
        ):
            self._refuse("multi_head_attention_forward with masks or further keys")
            raise AssertionError
        biases = [None] * 3 if in_bias is None else in_bias.chunk(3)
        q, k, v = (
            F.linear(tokens, weight, bias).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
            for tokens, weight, bias in zip(
                (query, key, value), in_weight.chunk(3), biases, strict=True
            )
        )
        for vectors, source in zip((q, k, v), (query, key, value), strict=True):
            if _depends(source):
                _mark(vectors)
        output = self._attention(F.scaled_dot_product_attention, q, k, v)
        output = output.permute(2, 0, 1, 3).flatten(2)
        return F.linear(output, out_weight, out_bias), None
