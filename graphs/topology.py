"""Topology: the index structures of message passing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from dataclasses import field as member
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hydragnn.base.errors import InputError

STEPS = 1e5  # steps of the largest shift; shifts that differ do so by a whole cell
LONG = 512  # a row of more edges is long: on a GPU several programs sum it


Own = TypeVar("Own", bound="HasTensors")


class HasTensors:
    """Base of frozen dataclasses with tensors in their fields."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def mapped(self: Own, change: Callable[[Tensor], Tensor]) -> Own:
        """Return a copy with ``change``, which keeps values, done to every tensor."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return replace(self, **{name: map_tensors(value, change) for name, value in values.items()})

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        tensors: list[Tensor] = []

        def note(value: Tensor) -> Tensor:
            tensors.append(value)
            return value

        self.mapped(note)
        return tensors


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a value with ``change`` done to every tensor in it."""
    if isinstance(value, Tensor):
        return change(value)
    if hasattr(value, "mapped"):
        return value.mapped(change)
    if isinstance(value, Mapping):
        return {name: map_tensors(one, change) for name, one in value.items()}
    return tuple(map_tensors(one, change) for one in value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Topology:
    """Edges as a sparse matrix: rows are receivers, columns senders.

    ``receivers`` is sorted; the constructor trusts its caller. What follows from the edges is made when first asked for and
    kept inside, so that all layers share it; a ``replace`` starts without it, so it never outlives its edges.
    """

    senders: Int[Tensor, " edges"]
    receivers: Int[Tensor, " edges"]
    num_columns: int
    num_rows: int
    pair: Int[Tensor, " edges"] | None = None
    """Number of every edge's weight, if edges share weights; see ``sharing``."""
    num_pairs: int = 0
    """Number of shared weights."""
    _derived: dict[str, Tensor] = member(init=False, default_factory=dict)
    _longest: tuple[int, int] | None = member(init=False, default=None)

    @classmethod
    def square(cls, senders: Tensor, receivers: Tensor, num_nodes: int) -> "Topology":
        """Edges among ``num_nodes`` nodes, which send and receive.

        >>> Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
        Topology(2 edges, 2 senders -> 2 receivers, cpu)
        """
        return cls(senders=senders, receivers=receivers, num_columns=num_nodes, num_rows=num_nodes)

    def __repr__(self) -> str:
        sizes = f"{self.num_edges} edges, {self.num_columns} senders -> {self.num_rows} receivers"
        return f"Topology({sizes}, {self.senders.device})"

    @property
    def num_edges(self) -> int:
        """Entries of the matrix."""
        return self.senders.shape[0]

    @property
    def num_weights(self) -> int:
        """Number of weights: one per edge, or per pair."""
        return self.num_edges if self.pair is None else self.num_pairs

    def sharing(self, pair: Int[Tensor, " edges"], num_pairs: int) -> "Topology":
        """Return the same edges with one weight per ``pair`` in kernels.

        Raises ValueError where there is no int64 pair for every edge, IndexError where a pair does not exist (looked at on a CPU, not while a graph is traced).
        """
        if pair.shape != self.senders.shape:
            raise ValueError(f"pairs of shape {list(pair.shape)} go with {self.num_edges} edges; every edge needs one")
        if pair.dtype != torch.int64:
            raise ValueError(f"pairs of {self} are {pair.dtype}; make them torch.int64")
        if type(pair) is Tensor and pair.is_cpu and len(pair) and int(pair.numpy().view(np.uint64).max()) >= num_pairs:
            raise IndexError(f"a pair of {self} does not exist; pairs are numbered from 0 to {num_pairs - 1}")
        shared = replace(self, pair=pair, num_pairs=num_pairs)
        object.__setattr__(shared, "_derived", self._derived)  # it follows from the edges, which are the same
        object.__setattr__(shared, "_longest", self._longest)
        return shared

    def repeated(self, copies: int) -> "Topology":
        """Return the edges of copies of all nodes, with derived arrays.

        >>> Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2).repeated(3).senders.tolist()
        [1, 0, 3, 2, 5, 4]
        """
        rows, columns, edges = self.num_rows, self.num_columns, self.num_edges
        whole = Topology(
            senders=tiled(self.senders, copies, columns),
            receivers=tiled(self.receivers, copies, rows),
            num_columns=copies * columns,
            num_rows=copies * rows,
            pair=None if self.pair is None else tiled(self.pair, copies, self.num_pairs),
            num_pairs=copies * self.num_pairs,
        )
        derived = {
            "row_offsets": repeated_offsets(self.row_offsets, copies, edges),
            "column_offsets": repeated_offsets(self.column_offsets, copies, edges),
            "by_sender": tiled(self.by_sender, copies, edges),
            "sorted_senders": tiled(self.sorted_senders, copies, columns),
        }
        if "largest_ends" in self._derived and rows == columns:
            derived["largest_ends"] = self.largest_ends + ((copies - 1) * rows if edges else 0)
        whole._derived.update(derived)
        return whole

    @property
    def row_offsets(self) -> Int[Tensor, " rows_plus_one"]:
        """Row pointer: row i owns the edges ``row_offsets[i]`` to ``row_offsets[i + 1]``."""
        return self._derive("row_offsets", lambda: _row_pointer(self.receivers, self.num_rows))

    @property
    def degrees(self) -> Int[Tensor, " rows"]:
        """Incoming edges of every row."""
        return self._derive("degrees", lambda: self.row_offsets.diff())

    @property
    def by_sender(self) -> Int[Tensor, " edges"]:
        """Stable order of edges by sender."""
        return self._derive("by_sender", lambda: self._sort_by_sender()[1])

    @property
    def sorted_senders(self) -> Int[Tensor, " edges"]:
        """Senders in the order ``by_sender``."""
        if "by_sender" in self._derived:
            return self._derive("sorted_senders", lambda: self.senders.index_select(0, self.by_sender))
        return self._derive("sorted_senders", lambda: self._sort_by_sender()[0])

    @property
    def column_offsets(self) -> Int[Tensor, " columns_plus_one"]:
        """Row pointer of the transposed matrix."""
        return self._derive("column_offsets", lambda: _row_pointer(self._sort_by_sender()[0], self.num_columns))

    @property
    def receivers_by_sender(self) -> Int[Tensor, " edges"]:
        """Receivers in the order ``by_sender``: the column indices of the transposed matrix."""
        return self._derive("receivers_by_sender", lambda: self.receivers.index_select(0, self.by_sender))

    @property
    def edge_numbers(self) -> Int[Tensor, " edges"]:
        """0 to num_edges - 1."""
        return self._derive("edge_numbers", lambda: torch.arange(self.num_edges, device=self.senders.device))

    @property
    def largest_ends(self) -> Int[Tensor, " 2"]:
        """Largest sender and receiver, -1 without edges, on a CPU.

        Raises IndexError where an edge joins what is not there, ValueError where receivers do not ascend or numbers are no int64.
        """
        return self._derive("largest_ends", self._check_ends)

    def _check_ends(self) -> Tensor:
        if not self.num_edges:
            return torch.tensor([-1, -1])
        ends = (("sender", self.senders, self.num_columns), ("receiver", self.receivers, self.num_rows))
        largest = []
        for name, tensor, count in ends:
            if tensor.dtype != torch.int64:
                raise ValueError(f"{name}s of {self} are {tensor.dtype}; make them torch.int64")
            values = tensor.numpy()
            largest.append(int(values.view(np.uint64).max()))  # a negative number is a huge one here
            if largest[-1] >= count:
                wrong = values[(values < 0) | (values >= count)][0]
                raise IndexError(f"{name} {wrong} of {self} does not exist; {name}s are numbered from 0 to {count - 1}")
        received = self.receivers.numpy()
        if (received[1:] < received[:-1]).any():
            raise ValueError(f"the receivers of {self} do not ascend; sort the edges by receiver")
        return torch.tensor(largest)

    def _sort_by_sender(self) -> tuple[Tensor, Tensor]:
        """The sorted senders and their order, from one sort."""
        if "sorted_senders" not in self._derived:
            self._derived["sorted_senders"], self._derived["by_sender"] = torch.sort(self.senders, stable=True)
        return self._derived["sorted_senders"], self._derived["by_sender"]

    def _derive(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    @property
    def longest(self) -> tuple[int, int] | None:
        """Edges of the longest row and column; None where not counted.

        The host never waits for it: it is counted on a CPU and moves with the edges.
        """
        if self._longest is None and type(self.senders) is Tensor and self.senders.is_cpu:
            ends = (end.detach().numpy() for end in (self.receivers, self.senders))
            row, column = (int(np.bincount(end).max()) if len(end) else 0 for end in ends)
            object.__setattr__(self, "_longest", (row, column))
        return self._longest

    def long_ends(self, limit: int = LONG) -> tuple[bool, bool]:
        """Return whether row and column may have more than ``limit`` edges."""
        row, column = (self.num_edges,) * 2 if self.num_edges <= limit or self.longest is None else self.longest
        return row > limit, column > limit

    def prepare(self) -> None:
        """Derive what kernels of a GPU read, on the edges' CPU.

        One pass over the edges in place of a sort on the device.
        """
        if self.longest is None or "by_sender" in self._derived:
            return
        from scipy.sparse import csr_array

        offsets, numbers = self.row_offsets, np.arange(self.num_edges)
        rows = (numbers, self.senders.numpy(), offsets.numpy())
        columns = csr_array(rows, shape=(self.num_rows, self.num_columns)).tocsc()  # in each the edges keep their order
        arrays = {"by_sender": columns.data, "receivers_by_sender": columns.indices, "column_offsets": columns.indptr}
        self._derived.update({name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()})
        note_ascending(self.receivers, self.num_rows, offsets, self.longest[0])

    @property
    def index_arrays(self) -> dict[str, Tensor]:
        """Derived arrays by the name of their property."""
        return self._derived

    def to(self, device: torch.device | str | None) -> "Topology":
        """Return the same edges on ``device``, with derived arrays."""
        if device is not None and torch.device(device).type not in ("cpu", "meta"):
            self.prepare()
        return self.mapped(lambda value: value.to(device))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Topology":
        """Return the edges with ``change``, which keeps values, done to every tensor."""
        same = True

        def noted(value: Tensor) -> Tensor:
            nonlocal same
            mapped_value = change(value)
            same = same and mapped_value is value
            return mapped_value

        changed = Topology(
            senders=noted(self.senders),
            receivers=noted(self.receivers),
            num_columns=self.num_columns,
            num_rows=self.num_rows,
            pair=None if self.pair is None else noted(self.pair),
            num_pairs=self.num_pairs,
        )
        changed._derived.update({name: noted(value) for name, value in self._derived.items()})
        if same:
            return self
        if self._longest is not None:
            object.__setattr__(changed, "_longest", self._longest)
            if "row_offsets" in changed._derived:
                note_ascending(changed.receivers, self.num_rows, changed.row_offsets, self._longest[0])
        return changed


class Ascending(NamedTuple):
    """Offsets of ascending rows, their number, and the longest if known."""

    rows: int
    offsets: Tensor
    longest: int | None


_ascending: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""By array of the row of each item, for as long as it lives."""


def note_ascending(items: Int[Tensor, " items"], rows: int, offsets: Tensor, longest: int | None = None) -> None:
    """Note that the rows of items ascend, so that nobody sorts them."""
    if type(items) is not Tensor or items.is_inference():
        return
    _ascending[items] = (items._version, Ascending(rows, offsets, longest))


def ascending(items: Int[Tensor, " items"], rows: int) -> Ascending | None:
    """Return the note on the rows of items; None without one."""
    version, noted = _ascending.get(items, (None, None))
    return noted if noted is not None and version == items._version and noted.rows == rows else None


def tiled(numbers: Int[Tensor, " items"], copies: int, step: int) -> Int[Tensor, " all_items"]:
    """Return numbers of as many copies, each ``step`` higher than the last.

    >>> tiled(torch.tensor([0, 2]), copies=2, step=3).tolist()
    [0, 2, 3, 5]
    """
    first = torch.arange(0, copies * step, step, device=numbers.device) if step else numbers.new_zeros(copies)
    return (first.unsqueeze(1) + numbers).flatten()


def repeated_offsets(offsets: Int[Tensor, " rows_plus_one"], copies: int, items: int) -> Int[Tensor, " all_plus_one"]:
    """Return the offsets of copies of rows with ``items`` in all.

    >>> repeated_offsets(torch.tensor([0, 2, 3]), copies=2, items=3).tolist()
    [0, 2, 3, 5, 6]
    """
    return torch.cat([offsets[:1], tiled(offsets[1:], copies, items)])


def relation_topology(topology: Topology, relation: Int[Tensor, " edges"], relations: int) -> Topology:
    """Return one row per (receiver, relation); the order of edges changes.

    >>> edges = Topology.square(torch.tensor([1, 2]), torch.tensor([0, 0]), 3)
    >>> keyed = relation_topology(edges, torch.tensor([1, 0]), relations=2)
    >>> keyed.senders.tolist(), keyed.receivers.tolist(), keyed.num_rows
    ([2, 1], [0, 1], 6)
    """
    key = topology.receivers * relations + relation
    key, order = torch.sort(key, stable=True)
    return Topology(
        senders=topology.senders.index_select(0, order),
        receivers=key,
        num_columns=topology.num_columns,
        num_rows=topology.num_rows * relations,
    )


def _row_pointer(sorted_index: Tensor, rows: int) -> Tensor:
    """Return where each row begins, and the end."""
    return counted_offsets(sorted_index, rows) if sorted_index.is_cpu else searched_offsets(sorted_index, rows)


def counted_offsets(sorted_index: Int[Tensor, " entries"], rows: int) -> Int[Tensor, " rows_plus_one"]:
    """Return where each row begins, by counting: fast on a CPU."""
    return torch.nn.functional.pad(torch.bincount(sorted_index, minlength=rows).cumsum(0), (1, 0))


def searched_offsets(sorted_index: Int[Tensor, " entries"], rows: int) -> Int[Tensor, " rows_plus_one"]:
    """Return where each row begins, by searching: no atomics, no waiting."""
    bounds = torch.arange(rows + 1, device=sorted_index.device, dtype=sorted_index.dtype)
    return torch.searchsorted(sorted_index, bounds)


def reverse_of(topology: Topology, shifts: Float[Tensor, "edges dim"]) -> Int[Tensor, " edges"]:
    """The reverse of every edge; InputError where an edge has none.

    Edges sorted by (sender, receiver, shift) meet their reverses sorted by (receiver, sender, minus shift).

    >>> both = Topology.square(torch.tensor([1, 2, 0, 0]), torch.tensor([0, 0, 1, 2]), 3)
    >>> reverse_of(both, torch.zeros(4, 2))
    tensor([2, 3, 0, 1])
    """
    senders, receivers = topology.senders, topology.receivers
    if not len(senders):
        return torch.zeros_like(senders)
    largest = shifts.abs().max() if shifts.numel() else shifts.new_ones(())
    steps = (shifts * (STEPS / torch.where(largest > 0, largest, 1.0))).round().to(torch.int64)
    forth = _order([senders, receivers, *steps.unbind(1)])
    back = _order([receivers, senders, *(-steps).unbind(1)])
    wrong = (senders[forth] != receivers[back]) | (receivers[forth] != senders[back])
    wrong = wrong | ((steps[forth] + steps[back]).abs() > 1).any(1)
    if bool(wrong.any()):
        edge = int(forth[wrong][0])
        raise InputError(
            f"the edge from node {int(senders[edge])} to {int(receivers[edge])} of the batch has none in the other direction, which a head "
            "with symmetry compares it with; give both directions of every edge, or leave symmetry out"
        )
    return torch.empty_like(forth).index_copy(0, forth, back)


def _order(keys: list[Tensor]) -> Int[Tensor, " edges"]:
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):
        order = order[torch.argsort(key[order], stable=True)]
    return order
