"""SchNet, PaiNN, PNA and MACE by pen and paper: the equations of their papers as lists of operations on shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tests.hydragnn.training.by_hand import NUMBER, Hand, Sums, Symbol


@dataclass
class Sizes:
    """Sizes of a batch and of a model."""

    nodes: int
    edges: int
    channels: int
    layers: int
    radial: int
    model: Any
    """Where MACE has the numbers of its couplings."""

    @property
    def pairs(self) -> int:
        """Edges come in pairs of both directions, which share functions of length."""
        return self.edges // 2


@dataclass
class Geometry:
    """Edge vectors and what is made of them."""

    vectors: Symbol
    directions: Symbol
    basis: Symbol
    envelope: Symbol


def geometry(h: Hand, z: Sizes, moves: bool) -> Geometry:
    """r = |v|, u = v / r, the waves a sin(n s r) / r with a constant beside them, and a polynomial of r that ends at the cutoff"""
    vectors = Symbol((z.edges, 3), moves=moves)
    every = h.root(h.summed_to(h.times(vectors, vectors), (z.edges, 1)))
    lengths = chosen(h, every, (z.pairs, 1))
    waves = h.function(h.times(h.scaled(lengths), Symbol((1, z.radial))))
    basis = h.join(h.times(waves, h.function(lengths)), Symbol((z.pairs, 1)))
    x = h.scaled(lengths)
    envelope = h.scaled(h.times(h.function(x), h.scaled(h.times(x, h.scaled(h.scaled(x))))))
    return Geometry(vectors, h.over(vectors, every), basis, envelope)


def chosen(h: Hand, x: Symbol, shape: tuple[int, ...]) -> Symbol:
    """Rows of x, whose gradient is added to its rows"""
    return h.write([x], [shape], 0, lambda u, _: [scattered(h, u[0], x.shape)], shape[0])[0]  # type: ignore[arg-type]


def scattered(h: Hand, x: Symbol, shape: tuple[int, ...]) -> Symbol:
    """Sums of rows of x"""
    return h.write([x], [shape], x.size, lambda u, _: [chosen(h, u[0], x.shape)], x.shape[0])[0]  # type: ignore[arg-type]


def first_states(h: Hand, z: Sizes) -> Symbol:
    """h_i = o + T[species of i]"""
    return h.add(h.weight(1, z.channels), chosen(h, h.weight(119, z.channels), (z.nodes, z.channels)))


def step(h: Hand, states: Symbol, moves: Sequence[Symbol]) -> Hand:
    """Energies by a network of every node, forces, and the gradient of both, added to the gradient of the step"""
    energy = h.network(states, 8, 1)
    forces = h.derive({energy: Symbol(energy.shape)}, lambda one: one.moves) if moves else {}
    h.recording = False
    h.derive({energy: Symbol(energy.shape)} | {forces[one]: Symbol(one.shape) for one in moves}, lambda one: one.learns)
    weights = sum(one.size for one in h.weights)
    h.flops += weights
    h.bytes += NUMBER * (1 + 3) * weights  # zeros, then a sum
    return h


def neighbour_sums(h: Hand, z: Sizes, *axes: int) -> Sums:
    """sum over edges of w x_sender g_receiver, by channels and axes"""
    shape, flops = (z.nodes, *axes, z.channels), 2.0 * prod(axes) * z.edges * z.channels
    each = dict.fromkeys(("x", "w", "g"), flops)
    shapes = {"x": shape, "w": (z.pairs, z.channels), "g": shape}
    return Sums(h, shapes, each, dict.fromkeys(each, 2 * flops), dict.fromkeys((*each, "fused"), 3 * z.edges))


def outer_sums(h: Hand, z: Sizes, axes: int, components: int = 1) -> Sums:
    """sum over edges and components of a sender of w x_sender <u, g_receiver>"""
    edges, rows = z.edges * components, z.nodes * components
    shapes = {"x": (rows, z.channels), "w": (z.pairs, z.channels), "u": (edges, axes), "g": (z.nodes, axes, z.channels)}
    flops = dict.fromkeys(shapes, edges * z.channels * (2.0 * axes + 1))
    indices = {**dict.fromkeys((*shapes, "fused"), 3 * edges), "g": 2 * edges + z.nodes}
    return Sums(h, shapes, flops, {"g": edges * z.channels * (4.0 * axes + 4)}, indices)


def schnet(h: Hand, z: Sizes) -> Hand:
    """v_i = f(sum_j W x_j * F(r_ij)); arXiv:1706.08566, eq. 2 and figure 2"""
    g = geometry(h, z, moves=True)
    x = first_states(h, z)
    for _ in range(z.layers):
        filters = h.times(h.network(g.basis, z.channels, z.channels), g.envelope)
        sums = neighbour_sums(h, z)("g", {"x": h.linear(x, z.channels, bias=False), "w": filters})
        x = h.add(x, h.network(sums, z.channels, z.channels))
    return step(h, x, [g.vectors])


def painn(h: Hand, z: Sizes) -> Hand:
    """Messages and updates of scalars s and vectors v; arXiv:2102.03150, eqs. 7 to 10"""
    g, c, row = geometry(h, z, moves=True), z.channels, (z.nodes, 1, z.channels)
    basis = h.times(g.basis, g.envelope)
    s, v = first_states(h, z), None
    for layer in range(z.layers):
        filters = [h.linear(basis, c, bias=False) for _ in range(2 if v is None else 3)]
        phi = h.parts(h.network(s, c, len(filters) * c), *[c] * len(filters))
        ds = neighbour_sums(h, z)("g", {"x": phi[0], "w": filters[0]})
        dv = outer_sums(h, z, 3)("g", {"x": phi[1], "w": filters[1], "u": g.directions})
        if v is not None:
            of_vectors = h.times(h.view(phi[2], row), v)
            dv = h.add(dv, neighbour_sums(h, z, 3)("g", {"x": of_vectors, "w": filters[2]}))
        s, v = h.add(s, ds), dv if v is None else h.add(v, dv)
        mixed = h.linear(v, 2 * c, bias=False)
        lhs, rhs = h.parts(mixed, c, c)
        squares = h.view(h.summed_to(h.function(rhs), row), (z.nodes, c))
        norms = h.over(squares, h.scaled(h.root(h.scaled(squares))))  # |v|^2 / (sqrt(|v|^2 + 1) + 1)
        products = h.view(h.summed_to(h.times(lhs, rhs), row), (z.nodes, c))
        last = layer == z.layers - 1
        gates = h.parts(h.network(h.join(s, norms), c, (2 if last else 3) * c), *[c] * (2 if last else 3))
        s = h.add(s, h.add(gates[0], h.times(gates[1], products)))
        if not last:
            v = h.add(v, h.times(h.view(gates[2], row), h.cut(mixed, (z.nodes, 3, c))))
    return step(h, s, [g.vectors])


def pna(h: Hand, z: Sizes) -> Hand:
    """Four statistics of messages at three scales; arXiv:2004.05718, eqs. 5 to 8. Energies alone, since the paper's statistics have kinks"""
    g, c = geometry(h, z, moves=False), z.channels
    every, each = (z.edges, c), (z.nodes, c)
    ending = Symbol((z.edges, 1))
    s = first_states(h, z)
    for _ in range(z.layers):
        n = normalised(h, s)
        edges, sent = h.linear(g.basis, c, bias=False), h.linear(n, c, bias=False)

        def to_ends(u: list[Any], _: list[bool]) -> list[Symbol | None]:
            return [scattered(h, u[0], each), scattered(h, u[0], (z.pairs, c))]

        messages = h.write([sent, edges], [every], prod(every), to_ends, 3 * z.edges)[0]
        mean, low, high, variance = statistics(h, h.times(messages, ending), each)
        own = h.times(h.linear(n, c), Symbol((z.nodes, 1)))
        beside = h.join(*(h.add(own, one) for one in (mean, low, high)), h.root(h.scaled(variance)))
        parts, degrees = h.parts(h.linear(beside, 3 * c, bias=False), c, c, c), Symbol((z.nodes, 1))
        scaled = h.add(h.add(parts[0], h.times(parts[1], degrees)), h.over(parts[2], degrees))
        s = h.add(s, h.silu(h.linear(h.add(h.linear(n, c), scaled), c)))
    return step(h, s, [])


