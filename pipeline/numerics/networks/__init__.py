"""Networks of sigmoid units and Boltzmann machines."""
