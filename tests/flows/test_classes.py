"""Classes in the summary of a fit, the report and exported tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.data import write_arrays

P = np.array([[0.85] * 6, [0.15] * 6])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(2)
    classes = rng.choice(2, 200, p=[0.65, 0.35])
    X = (rng.random((200, 6)) < P[classes]).astype(np.uint8)
    columns = {"age": 40.0 + 10 * classes + rng.normal(0, 5, 200)}
    return write_arrays(tmp_path_factory.mktemp("classes") / "d.zarr", X, columns=columns).path


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_numbers_sizes_and_differences_of_classes_are_shown(cli: Any, dataset: Path) -> None:
    runs, folder = dataset.parent / "runs", dataset.parent
    settings = ("--components", "auto", "--set", "max_components=3", "--set", "blrt=2")
    words = ("--dataset", dataset, "--model", "bernoulli-mixture", *settings, "--output", runs)
    done = cli("fit", *words)
    assert done.code == 0, done.err
    assert "classes  log-likelihood  parameters" in done.out
    assert "2*" in done.out
    page = folder / "report.html"
    assert cli("report", "--artifact", runs, "--output", page).code == 0
    text = page.read_text()
    assert "Number of classes" in text
    assert "Of 1 to 3 classes, BIC is lowest at 2" in text
    assert "does not reject 1 in favour" not in text
    for what, *more in (("class-numbers",), ("classes",), ("contrasts", "--reference", 2)):
        path = folder / f"{what}.csv"
        done = cli("export", "--artifact", runs, "--what", what, *more, "--output", path)
        assert done.code == 0, done.err
    assert [line["is_chosen"] for line in read(folder / "class-numbers.csv")][1] == "true"
    first, second = read(folder / "classes.csv")
    assert 0.55 < float(first["low"]) < float(first["size"]) < float(first["high"]) < 0.75
    assert float(first["rows"]) + float(second["rows"]) == pytest.approx(200)
    contrasts = read(folder / "contrasts.csv")
    assert len(contrasts) == 6
    for line in contrasts:
        assert (line["class"], line["other_class"], line["level"]) == ("1", "2", "1")
        assert float(line["difference"]) / float(line["error"]) == pytest.approx(float(line["z"]))
    evaluated = ("--dataset", dataset, "--artifact", runs, "--no-baselines", "--covariates", "age")
    done = cli("evaluate", *evaluated, "--reference", 2, "--tables", folder / "tables")
    assert "log-odds of classes against class 2" in done.out
    assert "Wald test of age: χ² = " in done.out
    intercept, age = read(folder / "tables" / "covariates.csv")
    assert (intercept["covariate"], age["covariate"], age["class"]) == ("(intercept)", "age", "1")
    assert float(age["coefficient"]) < -2 * float(age["error"])


REFUSALS = {
    "class": (("contrasts", "--reference", 3), "--reference is 3, but the fit has 2 classes"),
    "items": (("items", "--reference", 1), "--reference needs --what contrasts"),
    "numbers": (("class-numbers",), "compared no numbers of classes"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_tables_that_do_not_exist_are_refused(cli: Any, dataset: Path, case: str) -> None:
    runs = dataset.parent / "plain"
    words = ("--dataset", dataset, "--model", "bernoulli-mixture", "--components", 2)
    if not runs.exists():
        assert cli("fit", *words, "--no-report", "--output", runs).code == 0
    (what, *more), message = REFUSALS[case]
    path = dataset.parent / "x.csv"
    done = cli("export", "--artifact", runs, "--what", what, *more, "--output", path)
    assert done.code == 2
    assert message in done.err
    assert not path.exists()
