"""Training: one run from a configuration to a record, on any number of ranks."""

from hydragnn.training.distributed import Ranks, joined_ranks, launch_from, leave, this_launch
from hydragnn.training.evaluate import errors_on, evaluate, flattened, trivial_metrics, trivial_predictor
from hydragnn.training.metrics import Target, targets_of
from hydragnn.training.progress import Progress, console_progress
from hydragnn.training.session import train
