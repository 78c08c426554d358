"""Words of a report that a reader may not know, explained where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_FACT_EXPLANATIONS = {
    "nats a row": "A nat is a unit of natural logarithms: 0.01 nats a row more make a row 1 % "
    "likelier.",
    "regularization": "Regularization is what is added to the variances of the features, which "
    "keeps few rows from deciding: the stronger, the smaller what the model makes of correlations.",
    "stability of starts": "Stability is how alike the mixing of two fits is, 1 where it is the "
    "same: of the two best starts, so that below 1 there is more than one answer,",
    "stability of halves": "and of two halves of the rows.",
    "likelihood error": "The likelihood error is what the objective may be off by, in nats a row.",
    "half agrees": "Kernel lost is the share of the kernel that the landmarks do not span; half "
    "agrees is how much of the codes half of the landmarks give as well, 1 being all.",
    "unmixed": "Unmixed is the share of rows whose two chains of draws disagree.",
    "vertices": "Vertices are the distinct rows that are linked, parts the pieces into which their "
    "links fall.",
    "before fine tuning": "Before fine tuning is the objective when each layer had been learned by "
    "itself.",
}
_COLUMN_EXPLANATIONS = {
    "difficulty": "Weights are the slopes a and offsets the intercepts d of logistic curves, "
    "1 / (1 + exp(−a x − d)), so D = 1; the difficulty b = −d / a is where the curve is at ½.",
    "infit": "Infit and outfit are mean squared residuals, weighted by information and not: 1 "
    "where the model holds, above where answers are more erratic.",
    "s_x2": "S-X² compares the shares of ones at each sum score with the model's; a small p says "
    "that they differ by more than chance.",
}


def explain_facts(facts: Sequence[tuple[str, str]]) -> str:
    """Explain the words in facts."""
    return " ".join(
        _iter_explanations(_FACT_EXPLANATIONS, " ".join(part for fact in facts for part in fact))
    )


def explain_columns(columns: Sequence[str]) -> str:
    """Explain what columns of the table of parameters hold."""
    return " ".join(told for name, told in _COLUMN_EXPLANATIONS.items() if name in columns)


def _iter_explanations(words: dict[str, str], text: str) -> Iterator[str]:
    return (told for word, told in words.items() if word in text)
