"""Hidden Markov models: rows in sequences, whose hidden states follow a Markov chain."""
