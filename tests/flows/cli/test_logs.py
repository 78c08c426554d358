"""Messages as JSON objects."""

from __future__ import annotations

import json
import logging
from datetime import datetime

import pytest

from flows.cli.progress import JsonLineFormatter, configure_logging
from flows.cli.progress import log as logger


@pytest.fixture(autouse=True)
def _plain_afterwards():
    yield
    configure_logging()


def objects(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_fit_tells_each_stage_as_an_object(cli):
    result = cli("fit", "--dataset", "example:digits", "--log-json", "--no-report", "--json")
    assert result.code == 0
    assert result.json["model"] == "clipped-pca"
    told = objects(result.err)
    stages = {line["stage"]: line for line in told if "stage" in line}
    assert stages["pair counts"]["rows"] == 1797
    assert stages["pair counts"]["done"] == stages["pair counts"]["total"]
    for line in told:
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert line["level"] in ("info", "warning", "error")


def test_an_error_is_one_object_with_the_exit_code(cli):
    result = cli("fit", "--log-json", "--dataset", "nowhere.zarr")
    assert result.code == 2
    (line,) = objects(result.err)
    assert (line["level"], line["exit_code"]) == ("error", 2)
    assert line["message"].startswith("nowhere.zarr: there is no such dataset")


def test_without_the_option_messages_are_lines(cli):
    result = cli("fit", "--dataset", "nowhere.zarr")
    assert result.message.startswith("error: nowhere.zarr")


def test_an_unknown_option_is_named_as_before(cli):
    result = cli("fit", "--dataset", "nowhere.zarr", "--lgo-json")
    assert result.code == 2
    assert result.message.startswith("error: Unknown option: --lgo-json.")


def test_a_traceback_stays_on_its_line(caplog):
    with caplog.at_level(logging.ERROR):
        try:
            raise KeyError("x")
        except KeyError:
            logger.propagate = True
            logger.exception("failure")
    text = JsonLineFormatter().format(caplog.records[-1])
    assert "\n" not in text
    assert "KeyError" in json.loads(text)["traceback"]
