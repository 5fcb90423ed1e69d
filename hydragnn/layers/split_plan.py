"""Plans of layers: how their weights and arrays are split by channels.

Between ranks along ``tensor`` an array is one of four: *whole* (every rank has all of it, and all of its gradient), *shared* (all of it, and its own part of the
gradient), *local* (its own channels), or *partial* (a summand). A plan says where arrays change from one to another:

==========  ==================  =========================
way         forward             backward
==========  ==================  =========================
``copy``    whole to shared     sums gradients
``reduce``  partial to whole    copies
``gather``  local to whole      takes own channels
``own``     whole to local      gathers gradients
``cut``     shared to local     fills with zeros
==========  ==================  =========================

``copy`` and ``reduce``, ``gather`` and ``own`` are each other's derivatives. A layer without a plan stays whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Way = Literal["copy", "reduce", "gather", "own", "cut"]
Ways = tuple[Way, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSplit:
    """Split of a part of a layer: weights, arguments and outputs."""

    weights: Literal["columns", "rows", "last", "shared"] | None = None
    """columns: by outputs, which are local then. rows: by inputs, which are local; outputs are added up, and the bias after that. last: by the last dimension; what
    comes out is not added up. shared: not split, but used on shared arrays. None: no weights of its own."""
    blocks: int = 1
    """Blocks of channels side by side, each of which is split: 3 for queries beside keys beside values."""
    takes: tuple[Ways, ...] = ()
    """Ways of the arguments, in their order; ``copy`` of a ``MessageGraph`` copies its geometry and features."""
    joined: int = 1
    """Blocks of channels side by side in the arguments."""
    gives: Ways = ()
    """Ways of every output."""
    in_head: Ways = ()
    """Ways of outputs among the ranks that share a head.

    The last of several blocks, the values, stays local."""
    counts: tuple[str, ...] = ()
    """Attributes with a number of heads or channels, of which a rank has its share."""


Plan = Mapping[str, LayerSplit]
"""Parts of a layer by path, as its ``split_plan()`` gives them.

"" is the layer itself, "values.*" all of a list. A path may lead to a parameter, which is split along its first dimension.
"""
