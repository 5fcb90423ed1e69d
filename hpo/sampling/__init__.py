"""Samplers, and how a campaign asks them for configurations."""

from hydragnn.hpo.sampling.sampler import History, Sampler

__all__ = ["History", "Sampler"]
