"""The parts of `flows.evaluate`: its stages, the models compared, folds, item bias and tables."""
