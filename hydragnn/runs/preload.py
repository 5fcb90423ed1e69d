"""Modules and compiled loops of trials, loaded once before these are forked."""

from contextlib import suppress

import numpy.ctypeslib
import numpy.ma  # noqa: F401

from hydragnn.architectures import architectures
from hydragnn.base import allocator  # noqa: F401
from hydragnn.datasets.formats.engine import engine_named
from hydragnn.kernels.cpu.compiled import LIBRARY, UNUSABLE, load
from hydragnn.models.heads.base import head_kinds

head_kinds()
engine_named("hdf5")
architectures()
with suppress(*UNUSABLE):  # a trial says so in its own log
    load(LIBRARY)
