"""The Python interface: functions, fitted models, scikit-learn estimators."""
