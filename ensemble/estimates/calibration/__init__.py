"""Intervals of numbers and sets of classes, fitted on held-out graphs."""
