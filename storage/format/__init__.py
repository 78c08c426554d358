"""The on-disk format: arrays, codecs and manifests."""
