"""Batch jobs that carry a campaign, one after the other."""

from hydragnn.hpo.submit.chain import Submission, minutes_of, submit_campaign, successor
from hydragnn.hpo.submit.script import Job, job_script
