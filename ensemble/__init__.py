"""Several models as one: selection, prediction, uncertainty, calibration."""

from hydragnn.ensemble.building.build import build_ensemble, evaluate_ensemble
from hydragnn.ensemble.building.evaluation import Evaluation, part_evaluation
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.estimates.calibration.classes import ClassCalibration
from hydragnn.ensemble.estimates.calibration.numbers import Calibration, conformal_quantile, fit_calibration
from hydragnn.ensemble.estimates.classes import ClassEstimate
from hydragnn.ensemble.estimates.estimate import Estimate, TargetEvaluation
from hydragnn.ensemble.estimates.moments import MixtureMoments, total_variance
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.ensemble.estimates.predictions import Predictions
from hydragnn.ensemble.exporting.export import FORMATS, ExportResult, export_ensemble
from hydragnn.ensemble.exporting.package_calculator import package_calculator, torch_sim_model
from hydragnn.ensemble.manifest import Manifest, read_manifest
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.prediction.reporting import PredictionResult
from hydragnn.ensemble.uses.calculator import EnsembleCalculator, OutsideDomain, calculator
from hydragnn.ensemble.uses.neutron import NeutronSpectrum, neutron_spectrum
from hydragnn.ensemble.uses.rollout import Rollout, rollout, spread_factors
