"""Operations and bytes of layers by pen and paper: shapes, and the rules of differentiation.

Nothing here computes a number of a tensor or calls the package. An equation of a paper is written as a list of ``Hand``'s operations on shapes; a
derivative is a list of operations again, so that forces are differentiated twice as they are on paper. Every operation reads its inputs and writes its result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

NUMBER, INDEX = 4, 8
"""Bytes of a number in fp32 and of an index."""


@dataclass(eq=False)
class Symbol:
    """Array of a shape, and what it depends on."""

    shape: tuple[int, ...]
    moves: bool = False
    """It depends on positions."""
    learns: bool = False
    """It depends on weights."""
    strided: bool = False
    """Its rows lie apart, so that sums over edges copy it first."""

    @property
    def size(self) -> int:
        return prod(self.shape)


Gradients = Callable[[list[Symbol | None], list[bool]], list[Symbol | None]]
"""From the gradients of results, and of which inputs one is wanted, to those of inputs."""


@dataclass
class Line:
    """Operation on paper with the rule of its derivative."""

    inputs: list[Symbol]
    results: list[Symbol]
    gradients: Gradients


@dataclass
class Hand:
    """Writes operations one below the other and adds up what they cost."""

    flops: float = 0.0
    bytes: float = 0.0
    lines: list[Line] = field(default_factory=list)
    recording: bool = True

    def write(
        self,
        inputs: Sequence[Symbol],
        shapes: Sequence[tuple[int, ...]],
        flops: float,
        gradients: Gradients,
        indices: float = 0,
    ) -> list[Symbol]:
        """Write an operation that reads all inputs and writes all results."""
        results = [
            Symbol(shape, any(one.moves for one in inputs), any(one.learns for one in inputs)) for shape in shapes
        ]
        self.flops += flops
        self.bytes += (
            NUMBER * sum(one.size for one in [*{id(x): x for x in inputs}.values(), *results]) + INDEX * indices
        )
        if self.recording:
            self.lines.append(Line([*inputs], results, gradients))
        return results

    def view(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        """Name the same numbers by another shape, which costs nothing."""
        result = Symbol(shape, x.moves, x.learns)
        if self.recording:
            self.lines.append(Line([x], [result], lambda u, _: [self.view(u[0], x.shape)]))  # type: ignore[arg-type]
        return result

    def derive(self, of: Mapping[Symbol, Symbol], wanted: Callable[[Symbol], bool]) -> dict[Symbol, Symbol]:
        """Return the gradients of all wanted symbols from those of results."""
        gradients = dict(of)
        for line in reversed(list(self.lines)):
            arrived = [gradients.get(one) for one in line.results]
            needed = [wanted(one) for one in line.inputs]
            if not any(needed) or all(one is None for one in arrived):
                continue
            for one, new, need in zip(line.inputs, line.gradients(arrived, needed), needed):
                if need and new is not None:
                    gradients[one] = self.add(gradients[one], new) if one in gradients else new
        return gradients

    def add(self, x: Symbol, y: Symbol) -> Symbol:
        """x + y"""
        shape = tuple(map(max, x.shape, y.shape))
        return self.write([x, y], [shape], prod(shape), lambda u, n: self._like(u[0], [x, y], n))[0]

    def _like(self, u: Symbol | None, inputs: list[Symbol], needed: list[bool]) -> list[Symbol | None]:
        assert u is not None
        return [self.summed_to(u, x.shape) if need else None for x, need in zip(inputs, needed)]

    def summed_to(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        """Sum over the axes that a shape does not have."""
        if x.shape == shape:
            return x
        return self.write([x], [shape], x.size, lambda u, _: [self.spread(u[0], x.shape)])[0]  # type: ignore[arg-type]

    def spread(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        """Repeat along axes without a copy."""
        result = Spread(shape, x.moves, x.learns, source=x)
        if self.recording:
            self.lines.append(Line([x], [result], lambda u, _: [self.summed_to(u[0], x.shape)]))  # type: ignore[arg-type]
        return result

    def times(self, x: Symbol, y: Symbol) -> Symbol:
        """x y, element by element"""
        shape = tuple(map(max, x.shape, y.shape))

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            assert u[0] is not None
            return [
                self.summed_to(self.times(u[0], other), one.shape) if need else None
                for one, other, need in zip((x, y), (y, x), needed)
            ]

        return self.write([x, y], [shape], prod(shape), gradients)[0]

    def over(self, x: Symbol, y: Symbol) -> Symbol:
        """x / y; its gradients are u / y and -u (x / y) / y"""

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            assert u[0] is not None
            of_x = self.over(u[0], y) if needed[0] else None
            return [of_x, self.times(self.scaled(u[0]), self.over(self.over(x, y), y)) if needed[1] else None]

        return self.write([x, y], [x.shape], x.size, gradients)[0]

    def root(self, x: Symbol) -> Symbol:
        """Square root; its gradient is u over twice itself"""
        results = self.write([x], [x.shape], x.size, lambda u, _: [self.over(u[0], self.scaled(results[0]))])  # type: ignore[arg-type]
        return results[0]

    def scaled(self, x: Symbol) -> Symbol:
        """A number times x"""
        return self.write([x], [x.shape], x.size, lambda u, _: [self.scaled(u[0])])[0]  # type: ignore[arg-type]

    def function(self, x: Symbol) -> Symbol:
        """f(x), element by element; f' is such a function."""
        return self.write([x], [x.shape], x.size, lambda u, _: [self.times(u[0], self.function(x))])[0]  # type: ignore[arg-type]

    def silu(self, x: Symbol) -> Symbol:
        """silu(x), whose gradient is one operation of x and the gradient"""
        return self.write([x], [x.shape], x.size, lambda u, _: [self.slope(x, u[0])])[0]  # type: ignore[arg-type]

    def slope(self, x: Symbol, g: Symbol) -> Symbol:
        """g silu'(x); g u silu''(x) and u silu'(x) are one operation of ten steps."""

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            assert u[0] is not None
            return [*self.write([x, g, u[0]], [x.shape, x.shape], 10 * x.size, lambda *_: [])]

        return self.write([x, g], [x.shape], x.size, gradients)[0]

    def matmul(self, a: Symbol, b: Symbol) -> Symbol:
        """a b of matrices, or of as many matrices"""
        rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        many = a.shape[:-2]

        def turned(x: Symbol) -> Symbol:
            return self.view(x, (*x.shape[:-2], x.shape[-1], x.shape[-2]))

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            assert u[0] is not None
            of_a = self.matmul(u[0], turned(b)) if needed[0] else None
            return [of_a, self.matmul(turned(a), u[0]) if needed[1] else None]

        return self.write([a, b], [(*many, rows, columns)], 2.0 * prod(many) * rows * inner * columns, gradients)[0]

    def linear(self, x: Symbol, outputs: int, *, bias: bool = True) -> Symbol:
        """x W + b with new weights; the product adds the bias as it writes"""
        flat = x if len(x.shape) == 2 else self.view(x, (x.size // x.shape[-1], x.shape[-1]))
        y = self.matmul(flat, self.weight(flat.shape[-1], outputs))
        if bias:
            b = self.weight(1, outputs)
            self.bytes += NUMBER * outputs
            result = Symbol(y.shape, y.moves, y.learns)
            self.lines.append(Line([y, b], [result], lambda u, n: self._like(u[0], [y, b], n)))
            y = result
        return y if len(x.shape) == 2 else self.view(y, (*x.shape[:-1], outputs))

    weights: list[Symbol] = field(default_factory=list)

    def weight(self, *shape: int) -> Symbol:
        """New weights."""
        self.weights.append(Symbol(shape, learns=True))
        return self.weights[-1]

    def network(self, x: Symbol, *widths: int) -> Symbol:
        """Linear maps with SiLU between them"""
        for number, width in enumerate(widths):
            x = self.linear(self.silu(x) if number else x, width)
        return x

    def join(self, *parts: Symbol) -> Symbol:
        """[a, b, ...] along channels; its gradient is cut by views"""
        shape = (*parts[0].shape[:-1], sum(one.shape[-1] for one in parts))
        return self.write([*parts], [shape], 0, lambda u, _: [self.cut(u[0], one.shape) for one in parts])[0]  # type: ignore[arg-type]

    def stack(self, *parts: Symbol) -> Symbol:
        """Rows of a, b, ... one below the other"""
        shape = (sum(one.shape[0] for one in parts), *parts[0].shape[1:])
        return self.write([*parts], [shape], 0, lambda u, _: [self.cut(u[0], one.shape) for one in parts])[0]  # type: ignore[arg-type]

    def cut(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        """Some channels of x: a view, whose gradient is written among zeros"""
        result = Symbol(shape, x.moves, x.learns, strided=shape[-1] < x.shape[-1])

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            assert u[0] is not None
            return [self.write([u[0]], [x.shape], 0, lambda v, _: [self.cut(v[0], shape)])[0]]  # type: ignore[arg-type]

        self.lines.append(Line([x], [result], gradients)) if self.recording else None
        return result

    def parts(self, x: Symbol, *widths: int) -> list[Symbol]:
        """Views of consecutive channels, whose gradients are joined"""
        results = [Symbol((*x.shape[:-1], width), x.moves, x.learns, strided=True) for width in widths]

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            return [self.join(*(Symbol(r.shape) if one is None else one for one, r in zip(u, results)))]

        self.lines.append(Line([x], results, gradients)) if self.recording else None
        return results


@dataclass(eq=False)
class Spread(Symbol):
    """Array that repeats a smaller one without a copy."""

    source: Symbol | None = None

    @property
    def size(self) -> int:
        return self.source.size if self.source else 0


@dataclass
class Sums:
    """Maps that a form of several tensors gives, linear in each: each leaves one tensor out.

    sum over edges of w_e x_sender g_receiver is one, for example. The derivative of a map is the map that leaves out the tensor in question, with the
    gradient in the place of what the first left out. ``fused`` maps have all derivatives in one pass.
    """

    hand: Hand
    shapes: Mapping[str, tuple[int, ...]]
    flops: Mapping[str, float]
    fused: Mapping[str, float]
    indices: Mapping[str, float]

    def __call__(self, absent: str, tensors: Mapping[str, Symbol]) -> Symbol:
        """Write the map that leaves a tensor out."""
        names = [*tensors]
        self.make_dense(tensors)

        def gradients(u: list[Symbol | None], needed: list[bool]) -> list[Symbol | None]:
            assert u[0] is not None
            return self.gradients(absent, tensors, u[0], dict(zip(names, needed)))

        return self.hand.write(
            [*tensors.values()], [self.shapes[absent]], self.flops[absent], gradients, self.indices[absent]
        )[0]

    def make_dense(self, tensors: Mapping[str, Symbol]) -> None:
        """Copy what has gaps between its rows."""
        self.hand.bytes += sum(2 * NUMBER * one.size for one in tensors.values() if one.strided)

    def gradients(
        self, absent: str, tensors: Mapping[str, Symbol], u: Symbol, needed: Mapping[str, bool]
    ) -> list[Symbol | None]:
        """Write the gradients of all tensors, in one pass where all are needed and there is one."""
        held = {**tensors, absent: u}
        others = {name: {one: x for one, x in held.items() if one != name} for name in tensors}
        if not (all(needed.values()) and absent in self.fused):
            return [self(name, others[name]) if needed[name] else None for name in tensors]

        def second(v: list[Symbol | None], again: list[bool]) -> list[Symbol | None]:
            totals: dict[str, Symbol] = {}
            for name, one in zip(tensors, v):
                if one is None:
                    continue
                wanted = {other: again[[*held].index(other)] for other in others[name]}
                for other, new in zip(others[name], self.gradients(name, others[name], one, wanted)):
                    if new is not None:
                        totals[other] = self.hand.add(totals[other], new) if other in totals else new
            return [totals.get(name) for name in held]

        shapes = [self.shapes[name] for name in tensors]
        self.make_dense(held)
        return [*self.hand.write([*held.values()], shapes, self.fused[absent], second, self.indices["fused"])]
