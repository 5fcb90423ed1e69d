"""Mathematics of training; it knows no process and no file."""

from hydragnn.training.evaluate import errors_of_folds, errors_on, flat_metrics, trivial_predictor
from hydragnn.training.loop import train_epochs
from hydragnn.training.metrics import Errors
