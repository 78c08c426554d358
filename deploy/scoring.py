"""A service that answers rows with their latent codes; `.docs/tasks/services.md` shows its use."""

from __future__ import annotations

import os
import sys
from typing import Any

from fastapi import FastAPI, HTTPException

import latentbits as lb

artifact = os.environ.get("LATENTBITS_ARTIFACT")
if not artifact:
    sys.exit("LATENTBITS_ARTIFACT is not set. Set it to the folder of a fit, such as runs/votes.")
try:
    scorer = lb.Scorer(artifact)
except ValueError as error:
    sys.exit(f"LATENTBITS_ARTIFACT: {error}")

app = FastAPI(title="latentbits", description=repr(scorer.fitted.model))


@app.get("/features")
def list_features() -> list[str]:
    """List the names of the features."""
    return list(scorer.fitted.feature_names)


@app.post("/next-items")
def choose_next_items(
    answers: dict[str, Any], n: int = 1, max_error: float = 0.0, segment: str | None = None
) -> dict[str, Any]:
    """Choose the items to ask next, given the answers so far."""
    try:
        return scorer.next_items(answers, n, max_error=max_error, segment=segment)._asdict()
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


# Not `async`: each request runs on a thread of its own.
@app.post("/codes")
def compute_codes(row: dict[str, Any], segment: str | None = None) -> dict[str, float | bool]:
    """Compute the latent codes of a row; features that are absent or null are missing."""
    try:
        return scorer(row, segment)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
