"""Genotypes: `.bed` files of PLINK, with a `.bim` and a `.fam` file in the same folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import DataError
from storage.sources.arrays import make_number_batch
from storage.sources.base import Source, SourceBatch, check_installed, translate_read_errors
from storage.sources.value_codes import ReadOptions

# Every range of individuals is spread over the whole file, so few long ranges are faster.
_READ_CELLS = 1 << 27
_FAM_COLUMNS = ("fid", "iid", "father", "mother", "sex", "pheno")
_MISSING_COUNT = -127


@dataclass(frozen=True, kw_only=True)
class BedSource(Source):
    """Counts of the first allele, 0 to 2: individuals are rows and variants are features."""

    n_rows: int

    @property
    def files(self) -> tuple[str, ...]:
        """The three files."""
        return tuple(str(Path(self.path).with_suffix(s)) for s in (".bed", ".bim", ".fam"))

    def iter_batches(self) -> Iterator[SourceBatch]:
        """Read long ranges of individuals and yield them as short ones."""
        step = max(self.batch_rows, _READ_CELLS // self.n_features)
        with translate_read_errors(self.path), _open_bed_reader(self.path) as bed:
            columns = {name: _read_fam_column(bed, name) for name in self.column_names}
            for start in range(0, self.n_rows, step):
                counts = bed.read(np.s_[start : start + step, :], dtype="int8", order="C")
                for first, n_rows in self.iter_row_ranges(len(counts)):
                    values = counts[first : first + n_rows]
                    rows = slice(start + first, start + first + n_rows)
                    row_values = {name: column[rows] for name, column in columns.items()}
                    observed = (values != _MISSING_COUNT).view(np.uint8)
                    yield make_number_batch(self, values, start + first, row_values, observed)


def open_bed(path: str, options: ReadOptions) -> BedSource:
    """Open a `.bed` file; this reads the names in the other two files."""
    check_installed(path, "bed_reader", "genotypes")
    if options.threshold is None and not options.maps:
        raise DataError(
            f"{path}: choose which allele counts are 1: {{genotypes=dominant}} (one or two) or "
            "{genotypes=recessive} (two)."
        )
    with translate_read_errors(path), _open_bed_reader(path) as bed:
        return BedSource(
            path=path,
            options=options,
            feature_names=tuple(bed.sid.tolist()),
            n_rows=bed.iid_count,
            column_names=tuple(name for name in _FAM_COLUMNS if name in options.row_columns),
        )


def _open_bed_reader(path: str) -> Any:
    import bed_reader

    return bed_reader.open_bed(path)


def _read_fam_column(bed: Any, name: str) -> Any:
    """Return a column of the `.fam` file; missing entries are empty."""
    values = getattr(bed, name)
    if name == "sex":
        return np.array(["", "1", "2"])[values]
    return values.astype(str)
