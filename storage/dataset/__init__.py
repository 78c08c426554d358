"""Bit-packed datasets in Zarr: read, write and verify them."""