def normalised(h: Hand, x: Symbol) -> Symbol:
    """Layer norm: 7 steps for a number, 11 for its gradient"""
    scale, shift, row = h.weight(x.shape[1]), h.weight(x.shape[1]), (x.shape[0], 1)

    def gradients(u: list[Any], _: list[bool]) -> list[Symbol | None]:
        read = [u[0], x, *results[1:], scale, shift]
        return [*h.write(read, [x.shape, scale.shape, shift.shape], 11 * x.size, lambda *_: [])]

    results = h.write([x, scale, shift], [x.shape, row, row], 7 * x.size, gradients)
    return results[0]


def statistics(h: Hand, x: Symbol, shape: tuple[int, ...]) -> list[Symbol]:
    """Mean, least, largest and variance in one pass: 6 steps for a number, 8 for its gradient"""

    def gradients(u: list[Any], _: list[bool]) -> list[Symbol | None]:
        return [*h.write([x, *results[:3], *u], [x.shape], 8 * x.size, lambda *_: [], 2 * x.shape[0])]

    results = h.write([x], [shape] * 4, 6 * x.size, gradients, 3 * x.shape[0])
    return results


def mace(h: Hand, z: Sizes) -> Hand:
    """A = sums of coupled states and harmonics, B = polynomials of A; arXiv:2206.07697, eqs. 8 to 11"""
    g, n, c, ell = geometry(h, z, moves=True), z.nodes, z.channels, 2
    harmonics = [
        Symbol((z.edges, 1)),
        g.directions,
        h.function(h.times(wide(h, g.directions, 5), wide(h, g.directions, 5))),
    ]
    basis = h.times(g.basis, g.envelope)
    states, of_layers, axes = {0: first_states(h, z)}, list[Symbol](), dict[Any, Symbol]()
    for layer in z.model.encoder.layers:
        sent = {s: h.linear(h.view(x, (n, 2 * s + 1, c)), c, bias=False) for s, x in states.items()}
        radial = basis
        for _ in range(3):
            radial = h.silu(h.linear(radial, 64, bias=False))
        received: dict[int, list[Symbol]] = {m: [] for m in range(ell + 1)}
        for s, e, m in couplings([*states], ell):
            count, width = 2 * s + 1, 2 * m + 1
            if (s, e, m) not in axes:
                table = Symbol((2 * e + 1, count * width))
                axes[s, e, m] = h.view(h.matmul(harmonics[e], table), (z.edges * count, width)) if s else harmonics[e]
            tensors = {"x": h.view(sent[s], (n * count, c)), "w": h.linear(radial, c, bias=False), "u": axes[s, e, m]}
            received[m].append(outer_sums(h, z, width, count)("g", tensors))
        mixed = [h.linear(h.join(*parts), c, bias=False) for parts in received.values()]
        side_by_side = h.scaled(h.join(*(h.view(x, (n, x.shape[1] * c)) for x in mixed)))
        components, rows = (ell + 1) ** 2, n * c
        a = copied(h, side_by_side, (components, rows))
        states = polynomials(h, z, layer, a, states)
        of_layers.append(states[0])
    return step(h, h.join(*of_layers), [g.vectors])


