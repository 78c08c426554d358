"""The experiments of Tipping (1998) on the latent-trait model."""
