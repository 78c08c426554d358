"""Normal distributions in one and two dimensions, and correlations of the normals behind bits."""