def copied(h: Hand, x: Symbol, shape: tuple[int, ...]) -> Symbol:
    """The same numbers in another order"""
    return h.write([x], [shape], 0, lambda u, _: [h.view(u[0], x.shape)])[0]  # type: ignore[arg-type]


def couplings(states: list[int], ell: int) -> list[tuple[int, int, int]]:
    """Degrees of states, harmonics and messages that the triangle rule and parity allow"""
    every = ((s, e, m) for m in range(ell + 1) for s in states for e in range(ell + 1))
    return [(s, e, m) for s, e, m in every if abs(s - e) <= m <= s + e and (s + e + m) % 2 == 0]


def wide(h: Hand, x: Symbol, width: int) -> Symbol:
    """Products of components of a direction"""
    return chosen(h, x, (x.shape[0], width))


def polynomials(h: Hand, z: Sizes, layer: Any, a: Symbol, states: dict[int, Symbol]) -> dict[int, Symbol]:
    """h <- W B(A) + W_z h, with the couplings' numbers of monomials and paths"""
    n, c, rows = z.nodes, z.channels, a.shape[1]

    def factors(module: Any, order: int) -> int:
        return len(module.get_buffer(f"last{order}"))

    def longer(x: Symbol, count: int) -> Symbol:
        flops = {"w": float(count * rows), "x": 2.0 * count * rows, "g": 2.0 * count * rows}
        fused = {"w": 4.0 * count * rows, "x": 3.0 * count * rows, "g": 3.0 * count * rows}
        shapes = {"x": a.shape, "g": x.shape, "w": (count, rows)}
        return Sums(h, shapes, flops, fused, dict.fromkeys((*shapes, "fused"), 2 * count))("w", {"x": a, "g": x})

    products = [a]
    for order in range(2, layer.products.lengths + 2):
        products.append(longer(products[-1], factors(layer.products, order)))
    new: dict[int, Symbol] = {}
    for name, parts in layer.products.components.items():
        degree, paths = int(name), layer.products.paths[name]
        table = h.weight(*layer.products.weights[name].weight.shape)
        weights = h.view(chosen(h, table, (n, paths * c)), (paths, n, c))
        sums: list[Symbol] = []
        for part in parts:
            monomials = [
                longer(products[order - 2], factors(part, order))
                if order > 1
                else chosen(h, a, (factors(part, 1), rows))
                for order in part.orders
            ]
            values = h.matmul(Symbol(tuple(part.coefficients.shape)), h.stack(*monomials))
            weighted = h.times(h.view(values, (paths, n, c)), weights)
            sums.append(h.view(h.summed_to(weighted, (1, n, c)), (n, c)))
        axes = 2 * degree + 1
        update = h.linear(h.view(h.join(*sums), (n, axes, c)), c, bias=False)
        if name in layer.skip:
            kinds = layer.kinds.count
            every = h.linear(h.view(states[degree], (n, axes, c)), kinds * c, bias=False)
            own = chosen(h, h.view(every, (n * axes * kinds, c)), (n * axes, c))
            update = h.add(update, h.view(own, (n, axes, c)))
        new[degree] = update if degree else h.view(update, (n, c))
    return new


WRITTEN: dict[str, Callable[[Hand, Sizes], Hand]] = {"schnet": schnet, "painn": painn, "pna": pna, "mace": mace}
