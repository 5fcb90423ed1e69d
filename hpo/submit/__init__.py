"""Batch jobs that carry a campaign, one after the other."""

from hydragnn.hpo.submit.chain import Span, Submission, submit_campaign, successor, walltime
from hydragnn.hpo.submit.script import Job, job_script
