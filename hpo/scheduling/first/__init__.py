"""The rules of version 1, whose journals hold events without what was decided about them: only who reads such a journal asks them.

They never change, so that these campaigns do not either. Rules of today are in the folder above, and their decisions are in the
journals; values are the same, and attempts and faults are counted as whoever goes on with such a campaign needs it. Before a
member of ``State`` or a function of ``state.py`` means something else, what these rules use of it comes here.
"""

from hydragnn.hpo.scheduling.first.rules import transition as first_transition
