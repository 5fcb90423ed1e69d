"""Batch jobs that carry a campaign, one after the other."""

from hydragnn.hpo.submit.chain import Submission, job_script, minutes_of, submit_campaign, successor
