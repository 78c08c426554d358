"""Nominal questions from files to classes: they are ordinal ones without an order."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest

import latentbits as lb
from flows.cli.summary import print_summary
from pipeline.errors import FitError
from storage.dataset.dataset import open_dataset
from storage.format.manifests import write_manifest

MEDIA = ["tv", "radio, local", "None", "web"]
P = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]])
OPTION = 'media*:tv,"radio, local",None,web,fax'
FIT = ("--model", "bernoulli-mixture", "--components", 2, "--set", "starts=2")


def draw_answers(n_rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    classes = (rng.random(n_rows) < 0.4).astype(int)
    answers = [[MEDIA[rng.choice(4, p=P[k])] for _ in range(4)] for k in classes]
    frame = pd.DataFrame(answers, columns=[f"media{i}" for i in range(4)])
    frame = frame.mask(rng.random(frame.shape) < 0.05)
    frame["vote"] = (rng.random(n_rows) < np.array([0.3, 0.8])[classes]).astype(int)
    return frame


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nominal")


@pytest.fixture
def folder(cli: Any, shared_folder: Path) -> Path:
    """A table, a dataset of it with a category that nobody chose, and a fit of two classes."""
    path, dataset, run = (shared_folder / name for name in ("a.csv", "d.zarr", "run"))
    if not run.exists():
        draw_answers().to_csv(path, index=False)
        done = cli("ingest", path, "--dataset", dataset, "--nominal", OPTION)
        assert 'nominal: tv, "radio, local", None, web, fax' in done.out, done.err
        done = cli("fit", "--dataset", dataset, *FIT, "--output", run)
        assert done.code == 0, done.err
    return shared_folder


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tables_name_the_categories(cli: Any, folder: Path) -> None:
    for what in ("levels", "contrasts", "items"):
        words = ("--artifact", folder / "run", "--what", what, "--output", folder / f"{what}.csv")
        assert cli("export", *words).code == 0
    levels = read(folder / "levels.csv")
    assert [line["level"] for line in levels[:5]] == [*MEDIA, "fax"]
    assert len(levels) == 4 * 5 + 1
    for k, shares in enumerate(P, 1):
        found = [float(line[f"class_{k}"]) for line in levels[:5]]
        np.testing.assert_allclose(found, [*shares, 0], atol=0.1)
        assert sum(found) == pytest.approx(1)
    assert len(read(folder / "contrasts.csv")) == len(levels)
    items = read(folder / "items.csv")  # cumulative probabilities of vote only
    assert [bool(line["probabilities_1_1"]) for line in items] == [False] * 4 + [True]
    path = folder / "report.html"
    assert cli("report", "--artifact", folder / "run", "--output", path).code == 0
    page = path.read_text()
    assert "media0 = radio, local" in page
    assert "media0&gt;=" not in page
    assert "no row has some levels of these features" in page


def test_codes_values_and_rows_have_categories(cli: Any, folder: Path) -> None:
    artifact = ("--artifact", folder / "run")
    words = (*artifact, "--dataset", folder / "d.zarr")
    assert cli("transform", *words, "--impute", "levels", "--output", folder / "z.zarr").code == 0
    assert cli("ingest", folder / "z.zarr", "--dataset", folder / "back.zarr").code == 0
    back = open_dataset(folder / "back.zarr")
    assert len(back.nominal_features) == 4
    again = lb.from_dataframe(back.to_xarray())
    assert (again.feature_levels, again.nominal_features) == (
        back.feature_levels,
        back.nominal_features,
    )
    done = cli("transform", *words, "--impute", "expected-levels", "--output", folder / "y.zarr")
    assert "is nominal, so it has no expected level. Choose --impute probabilities" in done.err
    done = cli("evaluate", *words, "--no-baselines", "--details")
    assert done.code == 0, done.err
    assert "levels: media0: wrong" in done.out
    assert done.out.count("rank correlation 0.") == 1  # of vote
    assert "at least" not in done.out
    assert cli("sample", *artifact, "--rows", 100, "--output", folder / "s.zarr").code == 0
    assert open_dataset(folder / "s.zarr").nominal_features == {f"media{i}" for i in range(4)}


def test_further_rows_have_the_same_categories(cli: Any, folder: Path) -> None:
    frame = draw_answers()
    frame.loc[3, "media1"] = "phone"
    frame.to_csv(folder / "new.csv", index=False)
    path = folder / "d.zarr"
    done = cli("ingest", folder / "new.csv", "--dataset", path, "--append")
    assert (
        "column 'media1': the value 'phone' is not 'tv', 'radio, local', 'none', 'web'" in done.err
    )
    words = ("--append", "--nominal", "media1:tv,web,phone")
    done = cli("ingest", folder / "a.csv", "--dataset", path, *words)
    assert "'media1' has the categories tv, \"radio, local\", None, web, fax in" in done.err
    assert "not the categories tv, web, phone" in done.err
    done = cli("ingest", folder / "a.csv", "--dataset", folder / "e.zarr", "--nominal", OPTION)
    assert cli("ingest", folder / "a.csv", "--dataset", folder / "e.zarr", "--append").code == 0
    dataset = open_dataset(folder / "e.zarr")
    assert (dataset.n_rows, len(dataset.nominal_features)) == (400, 4)
    assert dataset.manifest["format_version"] == 4  # which older versions do not read
    write_manifest(dataset.path, {**dataset.manifest, "nominal_features": ["vote"]})
    done = cli("fit", "--dataset", dataset.path, *FIT)
    assert "nominal_features is ['vote'], but should be features with more than two" in done.err


def test_the_order_of_categories_means_nothing(folder: Path) -> None:
    frame = pd.read_csv(folder / "a.csv", keep_default_na=False, na_values=[""])
    mixture: dict[str, Any] = {
        "components": 2,
        "smoothing": 1e-6,
        "tol": 1e-12,
        "starts": 2,
        "errors": "none",
        "executor": "serial",
    }
    names = [f"media{i}" for i in range(4)]
    ordinal = lb.from_dataframe(frame, levels=dict.fromkeys(names, MEDIA))
    nominal = lb.from_dataframe(frame, nominal=names)  # None, radio, tv, web
    categorical = frame.astype(dict.fromkeys(names, "category"))
    assert nominal.describe() == lb.from_dataframe(categorical).describe()
    fits = [lb.fit(data, "bernoulli-mixture", **mixture) for data in (ordinal, categorical)]
    one, other = (fit.statistics["log_likelihood"] for fit in fits)
    assert one == pytest.approx(other, abs=1e-6)
    order = [MEDIA.index(category) for category in nominal.feature_levels["media0"]]
    first, second = (fit.params.level_probabilities[:, :4] for fit in fits)
    np.testing.assert_allclose(first[:, order], second, atol=1e-4)
    codes = [lb.transform(fit, frame)["mean"] for fit in fits]
    np.testing.assert_allclose(*codes, atol=1e-4)
    row = {name: None if pd.isna(value) else value for name, value in frame.iloc[0].items()}
    assert lb.Scorer(fits[1])(row)["mean_1"] == pytest.approx(codes[1][0, 0], abs=1e-6)
    estimator = lb.BernoulliMixture(n_components=1, errors="none").fit(categorical)
    assert estimator.nominal_ == {*names}
    trees = [
        lb.fit(data, "tree-mixture", components=1, executor="serial") for data in (ordinal, nominal)
    ]
    likelihoods = [fit.statistics["log_likelihood"] for fit in trees]
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-9)
    assert np.isnan(trees[1].get_edges()["correlation"]).all()


def test_labels_of_spss_without_an_order_are_categories(cli: Any, tmp_path: Path) -> None:
    columns = {"q": [1.0, 3.0, 2.0, 9.0], "b": [0.0, 1.0, 1.0, 0.0], "sex": [1.0, 2.0, 1.0, 2.0]}
    labels = {
        "q": {1.0: "tv", 2.0: "radio", 3.0: "web", 9.0: "refused"},
        "b": {0.0: "no", 1.0: "yes", 9.0: "refused"},
        "sex": {1.0: "female", 2.0: "male"},
    }
    pyreadstat.write_sav(
        pd.DataFrame(columns),
        tmp_path / "a.sav",
        variable_value_labels=labels,
        variable_measure=dict.fromkeys(columns, "nominal"),
        missing_ranges={"q": [9]},
    )
    done = cli("ingest", tmp_path / "a.sav", "--dataset", tmp_path / "d.zarr")
    assert "nominal: tv, radio, web" in done.out, done.err
    assert "female = 0, male = 1" in done.out
    dataset = open_dataset(tmp_path / "d.zarr")
    assert dataset.nominal_features == {"q"}
    (X, observed) = (dataset.to_dask(name).compute() for name in ("values", "observed"))
    np.testing.assert_array_equal(X, [[0, 0, 0], [2, 1, 1], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(observed[:, 0], [1, 1, 1, 0])


def test_models_and_options_that_need_an_order_refuse(folder: Path) -> None:
    path = str(folder / "d.zarr")
    message = (
        r"^clipped-pca takes .*, but 'media0' and 3 more are nominal, without an order\. .*drop"
    )
    with pytest.raises(FitError, match=message + r".*, or use one of bernoulli-mixture"):
        lb.fit(path, "clipped-pca")
    for option in ({"cut": ["media0>=web"]}, {"reverse": ["media0"]}):
        with pytest.raises(FitError, match="feature 'media0' is nominal"):
            lb.fit(path, "bernoulli-mixture", **option)  # type: ignore[arg-type]


def test_errors_propose_categories_of_their_column(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{['tv', 'radio', 'web'][i % 3]},{i % 2},{i}" for i in range(18)]
    path.write_text("\n".join(["media,vote,n", *lines]))
    words = ("ingest", path, "--dataset", tmp_path / "d.zarr", "--drop", "n")
    done = cli(*words)
    assert "if they are categories, --nominal media:radio,tv,web;" in done.message
    assert cli(*words, "--nominal", "media:radio,tv,web").code == 0
    done = cli(
        "ingest", path, "--dataset", tmp_path / "e.zarr", "--nominal", "n", "--drop", "media"
    )
    assert "--nominal n: feature 'n' has 18 distinct values" in done.message


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary([("media=a:b: share", "[red] [/b]")], {})
    assert capsys.readouterr().out.split() == ["media=a:b:", "share", "[red]", "[/b]"]


def test_estimators_refuse_expected_levels_of_categories() -> None:
    frame = pd.DataFrame({"media": pd.Categorical(["tv", "web", "dvd"] * 4), "vote": [0, 1] * 6})
    with pytest.warns(UserWarning, match="not identified|no better"):
        estimator = lb.BernoulliMixture(n_components=2).fit(frame)
    with pytest.raises(FitError, match=r"'media' is nominal, .* reconstruct=\"levels\"\)"):
        estimator.inverse_transform([[0.5, 0.5]])
    with pytest.raises(FitError, match=r"'media' is nominal, .* impute=\"levels\"\)"):
        estimator.impute(frame)
    assert len(lb.transform(estimator.fitted_, frame, impute="levels")["imputed_levels"]) == 12


def test_items_of_categories_have_curves_and_names(cli: Any, folder: Path) -> None:
    fit = ("--model", "latent-trait", "--components", 1, "--set", "items=nominal")
    done = cli("fit", "--dataset", folder / "d.zarr", *fit, "--output", folder / "trait")
    assert done.code == 0, done.err
    artifact = ("--artifact", folder / "trait")
    assert cli("export", *artifact, "--what", "levels", "--output", folder / "l.csv").code == 0
    levels = pd.read_csv(folder / "l.csv", keep_default_na=False).set_index(["feature", "level"])
    assert levels.loc[("media0", "tv")].tolist() == [0, 0, 0, 0]
    assert levels.loc[("media0", "None"), "weights_error"] > 0
    assert ("vote", "1") in levels.index
    assert ("vote", "0") not in levels.index
    assert cli("export", *artifact, "--what", "items", "--output", folder / "i.csv").code == 0
    items = pd.read_csv(folder / "i.csv").set_index("feature")
    needs_order = ["weights_1", "weights_error_1", "offsets", "difficulty", "infit", "outfit"]
    assert items.loc["media0", needs_order].isna().all()
    assert items.loc["vote", needs_order].notna().all()
    assert items.loc["media0", "level_weights_1_1"] == pytest.approx(
        levels.loc[("media0", "radio, local"), "weights"]
    )
    words = ("--dataset", folder / "d.zarr", "--output", folder / "known.csv")
    assert cli("transform", "--items", folder / "i.csv", *words).code == 0
    words = ("--dataset", folder / "d.zarr", "--output", folder / "own.csv")
    assert cli("transform", *artifact, *words, "--person-fit").code == 0
    columns = pd.read_csv(folder / "own.csv").columns
    assert "l_z_star" in columns
    assert "infit" not in columns
    known, own = (pd.read_csv(folder / f"{name}.csv")["mean_1"] for name in ("known", "own"))
    np.testing.assert_allclose(known, own, atol=1e-5)
    other = ("--dataset", folder / "f.zarr", "--nominal", OPTION.replace("tv,", "") + ",tv")
    assert cli("ingest", folder / "a.csv", *other).code == 0
    words = ("--dataset", folder / "f.zarr", "--output", folder / "other.csv")
    for known_items in (folder / "i.csv", folder / "trait"):
        done = cli("transform", "--items", known_items, *words)
        assert 'media0 has the categories tv, "radio, local", None, web, fax, but in' in done.err
    path = folder / "trait.html"
    assert cli("report", *artifact, "--output", path).code == 0
    page = path.read_text()
    for text in ("Levels of media0", "media0 = radio, local"):
        assert text in page
    for text in ("media0&gt;=", "radio, local|None", "is led by", "points the other way"):
        assert text not in page
