"""Prediction by many processes, continued after any kill, into one file.

``job`` holds the settings, ``sources`` and ``rules`` make graphs, ``schedule`` divides the work, ``work`` does it,
``parts`` keep it, ``formats`` write it, ``reporting`` shows it; ``predict`` does all.
"""

from hydragnn.ensemble.prediction.predict import predict_to_file
