"""Several models speaking as one: selection, prediction, uncertainty, calibration."""

from hydragnn.ensemble.build import build_ensemble, evaluate_ensemble
from hydragnn.ensemble.calculator import EnsembleCalculator, calculator
from hydragnn.ensemble.calibration import Calibration, conformal_quantile, fit_calibration
from hydragnn.ensemble.choose import Choice, ensemble_from_runs, select_runs
from hydragnn.ensemble.class_calibration import ClassCalibration
from hydragnn.ensemble.classes import ClassEstimate
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.estimates import Estimate
from hydragnn.ensemble.evaluation import Evaluation, TargetEvaluation, part_evaluation
from hydragnn.ensemble.manifest import Manifest, read_manifest
from hydragnn.ensemble.numbers import NumberEstimate
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.prediction.reporting import PredictionResult
from hydragnn.ensemble.predictions import Predictions
from hydragnn.ensemble.selection import Candidate, Selection, candidates, greedy_selection, top_k
from hydragnn.ensemble.uncertainty import MixtureMoments, total_variance
