"""The latent-trait model of items with several levels."""
