"""Functions of rows; value and two derivatives are one kernel each.

Elsewhere they are plain torch, which is their specification. Derivatives of third and higher orders are those of plain torch everywhere.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

from hydragnn.kernels.family import is_accelerated
from hydragnn.kernels.orders import Options, Tensors, in_orders
from hydragnn.kernels.triton.forms import launch_rows

Shape = Sequence[int] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pointwise:
    """Function of tensors with one item per row; tensors and results may be None."""

    kernel: str
    plain: Callable[..., Tensors]
    """The results in plain torch, of tensors and options."""
    shapes: Callable[..., Sequence[Shape]]
    """Shapes of the results, of tensors and options."""
    constants: Callable[..., Mapping[str, Any]] = lambda *tensors, **options: options
    """Constants of the kernel, of tensors and options."""
    channels: Callable[..., int] = lambda x, *_, **options: x.shape[-1]
    """Width of a row, of tensors and options."""
    whole: bool = False
    """True if a program has all channels of its rows."""
    widths: set[tuple[torch.Size | None, ...]] = field(default_factory=set)
    """Shapes of rows that fit together."""
    orders: int = 3
    linear: frozenset[int] = frozenset()
    """Tensors by place in which results are linear, apart from all others: second derivatives are zero."""

    def __call__(self, *tensors: Tensor | None, **options: Any) -> tuple[Any, ...]:
        """Return the results, with derivatives of every order."""
        if not self.serves(tensors[0]):
            return self.plain(*tensors, **options)
        self.check(*tensors, **options)
        return in_orders(self, tensors, options)

    def check(self, *tensors: Tensor | None, **options: Any) -> None:
        """Raise ValueError for tensors of different rows, and what plain torch raises for different widths.

        A kernel would read behind the end of an array.
        """
        present = [x for x in tensors if x is not None]
        if any(len(x) != len(present[0]) for x in present):
            shapes = ", ".join(str(list(x.shape)) for x in present)
            raise ValueError(f"{self.kernel} needs one item for each row, and has tensors {shapes}")
        widths = tuple(None if x is None else x.shape[1:] for x in tensors)
        if widths not in self.widths:
            self.plain(
                *(None if x is None else x.new_empty((2, *x.shape[1:]), device="meta") for x in tensors), **options
            )
            self.widths.add(widths)

    def serves(self, first: Tensor | None) -> bool:
        """Return True if the kernel computes rows like these."""
        return first is not None and is_accelerated(first.device.type)

    def computed(self, order: int, count: int, operands: Tensors, options: Options) -> Tensors:
        """Launch the kernel of an order."""
        tensors, first = operands[:count], operands[0]
        assert first is not None
        kind = reduce(torch.promote_types, [tensor.dtype for tensor in tensors if tensor is not None])
        results = [(shape, kind) for shape in self.shapes(*tensors, **options)]
        inputs = [(None if x is None else x.shape, kind if x is None else x.dtype) for x in tensors]
        bent = [(None if place in self.linear else shape, dtype) for place, (shape, dtype) in enumerate(inputs)]
        wanted = (results, inputs, [*bent, *results])[order]
        out = [None if shape is None else first.new_empty(tuple(shape), dtype=dtype) for shape, dtype in wanted]
        most = count + len(results)
        arguments = [*operands, *[None] * (count + most - len(operands)), *out, *[None] * (most - len(out))]
        constants = {"ORDER": order, **self.constants(*tensors, **options)}
        launch_rows(self.kernel, arguments, self.channels(*tensors, **options), constants, whole=self.whole)
        return tuple(out)


def joined(parts: Sequence[Float[Tensor, "..."]], dim: int) -> Float[Tensor, "..."]:
    """Return ``torch.cat`` of the parts; where launches count, its second derivative is a ``torch.cat``, too."""
    if not is_accelerated(parts[0].device.type):
        return torch.cat(list(parts), dim)
    return _Joined.apply(dim, *parts)


class _Joined(Function):
    """``torch.cat`` with one split as gradient instead of many slices."""

    @staticmethod
    def forward(ctx: Any, dim: int, *parts: Tensor) -> Tensor:
        ctx.dim, ctx.sizes = dim, [part.shape[dim] for part in parts]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Tensors:
        return None, *incoming.split(ctx.sizes, ctx.dim)


def lengths_and_directions(
    vectors: Float[Tensor, "edges dim"],
) -> tuple[Float[Tensor, " edges"], Float[Tensor, "edges dim"]]:
    """Return length and unit vector of every edge.

    A vector of length zero has direction zero and no derivatives. Atomics: none.

    >>> lengths_and_directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))[1]
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return LENGTHS(vectors)


