"""`latentbits compare`: one table of several fits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.compare import make_comparison_table
from tests.support.data import write_arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two kinds of rows, and another one."""
    folder = tmp_path_factory.mktemp("compare")
    rng = np.random.default_rng(5)
    P = np.where(rng.random((300, 1)) < 0.4, 0.8, 0.3)
    X = (rng.random((300, 6)) < P).astype(np.uint8)
    columns = {"site": np.where(np.arange(300) % 2, "a", "b")}
    write_arrays(folder / "d.zarr", X, columns=columns)
    write_arrays(folder / "other.zarr", X[:200], columns={"site": columns["site"][:200]})
    return folder


@pytest.fixture
def fit(cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)

    def run(name: str, *words: str, dataset: str = "d.zarr") -> str:
        if not Path(name).exists():
            line = ("fit", "--dataset", dataset, "--output", name, "--no-report", *words)
            done = cli(*line)
            assert done.code == 0, done.err
        return name

    return run


CLASSES = ("--model", "bernoulli-mixture", "--set", "smoothing=1e-6", "--components")


def test_the_table_has_tests_and_reasons(cli: Any, fit: Any) -> None:
    two = fit("two", *CLASSES, "2")
    site = fit("site", *CLASSES, "2", "--group", "site")
    three = fit("three", *CLASSES, "3")
    done = cli("compare", three, site, two, "--output", "table.csv")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["fit", "model", "rows"]
    assert "bernoulli-mixture, 2 components, groups by site" in lines[2]
    assert lines[2].split()[-1] == "1"
    assert "1: two" in lines
    assert any(line.startswith("   no test against site: not nested: a fit with") for line in lines)
    assert sum(line.count("*") for line in lines[1:4]) == 3  # AIC, BIC and adjusted BIC
    with Path("table.csv").open() as file:
        table = [*csv.DictReader(file)]
    assert [line["fit"] for line in table] == ["two", "site", "three"]
    assert [line["n_parameters"] for line in table] == ["13", "14", "20"]
    assert table[1]["against"] == "two"
    found = cli("compare", two, site, three, "--json").json["fits"]
    assert float(table[1]["p"]) == pytest.approx(found[1]["p"])
    names = [line["fit"] for line in found]
    shown = make_comparison_table([{**line, "p": 1e-9} for line in found], names)
    (p,) = [column for column in shown.columns if column.header == "p"]
    assert [*p.cells] == ["< 0.0001"] * 3


def test_fits_to_other_rows_are_shown_with_the_reason(cli: Any, fit: Any) -> None:
    two = fit("two", *CLASSES, "2")
    other = fit("other", *CLASSES, "3", dataset="other.zarr")
    done = cli("compare", two, other)
    assert done.code == 0
    assert "no test against two: fitted to another dataset" in done.out
    assert "warning: AIC and BIC of 2 cannot be compared with those of 1" in done.out
    assert "*" not in done.out


def test_the_summary_of_a_fit_shows_statistics(cli: Any, fit: Any) -> None:
    line = ("fit", "--dataset", "d.zarr", "--output", "again", "--no-report", *CLASSES, "2")
    done = cli(*line)
    found = cli("compare", fit("two", *CLASSES, "2"), "again", "--json").json["fits"][0]
    text = f"{found['log_likelihood']:,.2f}".replace("-", "−")
    assert any(own.split() == ["log-likelihood", text] for own in done.out.splitlines())
    assert any(own.split() == ["parameters", "13"] for own in done.out.splitlines())
    assert "; relative entropy 0." in done.out
    exported = cli("export", "--artifact", "again", "--what", "fit", "--output", "fit.csv")
    assert exported.code == 0
    rows = dict(csv.reader(Path("fit.csv").read_text().splitlines()))
    assert float(rows["bic"]) == pytest.approx(found["bic"])
    assert rows["n_parameters"] == "13"
    assert {"adjusted_bic", "caic", "entropy_r2", "relative_entropy", "n_rows"} <= {*rows}


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (("two",), "A comparison needs two or more fits."),
        (("two", "two"), "A fit is named twice."),
        (("two", "absent"), "absent"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    cli: Any, fit: Any, runs: tuple[str, ...], reason: str
) -> None:
    fit("two", *CLASSES, "2")
    done = cli("compare", *runs)
    assert done.code == 2
    assert reason in done.err


def test_one_purpose_makes_one_table(cli: Any, fit: Any) -> None:
    two, site = fit("two", *CLASSES, "2"), fit("site", *CLASSES, "2", "--group", "site")
    line = ("evaluate", "--dataset", "d.zarr", "--artifact", site, "--artifact", two)
    ratio = cli(*line, "--likelihood-ratio", "--tables", "tables")
    assert ratio.code == 0, ratio.err
    assert len(ratio.out.splitlines()) == 2
    assert ratio.out.splitlines()[1].split()[:2] == ["two", "site"]
    assert [path.name for path in Path("tables").iterdir()] == ["likelihood-ratio.csv"]
    again = cli(*line, "--likelihood-ratio", "--tables", "tables")
    assert again.code == 2
    assert "--tables: tables already exists." in again.err
    dif = cli(*line, "--dif", "site")
    assert "odds ratio" in dif.out
    assert "nats per row" not in dif.out
    both = cli(*line, "--dif", "site", "--all", "--no-baselines", "--tables", "all")
    assert "odds ratio" in both.out
    assert "nats per row" in both.out
    names = {path.stem for path in Path("all").iterdir()}
    assert names == {"models", "dif", "calibration"}
    with Path("all/dif.csv").open() as file:
        items = [*csv.DictReader(file)]
    assert len(items) == 6
    assert {"feature", "odds_ratio", "chi2", "p", "p_adjusted", "grade"} <= {*items[0]}
