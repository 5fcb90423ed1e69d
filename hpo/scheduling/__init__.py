"""The campaign as one value, and the pure rules by which it changes: no files, no clock, no processes.

``events`` are what happens and what is asked for, ``state`` is the value, ``scheduler`` takes the step. Of its rules,
``filling`` says who is next and, by ``sizing``, on how many slots, ``health`` on which nodes, ``trouble`` whether the machine
itself is to blame; ``first`` has the rules of version 1 for its journals. ``ordered`` and ``node_health`` keep changes of a large campaign cheap. Nothing else of ``hydragnn.hpo``
is imported here.
"""

from hydragnn.hpo.scheduling.events import Action, Event, Plan, event_from_json, event_to_json
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, State, Trial, transition