def plain_lengths(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return lengths and directions in plain torch."""
    square = (vectors * vectors).sum(-1)  # [edges]
    zero = square == 0
    # where both branches are finite: the derivative of sqrt at zero is infinite, and 0 * inf is NaN
    lengths = torch.where(zero, 1e-12, square).sqrt()
    directions = vectors / lengths.unsqueeze(-1)
    return lengths, directions.masked_fill(zero.unsqueeze(-1), 0.0)


LENGTHS = Pointwise(
    kernel="lengths",
    plain=plain_lengths,
    shapes=lambda x: (x.shape[:1], x.shape),
    constants=lambda x: {"DIM": x.shape[1]},
    channels=lambda x: 1,
    whole=True,
)


def radial_functions(
    lengths: Float[Tensor, " edges"], **options: Any
) -> tuple[Float[Tensor, "edges width"], Float[Tensor, " edges"]]:
    """Return [radial functions of length, 1], and the envelope.

    ``options`` are those of ``plain_radial``. Atomics: none.
    """
    return RADIAL(lengths, **options)


def plain_radial(
    lengths: Tensor,
    *,
    gaussian: bool,
    count: int,
    step: float,
    amplitude: float,
    envelope: int,
    cutoff: float,
    ended: bool,
) -> tuple[Tensor, Tensor]:
    """Return radial functions and envelope in plain torch.

    a sin(n s r) / r for n = 1 ... count, or exp(-(r / s - n)^2 / 2) for n = 0 ... count - 1, and 1; times the envelope where ``ended``.
    The envelope is a polynomial of this exponent, a cosine (0) or 1 (-1).
    """
    orders = torch.arange(count, dtype=lengths.dtype, device=lengths.device)
    if gaussian:
        values = gaussian_functions(lengths, orders, step)
    else:
        values = bessel_functions(lengths, orders + 1, step, amplitude)
    kind: Literal["polynomial", "cosine", "none"] = "polynomial" if envelope > 0 else "none" if envelope else "cosine"
    factor = envelope_at(lengths, cutoff, kind, envelope)
    factor = torch.ones_like(lengths) if factor is None else factor
    functions = torch.cat([values, torch.ones_like(lengths).unsqueeze(-1)], dim=-1)  # [edges, count + 1]
    return functions * factor.unsqueeze(-1) if ended else functions, factor


def bessel_functions(lengths: Tensor, orders: Tensor, step: float, amplitude: float) -> Float[Tensor, "edges radial"]:
    """Return a sin(n s r) / r for all orders n."""
    phase = (lengths * step).unsqueeze(-1) * orders  # n pi r / c; [edges, radial]
    return torch.sin(phase) * (amplitude / lengths).unsqueeze(-1)


LEAST = 1e-30
"""Smaller values of Gaussians are zero: processors compute many times slower with numbers below 1e-38, which products with them are."""


def gaussian_functions(lengths: Tensor, orders: Tensor, step: float) -> Float[Tensor, "edges radial"]:
    """Return exp(-(r / s - n)^2 / 2) for all orders n."""
    values = torch.exp(-0.5 * ((lengths / step).unsqueeze(-1) - orders).square())  # [edges, 1] - [radial]
    return nn.functional.threshold(values, LEAST, 0.0)


def envelope_at(
    lengths: Float[Tensor, " edges"], cutoff: float, kind: Literal["polynomial", "cosine", "none"], exponent: int = 6
) -> Float[Tensor, " edges"] | None:
    """Return a factor from 1 at zero to 0 at the cutoff.

    It is None for ``none``. ``polynomial`` has two continuous derivatives at the cutoff (arXiv:2003.03123, eq. 8 with p the
    ``exponent``); ``cosine`` has one.

    >>> envelope_at(torch.tensor([0.0, 5.0, 7.0]), cutoff=5.0, kind="polynomial")
    tensor([1., 0., 0.])
    """
    if kind == "none":
        return None
    x = (lengths / cutoff).clamp_max(1.0)  # [edges], from 0 to 1
    if kind == "cosine":
        return 0.5 * (torch.cos(math.pi * x) + 1)
    p = exponent
    return 1 + x.pow(p) * (-(p + 1) * (p + 2) // 2 + x * (p * (p + 2) - p * (p + 1) // 2 * x))


RADIAL = Pointwise(
    kernel="radial",
    plain=plain_radial,
    shapes=lambda x, count, **_: ((x.shape[0], count + 1), x.shape),
    constants=lambda x, **options: {name.upper(): value for name, value in options.items()},
    channels=lambda x, count, **_: count + 1,
    whole=True,
)


def ended(
    values: Float[Tensor, "items channels"], factors: Float[Tensor, "items 1"]
) -> Float[Tensor, "items channels"]:
    """Return rows times a number each, such as an envelope. Atomics: none."""
    return ENDED(values, factors)[0]


ENDED = Pointwise(kernel="ended", plain=lambda x, y: (x * y,), shapes=lambda x, y: (x.shape,), whole=True)


def normalised(layer: nn.Module, values: Float[Tensor, "rows channels"]) -> Float[Tensor, "rows channels"]:
    """Return the layer of the values. Atomics: none.

    A layer norm of rows of up to 1,024 channels is one kernel.
    """
    if type(layer) is nn.LayerNorm and values.dim() == 2 and values.shape[1] <= 1024 and STANDARD.serves(values):
        half = values.dtype in (torch.float16, torch.bfloat16)  # which autocast normalises in fp32
        (standard,) = STANDARD(values.float() if half else values, floor=layer.eps)
        if layer.elementwise_affine and layer.bias is not None:
            return torch.addcmul(layer.bias, standard, layer.weight)
    return layer(values)


STANDARD = Pointwise(
    kernel="standard",
    plain=lambda x, floor: (nn.functional.layer_norm(x, x.shape[1:], eps=floor),),
    shapes=lambda x, **_: (x.shape,),
    constants=lambda x, floor: {"FLOOR": floor},
    whole=True,
)


FLOOR = 1e-8
"""Added to squares of lengths, as in the authors' code of PaiNN."""


def norm_of(squares: Tensor, *, smooth: bool, floor: float = FLOOR) -> Tensor:
    """Return a norm from |v|^2.

    Smooth: sqrt(|v|^2 + 1) - 1, which grows like |v|^2 / 2 at zero and like |v| far away, with derivatives of every order; else sqrt(|v|^2 + floor).

    >>> norm_of(torch.tensor([0.0, 3.0]), smooth=True)
    tensor([0., 1.])
    """
    if not smooth:
        return (squares + floor).sqrt()
    return squares / ((squares + 1).sqrt() + 1)  # the same number, without a difference of two that are nearly equal


def measured(
    scalars: Float[Tensor, "nodes channels"], halves: Float[Tensor, "nodes dim both"], *, smooth: bool
) -> tuple[Float[Tensor, "nodes both"], Float[Tensor, "nodes channels"]]:
    """Return scalars, norms of right halves, and products of both halves.

    Halves l and r are vectors: [s, |r|] and <l, r>, channel by channel, with norms of ``norm_of``. Atomics: none.
    """
    return NORMS(scalars, halves, smooth=smooth)


def plain_norms(scalars: Tensor, halves: Tensor, *, smooth: bool) -> tuple[Tensor, Tensor]:
    """Return norms and products in plain torch."""
    lhs, rhs = halves.split(scalars.shape[-1], dim=-1)  # [nodes, dim, channels] each
    norms = norm_of(rhs.square().sum(-2), smooth=smooth)  # [nodes, channels]
    return torch.cat([scalars, norms], dim=-1), (lhs * rhs).sum(-2)


NORMS = Pointwise(
    kernel="norms",
    plain=plain_norms,
    shapes=lambda x, y, **_: ((x.shape[0], 2 * x.shape[1]), x.shape),
    constants=lambda x, y, smooth: {"SMOOTH": smooth, "FLOOR": 1.0 if smooth else FLOOR, "DIM": y.shape[1]},
    linear=frozenset({0}),
)


def gated(
    gates: Float[Tensor, "nodes gates"],
    products: Float[Tensor, "nodes channels"] | None,
    vectors: Float[Tensor, "nodes dim _"] | None,
) -> Tensors:
    """Return gated products and vectors. Atomics: none.

    a + b p, None and c v from gates [a, b, c], products p and the first channels v of vectors. Without products it is a, b and c v; without vectors there is no c, and None stands for the last.
    """
    return GATED(gates, products, vectors)


def plain_gated(gates: Tensor, products: Tensor | None, vectors: Tensor | None) -> Tensors:
    """Return gated products and vectors in plain torch."""
    channels = _gated_channels(gates, products, vectors)
    parts = gates.split(channels, dim=-1)
    scalars = parts[:2] if products is None else (parts[0] + parts[1] * products, None)
    return *scalars, None if vectors is None else parts[2].unsqueeze(-2) * vectors[..., :channels]


def _gated_channels(gates: Tensor, products: Tensor | None, vectors: Tensor | None) -> int:
    return gates.shape[-1] // (2 if vectors is None else 3)


def _gated_shapes(gates: Tensor, products: Tensor | None, vectors: Tensor | None) -> tuple[Shape, ...]:
    scalars = gates.shape[0], _gated_channels(gates, products, vectors)
    turned = None if vectors is None else (*vectors.shape[:2], scalars[1])
    return scalars, scalars if products is None else None, turned


GATED = Pointwise(
    kernel="gated",
    plain=plain_gated,
    shapes=_gated_shapes,
    constants=lambda x, y, z: {
        "DOT": y is not None,
        "DIM": 0 if z is None else z.shape[1],
        "HALVES": 1 if z is None else 3 * z.shape[-1] // x.shape[-1],
    },
    channels=_gated_channels,
)
