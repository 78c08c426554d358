"""The experiments of Lewicki and Sejnowski (1996) on noisy-OR networks."""
