"""Detection of graphs unlike the training data.

``fitting`` makes a ``domain`` of a training part: detectors (``kinds``, ``doubts``), and the ``rarity`` of a graph among
held-out ones.
"""

from hydragnn.ensemble.domain.detector import Detector, Doubts, GraphView
from hydragnn.ensemble.domain.domain import FILE, Domain, DomainScores, arrays_in, domain_from_json
from hydragnn.ensemble.domain.doubts import STATES, Latent, Spread, doubted_items, doubts_of, item_doubts
from hydragnn.ensemble.domain.fitting import fitted_domain, references_of, scores_of, views
from hydragnn.ensemble.domain.kinds import OpenReferences, Statistics
from hydragnn.ensemble.domain.rarity import FALSE_ALARMS
