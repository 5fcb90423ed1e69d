"""Files of the public HydraGNN as runs of this program."""

from hydragnn.importing.model import Output, PublicModel
