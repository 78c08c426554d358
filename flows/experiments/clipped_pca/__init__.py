"""The experiment of Lee and Sompolinsky (1999) on clipped PCA."""
