"""The parts that all command lines share: options, settings, summaries, progress, logging."""
