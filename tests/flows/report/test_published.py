"""What a fit leaves on a Prefect server: facts and figures, under keys that stay the same."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.report.inputs import REPORT_FILE
from storage import load_artifact
from tests.support.data import draw_probit_rows, write_arrays

FIGURES = [
    "calibration-of-pairs",
    "features-in-latent-space",
    "loadings",
    "loadings-95-intervals",
    "rows-in-latent-space",
    "spectrum",
]
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(3000, 12, 2, seed=3)
    path = tmp_path_factory.mktemp("published") / "Night_votes.zarr"
    rng = np.random.default_rng(0)
    write_arrays(path, X, columns={"party": rng.choice([f"p{k}" for k in range(12)], len(X))})
    return path


def published(prefix: str) -> dict[str, list[Any]]:
    """The artifacts on the server whose key begins so, by key."""
    wanted = ArtifactFilter(key=ArtifactFilterKey(like_=f"{prefix}%"))
    found: dict[str, list[Any]] = {}
    with get_client(sync_client=True) as client:
        for artifact in client.read_artifacts(artifact_filter=wanted):
            found.setdefault(str(artifact.key), []).append(artifact)
    return found


@pytest.mark.matrix
def test_a_fit_leaves_its_facts_and_figures_on_the_server(cli, prefect_server, data):
    for _ in range(2):
        done = cli("fit", "--dataset", data, "--components", 2, "--report")
        assert done.code == 0, done.err
    base = "night-votes-clipped-pca"
    found = published(base)
    assert len(found.pop(f"{base}-fit")) == 2
    (of_data,) = published("night-votes-dataset")["night-votes-dataset"]
    assert of_data.data.count("- [Fit](") == 2
    assert sorted(found) == [base, *(f"{base}-{name}" for name in FIGURES)]
    assert {key: len(artifacts) for key, artifacts in found.items()} == dict.fromkeys(found, 2)
    report = Path(load_artifact("runs/Night_votes").path, REPORT_FILE)
    facts = found.pop(base)
    assert {artifact.type for artifact in facts} == {"markdown"}
    assert any(str(report.resolve()) in artifact.data for artifact in facts)
    assert all("clipped-pca was fitted with 2 components" in artifact.data for artifact in facts)
    for _, artifact in found.values():
        assert artifact.type == "image"
        kind, _, content = artifact.data.partition(",")
        assert kind == "data:image/png;base64"
        png = base64.b64decode(content)
        assert len(png) < MOST_BYTES
        image = Image.open(BytesIO(png))
        assert image.format == "PNG"
        assert 900 <= image.width <= 2000
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_what_cannot_be_published_loses_neither_fit_nor_report(
    cli, prefect_server, data, monkeypatch, warn_after_fits
):
    def broken(*_, **__):
        raise ConnectionError("the server\nis gone")

    monkeypatch.setattr("prefect.artifacts.create_image_artifact", broken)
    monkeypatch.setattr("flows.report.lineage._find_dataset", broken)
    done = cli("fit", "--dataset", data, "--components", 3, "--report", "--json")
    assert done.code == 0
    assert Path(done.json["report"]).exists()
    (line,) = [line for line in done.err.splitlines() if "The report" in line]
    assert "could not be published on the Prefect server (ConnectionError: the server is" in line
    assert "The links between fit and data could not be recorded by Prefect (Conn" in done.err
    assert load_artifact(done.json["artifact"])["loadings"].shape == (12, 3)
