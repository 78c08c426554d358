"""Tables that experiments leave."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any


def table(stem: Path) -> list[dict[str, Any]]:
    """Read a table from its JSON, and see that the CSV says the same."""
    rows = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    texts = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    with stem.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == texts
    return rows
