"""Models in which features, or hidden variables behind them, depend on each other along trees."""
