"""Samplers, and how a campaign asks them for configurations."""
