"""How attempts become processes: started, heard of and ended, on this machine or on the nodes of an allocation.

``launcher`` is the protocol; ``local`` runs processes of this machine, ``steps`` one job step per attempt, ``packs`` many small
attempts in few steps. ``attempts`` judges what came out, ``watchdog`` tells which nodes failed. ``allocation`` says what there
is, ``sites`` how job steps are started and ended, ``witness`` how a scheduler's answers are read. ``rank``, ``worker`` and
``probe`` are programs: run by their paths, where the attempts are.
"""

from hydragnn.hpo.launching.allocation import Allocation, read_allocation
from hydragnn.hpo.launching.attempts import verdict
from hydragnn.hpo.launching.launcher import Begun, Exit, Launcher, Report, Task
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site, site_of
from hydragnn.hpo.launching.steps import StepLauncher
