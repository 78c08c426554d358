"""Which data made a model, on the pages of a Prefect server.

Every dataset that a run writes or fits, and every fit, is a Markdown artifact of Prefect on the
page of its run. The artifact of a fit links to that of its data, which links to all its fits. Keys
are such as `votes-dataset` and `votes-clipped-pca-fit`, so the history of a key shows all versions.
(Prefect's assets are shown by Prefect Cloud only.)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flows.report.figures.text import make_slug
from flows.report.markdown import format_facts, quote_text
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import parse_path

if TYPE_CHECKING:
    from prefect.client.schemas.objects import Artifact

_MAX_VERSIONS = 100
"""Latest versions of a dataset among which a fit looks for its own."""


def publish_dataset(dataset: BinaryDataset, n_new_rows: int) -> None:
    """Publish the dataset that the current flow run has written, if there is such a run."""
    if _is_in_flow_run():
        _create_dataset(dataset, n_new_rows)


def publish_fit(artifact: str, model: str, dataset: BinaryDataset) -> None:
    """Publish a fit of the current flow run, linked with its data, if there is such a run.

    Of two fits of the same data that end at the same moment, the data may link to one only.
    """
    if not _is_in_flow_run():
        return
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    path = parse_path(artifact).resolve()
    data = _find_dataset(dataset) or _create_dataset(dataset)
    data_link = _link_artifact("Data", data, _get_name(dataset))
    title = f"{model} of {_get_name(dataset)}"
    facts = [("fit", str(path)), ("rows of the data", f"{dataset.n_rows:,}")]
    lines = [f"# {quote_text(title)}", "", *format_facts([*facts, ("digest", dataset.digest)])]
    lines += [data_link, "", _link_run(), ""]
    fit = _create_artifact(f"{_get_name(dataset)} {model} fit", lines, data_link)
    with get_client(sync_client=True) as client:
        text = f"{data.data}\n- {_link_artifact('Fit', fit, path.name)}. {_link_run()}"
        client.update_artifact(data.id, ArtifactUpdate(data=text))


def _is_in_flow_run() -> bool:
    if sys.modules.get("prefect") is None:
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def _create_dataset(dataset: BinaryDataset, n_new_rows: int | None = None) -> Artifact:
    rows = f"{dataset.n_rows:,} rows"
    rows += "" if n_new_rows is None else f", {n_new_rows:,} of them new"
    facts = [("path", str(dataset.path.resolve())), ("rows", rows), ("digest", dataset.digest)]
    lines = [f"# {quote_text(_get_name(dataset))}", "", *format_facts(facts)]
    lines += [_link_run(), "", "## Fits", ""]
    return _create_artifact(_get_dataset_key(dataset), lines, rows)


def _find_dataset(dataset: BinaryDataset) -> Artifact | None:
    """Find the latest artifact of a dataset with the same path and digest."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
    from prefect.client.schemas.sorting import ArtifactSort

    key = ArtifactFilterKey(any_=[make_slug(_get_dataset_key(dataset))])
    with get_client(sync_client=True) as client:
        versions = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=key),
            sort=ArtifactSort.CREATED_DESC,
            limit=_MAX_VERSIONS,
        )
    own = (quote_text(dataset.digest), quote_text(str(dataset.path.resolve())))
    return next((one for one in versions if all(text in str(one.data) for text in own)), None)


def _create_artifact(name: str, lines: list[str], description: str) -> Artifact:
    from prefect.artifacts import MarkdownArtifact

    create: Any = MarkdownArtifact(
        key=make_slug(name), markdown="\n".join(lines), description=description
    ).create
    created: Artifact = create()
    return created


def _get_name(dataset: BinaryDataset) -> str:
    return dataset.path.name.removesuffix(".zarr")


def _get_dataset_key(dataset: BinaryDataset) -> str:
    return f"{_get_name(dataset)} dataset"


def _link_artifact(word: str, artifact: Artifact, name: str) -> str:
    return f"[{word}](/artifacts/artifact/{artifact.id}): {quote_text(name)}"


def _link_run() -> str:
    """Link to the page of the current run on the server that shows the link.

    Its address may differ from the one that this process uses. Links contain no names, because
    Prefect would not show them as they are.
    """
    from prefect.runtime import flow_run

    return f"[Run](/runs/flow-run/{flow_run.id}): {quote_text(str(flow_run.name))}"
