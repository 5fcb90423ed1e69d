"""Calculator, roll-outs, and calculators of others as baselines."""
