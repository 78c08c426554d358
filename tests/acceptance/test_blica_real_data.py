"""BLICA finds what is known of real data; `.docs/models/blica.md` describes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.binary_ica.segment_correlations import SegmentStatus
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from storage.dataset.dataset import BinaryDataset
from storage.sources import open_source
from tests.support.data import find_shared_data, make_test_row_source, write_arrays

CHANNELS = "AF3 F7 F3 FC5 T7 P7 O1 O2 P8 T8 FC6 F4 F8 AF4"


def ingested(folder: Path, name: str, names: Sequence[str] | None = None) -> BinaryDataset:
    """Write a shared data set with its segments; column `split` deals its rows to two halves."""
    source = open_source(str(find_shared_data(f"{name}.npz")))
    (batch,) = source.iter_batches()
    half = np.where(np.arange(len(batch.X)) % 2, "odd", "even")
    return write_arrays(
        folder / f"{name}.zarr",
        batch.X,
        batch.observed,
        segments=batch.columns[source.default_segment],
        columns={"split": half},
        names=names or source.feature_names,
    )


def refit(dataset: BinaryDataset, n_components: int | None, split: str | None = None) -> FitState:
    return fit_model(
        BLICA(n_components=n_components), make_test_row_source(dataset, split), SerialExecutor()
    )


def similarity_of_halves(dataset: BinaryDataset, n_components: int) -> float:
    halves = [refit(dataset, n_components, half).params.mixing for half in ("even", "odd")]
    similarity = mean_cosine_similarity(*halves)
    print(f"{dataset.path.stem}: mean cosine similarity of halves {similarity:.4f}")
    return similarity


def told(dataset: BinaryDataset, fitted: FitState) -> list[str]:
    names = (dataset.feature_names, dataset.segment_names)
    return [warning.render(*names) for warning in fitted.warnings]


class Component(NamedTuple):
    """A column of the mixing by the features' names, and its variance in each segment."""

    place: int
    loadings: dict[str, float]
    variances: np.ndarray

    def of(self, group: str) -> np.ndarray:
        return np.array([self.loadings[name] for name in group.split()])

    def least(self, number: int) -> set[str]:
        """Names of so many features with the least loadings."""
        return set(sorted(self.loadings, key=self.loadings.__getitem__)[:number])


def component(dataset: BinaryDataset, fitted: FitState, these: str, those: str) -> Component:
    """Find the component that tells two groups apart, turned so that `these` lie above."""
    mixing, variances = fitted.params.mixing, fitted.params.source_variances

    def mean(group: str) -> np.ndarray:
        return mixing[[dataset.feature_names.index(name) for name in group.split()]].mean(axis=0)

    differences = mean(these) - mean(those)
    place = int(np.abs(differences).argmax())
    column = mixing[:, place] * np.sign(differences[place])
    loadings = dict(zip(dataset.feature_names, column.tolist(), strict=True))
    return Component(place, loadings, variances[:, place])


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    return ingested(tmp_path_factory.mktemp("court"), "rehnquist9")


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    return ingested(tmp_path_factory.mktemp("assembly"), "unvotes_core")


