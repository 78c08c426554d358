"""Paths in object stores."""

from __future__ import annotations

import json

import pytest

from storage.errors import DataError
from storage.stores import locations
from storage.stores.locations import parse_path
from storage.stores.object_path import ObjectPath


@pytest.fixture
def folder(bucket: str) -> ObjectPath:
    return parse_path(f"{bucket}/data/d.zarr")


def test_what_is_inside_a_dataset_is_refused(folder):
    group = {"attributes": {"format": locations.DATASET_FORMAT}}
    (folder / "zarr.json").write_bytes(json.dumps(group).encode())
    for inside in (folder / "codes.zarr", folder / "a" / "b" / "t.csv"):
        with pytest.raises(DataError, match=rf"{inside} is inside the dataset {folder}\."):
            locations.check_outside_datasets(inside)
    locations.check_outside_datasets(folder)
    locations.check_outside_datasets(folder.with_name("e.zarr"))
