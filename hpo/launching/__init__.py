"""How attempts become processes: started, heard of and ended, on this machine or on the nodes of an allocation.

``launcher`` is the protocol and the judgement of what came out; ``local`` runs processes of this machine, ``steps`` one job
step per attempt (each a ``stepprocess``), ``packs`` many small attempts in few steps. ``allocation`` says what there is and
``sites`` how the site is spoken to; ``watchdog`` and ``probes`` tell which nodes failed. ``rank``, ``pack``, ``worker`` and
``probe`` are programs: run by their paths, where the attempts are.
"""

from hydragnn.hpo.launching.allocation import Allocation, read_allocation
from hydragnn.hpo.launching.launcher import Begun, Exit, Launcher, Report, Task, verdict
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site, site_of
from hydragnn.hpo.launching.steps import StepLauncher
