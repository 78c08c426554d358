"""Explanations of terms in the report."""

from __future__ import annotations

from collections.abc import Sequence

_FACT_EXPLANATIONS = {
    "nats per row": "A nat is the unit of natural logarithms: with 0.01 nats per row more, rows "
    "are 1 % more likely.",
    "regularization": "Regularization is added to the variances of the features, so that a few "
    "rows cannot dominate; the stronger it is, the weaker the correlations that the model sees.",
    "stability of starts": "Stability is the similarity of the mixing of two fits, from 0 to 1: of "
    "the two best starts (below 1, there is more than one solution)",
    "stability of halves": "and of two halves of the rows.",
    "likelihood error": "The likelihood error is how far the objective may be off, in nats per "
    "row.",
    "half agrees": "Kernel lost is the share of the kernel that the landmarks do not span. Half "
    "agrees is how well half of the landmarks reproduce the codes; 1 is perfect.",
    "unmixed": "Unmixed is the share of rows whose two chains of draws disagree.",
    "vertices": "Vertices are the distinct rows in the graph; parts are its connected components.",
    "before fine tuning": "Before fine tuning is the objective after the layers were trained one "
    "by one.",
}
_COLUMN_EXPLANATIONS = {
    "difficulty": "Weights are the slopes a and offsets the intercepts d of logistic curves, "
    "1 / (1 + exp(−a x − d)), so D = 1. At the difficulty b = −d / a, the curve is at ½.",
    "infit": "Infit and outfit are mean squared residuals, with and without weighting by "
    "information: about 1 if the model holds, larger if answers are more erratic.",
    "s_x2": "S-X² compares the frequencies of ones at each sum score with those of the model; a "
    "small p means that they differ by more than chance.",
}


def explain_facts(facts: Sequence[tuple[str, str]]) -> str:
    """Explain the terms that occur in facts."""
    text = " ".join(part for fact in facts for part in fact)
    return " ".join(means for term, means in _FACT_EXPLANATIONS.items() if term in text)


def explain_columns(columns: Sequence[str]) -> str:
    """Explain the columns of the table of parameters."""
    return " ".join(means for name, means in _COLUMN_EXPLANATIONS.items() if name in columns)
