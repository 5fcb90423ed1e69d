"""Models of the public HydraGNN, with the arithmetic of their version."""

from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.kinds import build, of_branch
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import FrozenSettings
