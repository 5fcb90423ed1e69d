"""Calculator and roll-outs of an ensemble; calculators of others as baselines and labellers."""
