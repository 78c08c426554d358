"""How errors and warnings spell parameters and name features."""

from __future__ import annotations

import pickle

import pytest

from flows.cli.errors import format_error, spell_option
from pipeline.errors import FitError, FitWarning, keep_placeholder, spell_parameters
from pipeline.models.registry import find_models
from pipeline.models.settings import list_hyperparameters
from storage.errors import DamagedChunkError, DataError

NAMES = ("a", "{components}", "c")

find_models()  # whose settings are spelled


@pytest.mark.parametrize(
    ("text", "python", "option"),
    [
        ("consider {repair=nearest}", 'consider repair="nearest"', "consider --set repair=nearest"),
        ("{prior_precision=0.5}.", "prior_precision=0.5.", "--set prior_precision=0.5."),
        ("{equal_slopes=yes}", "equal_slopes=True", "--set equal_slopes=yes"),
        ("{layers=10,20}", "layers=(10, 20)", "--layers 10,20"),
        ("{components=auto}", 'components="auto"', "--components auto"),
        ("Give {components}, or {starts}", "Give components, or starts", None),
        (
            "Give {components} or ({seed})",
            "Give components or (seed)",
            "Give --components or (--seed)",
        ),
        (
            "Give it by {segment}",
            "Give it by segment",
            "Give it by ingest --segment-by COLUMN or --segments N",
        ),
        ("{segment=COLUMN}", 'segment="COLUMN"', "--segment-by COLUMN"),
        ("{missing=n a}", 'missing="n a"', "--missing 'n a'"),
        *((same, same, same) for same in ("in/{year}.csv", "got '{x}'", "{a, b}", "{}", "{ x }")),
    ],
)
def test_a_parameter_is_spelled_as_the_reader_writes_it(
    text: str, python: str, option: str | None
) -> None:
    for error in (FitError(text), DataError(text)):
        if "10,20" not in text and "yes" not in text:  # settings of models, which storage has not
            assert str(error) == python
        assert option is None or format_error(error) == option
    assert spell_parameters(text) == python
    assert spell_parameters(text, keep_placeholder) == text


@pytest.mark.parametrize("kind", [FitError, DataError])
def test_a_message_begins_with_a_parameter_it_does_not_mention(kind: type[FitError]) -> None:
    error = kind("At most 3.", parameter="components")
    assert (str(error), format_error(error)) == (
        "components: At most 3.",
        "--components: At most 3.",
    )
    error = kind("{components=4} is above 3.", parameter="components")
    assert format_error(error) == "--components 4 is above 3."


def test_names_take_the_place_of_indices_and_are_no_placeholders() -> None:
    warning = FitWarning("constant: {features}, in {segments}; see {repair}", (1, 2), (0,))
    assert warning.render() == "constant: 1, 2, in 0; see repair"
    named = warning.with_names(NAMES, ["s"])
    for text in (
        warning.render(NAMES, ["s"]),
        named.render(),
        named.with_names("xyz", "s").render(),
    ):
        assert text == "constant: '{components}', 'c', in 's'; see repair"
    assert spell_parameters(named.render(spell=keep_placeholder), spell_option) == (
        "constant: '{components}', 'c', in 's'; see --set repair"
    )
    assert (
        FitWarning("{features}", tuple(range(10))).render() == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    )


def test_callers_have_their_own_names_and_prefixes() -> None:
    error = FitError("below {components=3}: {features}", [0], parameter="seed")
    renamed = error.with_parameter_names({"components": "n_components", "seed": "random_state"})
    assert str(renamed) == "random_state: below n_components=3: 0"
    assert format_error(error.with_prefix("b")) == "b: --seed: below --components 3: 0"
    assert str(FitError("of {seed}", parameter="seed").with_prefix("b")) == "b: of seed"


@pytest.mark.parametrize(
    "error",
    [
        FitError("{features} {segments} {seed=1}", [1], [2], parameter="split").with_names("abc"),
        DamagedChunkError("chunk 3: use {skip_corrupt}", parameter="dataset"),
    ],
)
def test_errors_come_back_from_other_processes_whole(error: FitError | DataError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert format_error(again) == format_error(error)


def test_options_of_commands_are_no_settings_unless_fits_take_them() -> None:
    import importlib

    names = set()
    for command in (
        *("ingest", "fit", "evaluate", "sample", "neighbours", "transform", "export"),
        *("query", "report.__main__", "certificates"),
    ):
        app = importlib.import_module(f"flows.{command}").app
        names |= {
            name for argument in app.assemble_argument_collection() for name in argument.names
        }
    settings = {own for kind in find_models().values() for own in list_hyperparameters(kind)}
    both = {name for name in settings if f"--{name.replace('_', '-')}" in names}
    assert {name: spell_option(name, None) for name in both} == {
        "k": "--set k",  # of neighbours, whose messages do not name it
        "row_id": "--row-id",
        **{name: f"--{name}" for name in ("items", "layers", "segments", "time", "weights")},
    }
