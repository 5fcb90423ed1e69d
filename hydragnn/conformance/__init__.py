"""Tests that every architecture passes; inherit ``ArchitectureConformance`` in a test file to run them for your own."""

from hydragnn.conformance.suite import ArchitectureConformance
