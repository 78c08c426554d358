"""The experiments of Hyttinen et al. (2022) on binary ICA."""
