"""From finished runs to an ensemble: selection, calibration data, training domain, evaluation."""
