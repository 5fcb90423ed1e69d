"""Detection of graphs unlike the training data.

``view`` is what all of them see of a batch. ``detector`` is what one is; ``kinds``, ``inputs``, ``composition``,
``neighbourhoods``, ``structure``, ``spread`` and ``latent`` are those there are, the last two from what members say. ``limits`` sets thresholds on held-out graphs, ``fitting``
makes a ``domain`` of a training part, and ``loading`` reads it.
"""

from hydragnn.ensemble.domain.detector import Detector
from hydragnn.ensemble.domain.domain import FILE, Domain, DomainScores, joint_score
from hydragnn.ensemble.domain.doubts import graph_doubts, state_doubts
from hydragnn.ensemble.domain.fitting import cross_fitted_domain, fitted_domain, references_of, scores_of, views
from hydragnn.ensemble.domain.latent import Latent
from hydragnn.ensemble.domain.limits import FALSE_ALARMS
from hydragnn.ensemble.domain.loading import domain_from_json
from hydragnn.ensemble.domain.spread import Spread
from hydragnn.ensemble.domain.view import GraphView