@pytest.fixture(scope="module")
def brain(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    return ingested(tmp_path_factory.mktemp("brain"), "eeg_eye14", CHANNELS.split())


# The Supreme Court

LIBERAL, MIDDLE, CONSERVATIVE = (
    "Stevens Ginsburg Souter Breyer", "O.Connor Kennedy", "Rehnquist Scalia Thomas"
)  # fmt: skip


@pytest.fixture(scope="module")
def justices(court: BinaryDataset) -> FitState:
    return refit(court, n_components=2)


@pytest.mark.matrix
def test_the_court_has_two_components(court):
    fitted = refit(court, n_components=None)
    assert fitted.diagnostics["n_components"] == 2
    assert (fitted.params.segment_status == SegmentStatus.USED).all()
    empty_cells, rotations = told(court, fitted)
    assert empty_cells.startswith("pairs with an empty cell")
    assert "any rotation of these sources fits as well" in rotations  # of 44 rows per term


def test_the_court_is_divided_from_liberal_to_conservative(court, justices):
    axis = component(court, justices, LIBERAL, CONSERVATIVE)
    assert axis.of(CONSERVATIVE).max() < axis.of(MIDDLE).min()
    assert axis.of(MIDDLE).max() < 0.1 < axis.of(LIBERAL).min()
    assert axis.least(2) == {"Scalia", "Thomas"}
    assert axis.least(3) == {"Scalia", "Thomas", "Rehnquist"}


def test_what_the_court_agrees_on_leaves_stevens_out(court, justices):
    agreed = component(court, justices, "Ginsburg Souter Breyer", "Stevens")
    assert agreed.least(1) == {"Stevens"}
    others = [value for name, value in agreed.loadings.items() if name != "Stevens"]
    assert min(others) > 0.1
    assert abs(agreed.loadings["Stevens"]) < 0.1


def test_two_components_explain_the_courts_margins(court, justices):
    """Margins are not fitted: with one component the means miss them by several standard errors."""
    assert np.median(refit(court, 1).params.mean_misfit) > 2
    assert np.median(justices.params.mean_misfit) < 1.3


@pytest.mark.matrix
def test_halves_of_the_court_agree(court):
    """Some 20 rows a segment are left, as few as are taken."""
    assert similarity_of_halves(court, n_components=2) > 0.75


# The General Assembly

WEST = "US GB FR BE NL LU CA AU NZ DK NO IS SE"
EAST = "RU BY UA PL"
LATIN = "AR BO BR CL CO EC MX PA PE UY VE"
NON_ALIGNED = "IN EG ID IR SA PK CU"


@pytest.fixture(scope="module")
def blocs(assembly: BinaryDataset) -> FitState:
    return refit(assembly, n_components=3)


def after_the_cold_war(dataset: BinaryDataset) -> np.ndarray:
    return np.array(dataset.segment_names) >= "1991"


@pytest.mark.matrix
def test_the_assembly_is_fitted_whole(assembly, blocs):
    empty, ridge = sorted(told(assembly, blocs))
    assert empty.startswith("pairs with an empty cell")
    assert ridge.startswith("regularization 10000 is the weakest that auto tries")
    assert (blocs.params.segment_status == SegmentStatus.USED).all()
    assert blocs.diagnostics["stability_of_starts"] > 0.99


@pytest.mark.matrix
def test_east_against_west_ends_with_the_cold_war(assembly, blocs):
    axis = component(assembly, blocs, WEST, EAST)
    assert axis.of(EAST).max() < -0.15
    assert axis.of(WEST).min() > 0.1
    assert axis.least(5) == {*EAST.split(), "CU"}
    after = after_the_cold_war(assembly)
    assert axis.variances[~after].min() > 3 * axis.variances[after].max()


def test_north_against_south_grows_when_it_ends(assembly, blocs):
    axis = component(assembly, blocs, WEST, NON_ALIGNED)
    assert axis.of(WEST).min() > 0.15
    assert axis.of(NON_ALIGNED).max() < -0.05
    assert np.abs(axis.of(LATIN)).max() < 0.12
    assert axis.of("PL UA").min() > 0.1
    after = after_the_cold_war(assembly)
    assert axis.variances[after].min() > 1.5 * axis.variances[~after].max()


def test_the_united_states_do_not_share_what_all_others_agree_on(assembly, blocs):
    agreed = component(assembly, blocs, LATIN, "US")
    assert agreed.least(1) == {"US"}
    others = [value for name, value in agreed.loadings.items() if name != "US"]
    assert min(others) > 0.02
    assert abs(agreed.loadings["US"]) < 0.1


@pytest.mark.slow
def test_the_assembly_has_as_many_components_whatever_the_seed(assembly):
    rows = make_test_row_source(assembly)
    fits = [fit_model(BLICA(), rows, SerialExecutor(), seed) for seed in range(10)]
    fits.append(fit_model(BLICA(bootstrap=50), rows, SerialExecutor(), 0))
    chosen = [(f.diagnostics["n_components"], f.diagnostics["regularization"]) for f in fits]
    print(f"components and regularization: {chosen}")
    assert len(set(chosen)) == 1
    assert fits[0].diagnostics["stability_of_halves"] > 0.8


@pytest.mark.matrix
def test_halves_of_the_assembly_agree(assembly):
    assert similarity_of_halves(assembly, n_components=3) > 0.97


# Fourteen electrodes

FRONT, BACK = "AF3 F3 F4 AF4", "P7 O1 O2 P8"
RIGHT, LEFT = "T8 FC6 F8", "F7 FC5"


@pytest.mark.matrix
def test_components_are_where_electrodes_are_neighbours(brain):
    fitted = refit(brain, n_components=4)
    front = component(brain, fitted, FRONT, BACK)
    right = component(brain, fitted, RIGHT, LEFT)
    everywhere = int(fitted.params.mixing.min(axis=0).argmax())
    assert len({front.place, right.place, everywhere}) == 3
    assert front.of(FRONT).min() > 0.3
    assert front.of(BACK).max() < -0.05
    assert right.of(RIGHT).min() > 0.3
    assert right.of(LEFT).max() < -0.05
    assert fitted.params.mixing[:, everywhere].min() > 0.15


@pytest.mark.matrix
def test_constant_electrodes_and_short_segments_are_named(brain):
    whole = refit(brain, n_components=1)
    warning = next(w for w in told(brain, whole) if "out of segments where they never vary" in w)
    assert "'F7'" in warning
    assert all(repr(name) in warning for name in ("0", "7", "17", "19", "21", "23"))
    half = refit(brain, 1, "odd")
    short = next(w for w in told(brain, half) if "fewer than 20 rows" in w)
    assert "'7', '23'" in short
    left_out = half.params.segment_status != SegmentStatus.USED
    assert np.array(brain.segment_names)[left_out].tolist() == ["7", "23"]


@pytest.mark.slow
def test_halves_of_the_recording_agree(brain):
    """Neighbouring rows are 8 ms apart: these halves say nothing of another recording."""
    assert similarity_of_halves(brain, n_components=4) > 0.97
