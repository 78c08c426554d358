"""What a fitted model is for: codes, scores, samples, comparisons."""
