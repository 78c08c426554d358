"""Groups of rows in Python: those of the command line, for datasets on disk and in memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from pipeline.data.datasets import Dataset
from pipeline.params import get_named_arrays
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth

N_ROWS = 600
MODEL: dict[str, Any] = {"model": "linear-ivae", "components": 2, "max_iter": 3}


def draw_rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of four sites, mixed, and the site of each."""
    truth = draw_nonstationary_truth(6, 2, 4, seed=3)
    (batch,) = draw_nonstationary_rows(truth, N_ROWS // 4, seed=3)
    order = np.random.default_rng(0).permutation(N_ROWS)
    return batch.X[order], np.char.add("site ", batch.columns["segment"][order]).astype(object)


X, SITES = draw_rows()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    keep = {"site": SITES, "lone": np.arange(N_ROWS) == 3}
    path = tmp_path_factory.mktemp("groups") / "d.zarr"
    return {
        "memory": lb.from_numpy(X, keep=keep),
        "stored": lb.open_dataset(Path(lb.from_numpy(X, keep=keep, path=path).describe()["path"])),
    }


@pytest.fixture(scope="module")
def by_site() -> lb.Fitted:
    return lb.fit(lb.from_numpy(X, segment=SITES), **MODEL)


@pytest.fixture(scope="module")
def fitted(datasets: dict[str, Dataset]) -> lb.Fitted:
    return lb.fit(datasets["memory"], group="site", **MODEL)


@pytest.mark.parametrize("where", ["memory", "stored"])
def test_groups_are_segments(datasets: dict[str, Dataset], by_site: lb.Fitted, where: str) -> None:
    fitted = lb.fit(datasets[where], group="site", **MODEL)
    assert fitted.manifest["group"] == "site"
    assert "group" not in by_site.manifest
    assert fitted.segment_names == by_site.segment_names == tuple(dict.fromkeys(SITES))
    found = get_named_arrays(fitted.params)
    for name, (_, expected) in get_named_arrays(by_site.params).items():
        np.testing.assert_array_equal(found[name][1], expected, err_msg=name)


def test_what_follows_a_fit_reads_the_column(
    datasets: dict[str, Dataset], fitted: lb.Fitted, by_site: lb.Fitted, tmp_path: Path
) -> None:
    segmented = lb.from_numpy(X, segment=SITES)
    fitted.save(tmp_path / "fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dataset in datasets.values():
            for own in (fitted, lb.load(tmp_path / "fit")):
                codes, expected = lb.transform(own, dataset), lb.transform(by_site, segmented)
                np.testing.assert_array_equal(codes["mean"], expected["mean"])
            scores, other = lb.evaluate(fitted, dataset), lb.evaluate(by_site, segmented)
            assert scores["wrong_bits"] == other["wrong_bits"]


def test_rows_of_other_groups_take_the_mean(fitted: lb.Fitted) -> None:
    rows = lb.from_numpy(X[:10], keep={"site": np.array(["moon"] * 10, object)})
    with pytest.warns(UserWarning, match="not fitted.*'moon'") as caught:
        codes = lb.transform(fitted, rows)
    assert caught[0].filename == __file__
    scorer = lb.Scorer(fitted)
    row = dict(zip(fitted.feature_names, X[0].tolist(), strict=True))
    assert scorer(row)["mean_1"] == codes["mean"][0, 0]


def test_single_rows_name_their_group(fitted: lb.Fitted, datasets: dict[str, Dataset]) -> None:
    scorer, codes = lb.Scorer(fitted), lb.transform(fitted, datasets["memory"])["mean"]
    row = dict(zip(fitted.feature_names, X[7].tolist(), strict=True))
    np.testing.assert_allclose(scorer(row, SITES[7])["mean_1"], codes[7, 0], rtol=1e-12)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[7:8], columns=fitted.feature_names)
    np.testing.assert_allclose(scorer(frame, SITES[7])["mean"], codes[7:8], rtol=1e-12)
    with pytest.raises(ValueError, match="no segment 'moon'"):
        scorer(row, "moon")


@pytest.mark.matrix
def test_reports_of_rows_read_the_column(
    fitted: lb.Fitted, datasets: dict[str, Dataset], tmp_path: Path
) -> None:
    for dataset in datasets.values():
        page = fitted.report(dataset)
        assert "4 by site" in page.html
        assert all(site in page.html for site in dict.fromkeys(SITES))
    with pytest.raises(ValueError, match="has no per-row column 'site'"):
        fitted.report(X)


@pytest.mark.parametrize("use", [lb.transform, lb.evaluate])
def test_rows_without_the_column_are_refused(fitted: lb.Fitted, use: Any) -> None:
    with pytest.raises(ValueError, match="no per-row column 'site', whose values are the groups"):
        use(fitted, X)


REFUSALS = {
    "other": "here is no per-row column 'other'",
    "lone": "group: The group '1' has 1 row, but at least 2 are needed.",
    5: "group must be the name of a per-row column, but is a int",
}


@pytest.mark.parametrize("group", REFUSALS)
@pytest.mark.parametrize("where", ["memory", "stored"])
def test_groups_that_cannot_be_fitted_are_refused(
    datasets: dict[str, Dataset], where: str, group: Any
) -> None:
    with pytest.raises(ValueError, match=REFUSALS[group]):
        lb.fit(datasets[where], group=group, **MODEL)


def test_models_without_parameters_by_group_are_refused(datasets: dict[str, Dataset]) -> None:
    with pytest.raises(ValueError, match=r"clipped-pca has no parameters by group\. These models"):
        lb.fit(datasets["memory"], "clipped-pca", group="site")
