"""Laws that a trained model or a calculator is checked for."""

from hydragnn.ensemble.checking.laws import Finding, findings_of, findings_page
from hydragnn.ensemble.checking.subject import Subject, calculator_subject, model_subject
