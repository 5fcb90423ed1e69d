"""One prediction as a job.

Shared by any number of processes, continued after any kill, written to one file.

``predict`` is the whole. ``job`` is what was asked, ``sources`` and ``frames`` are where graphs come from. ``order`` and
``schedule`` say who does what, ``group`` (found by ``joining``; by ``claims`` or by ``counting``, over ``queues``) who takes
what, ``work`` does it, ``parts`` and ``records`` keep it, ``together`` closes gaps; ``reporting`` says how it goes. What was kept is
joined into a ``sinks`` of ``formats``: by all processes into ``hdf5`` (``filling``), by one into other ``arrays`` or ``tables``. The ensemble outside knows nothing of this room.
"""

from hydragnn.ensemble.prediction.predict import predict_to_file
