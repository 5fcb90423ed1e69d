"""Life of one training run, on any number of ranks."""

from hydragnn.runs.progress import Progress
from hydragnn.runs.session import train
