"""Members, data and options of an ensemble that is built."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from hydragnn.datasets import GraphStore, Split
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.member_outputs import MemberOutputs, member_outputs

Parts = dict[str, tuple[GraphStore, MemberOutputs]]
"""Outputs of all members for graphs of a store, by the name of the part."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setup:
    """Members, data and options of an ensemble that is built."""

    ensemble: Ensemble
    store: GraphStore
    """The training store."""
    split: Split
    nominal: float = 0.9
    """Share of labels that intervals and sets hold."""
    false_alarms: float
    """Share of usual graphs that may be flagged."""

    def outputs(self, graphs: Int[np.ndarray, " graphs"], store: GraphStore | None = None) -> MemberOutputs:
        """Predict these graphs of the training store, or of another, with every member."""
        store = store or self.store
        return member_outputs(self.ensemble.members, store, graphs, self.ensemble.needed(store))
