"""The experiment of denoising binary images."""
