"""All commands by one name, and what they list."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from flows import fit
from flows.__main__ import (
    COMMANDS,
    format_overview,
    generate_completion_script,
    list_commands,
    main,
)
from flows.cli.hyperparameters import format_settings_help
from flows.data.datasets import open_dataset_or_example
from pipeline.errors import FitError
from pipeline.models.registry import find_models
from pipeline.models.settings import list_hyperparameters
from tests.support.fits import build_model, write_fit


def typed(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Type a command."""
    command = [sys.executable, "-P", "-m", "flows", *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


def test_the_overview_names_all_commands_that_there_are():
    here = Path(import_module("flows").__file__).parent
    files = {file.stem for file in here.glob("*.py")} - {"__init__", "__main__"}
    folders = {file.parent.name for file in here.glob("*/__main__.py")}
    assert {name.replace("-", "_") for name in list_commands()} == files | folders
    for group in COMMANDS.values():
        for name, told in group.items():
            assert f"  {name:<12}  {told}\n" in format_overview()
            assert len(told) < 64


@pytest.mark.parametrize("words", [("--help",), (), ("--version",)])
def test_help_and_version(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["latentbits", *words])
    main()
    expected = f"latentbits {version('latentbits')}\n" if "--version" in words else None
    assert capsys.readouterr().out == (expected or format_overview())


@pytest.mark.matrix
def test_a_command_is_run_and_called_as_it_was_typed(tmp_path):
    done = typed("models", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "latentbits fit --model NAME --help" in done.stdout
    told = typed("fit", "--help").stdout
    assert "Usage: latentbits fit --dataset" in told
    assert "python -m" not in told


def test_files_of_the_same_names_are_not_in_the_way(tmp_path):
    for name in ("pipeline.py", "storage.py"):
        (tmp_path / name).write_text("raise SystemExit('taken')\n")
    done = typed("models", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == set(find_models())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evalute"], "error: 'evalute' is not a command. Did you mean evaluate?\n"),
        (["x" * 9], f"error: {'x' * 9!r} is not a command. See latentbits --help.\n"),
        (["completion"], "error: completion: name one shell: bash, fish, zsh.\n"),
    ],
)
def test_what_is_no_command_is_refused(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["latentbits", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_knows_commands_and_options(shell):
    script = generate_completion_script(list_commands(), shell)
    for word in (*list_commands(), "warm-start", "drop-constant", "clipped-pca"):
        assert word in script


def test_help_lists_models_or_the_settings_of_the_model_named():
    models = format_settings_help()
    assert "Settings of" not in models
    for name in find_models():
        assert name in models
        settings = format_settings_help(["--model", name])
        assert settings.startswith(f"Settings of {name} (--set NAME=VALUE):\n")
        assert "n_components" not in settings  # an argument of Python
        assert all(
            f"  {setting}=" in settings for setting in list_hyperparameters(find_models()[name])
        )
    assert "tree-mixture, chow-liu, " in models
    assert format_settings_help(["--model=chow-liu"]) == format_settings_help(
        ["--model=tree-mixture"]
    )
    assert "Settings of blica" in format_settings_help(["--seed", "1", "--model=blica", "--help"])
    assert format_settings_help(["--model", "nothing"]) == models


def test_an_alias_fixes_settings_of_its_model(plain_cli):
    tree = build_model("tree-mixture", "1", ["smoothing=2"])
    assert tree == build_model("chow-liu", None, ["smoothing=2"])
    assert tree == build_model("chow-liu", "1", ["smoothing=2"])
    for components in ("3", "auto"):
        with pytest.raises(FitError, match="chow-liu is tree-mixture with components=1"):
            build_model("chow-liu", components, [])
    listed = plain_cli("models").out
    assert "chow-liu             tree-mixture with components=1." in listed
    listed = plain_cli("models", "--json").json
    assert listed["tree-mixture"]["aliases"] == {"chow-liu": {"n_components": 1}}
    assert listed["blica"]["aliases"] == {}


def test_the_help_of_a_fit_fits_on_one_screen(capsys):
    fit.app.help_print([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 66
    assert max(map(len, lines)) <= 80


def test_fits_are_listed_with_the_latest_marked(plain_cli, tmp_path):
    dataset = open_dataset_or_example("example:digits")
    write_fit(tmp_path / "runs" / "digits" / "old", build_model("clipped-pca", "2", []), dataset)
    write_fit(tmp_path / "runs" / "digits" / "new", build_model("clipped-pca", "3", []), dataset)
    (tmp_path / "runs" / "digits" / "latest").write_text("new\n")
    damaged = tmp_path / "runs" / "digits" / "damaged"
    shutil.copytree(tmp_path / "runs" / "digits" / "old", damaged)
    manifest = damaged / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"n_components": 2', '"n_components": 4'))
    done = plain_cli("runs", "--json")
    assert done.code == 0, done.err
    fits = {Path(fit["artifact"]).name: fit for fit in done.json["fits"]}
    assert {name: fit["latest"] for name, fit in fits.items()} == {
        "damaged": False,
        "new": True,
        "old": False,
    }
    assert [fits[name]["components"] for name in ("new", "old")] == [3, 2]
    assert fits["new"]["features"] == dataset.n_features
    assert "damaged" in fits["damaged"]["refused"]
    lines = plain_cli("runs", "runs/digits").out.splitlines()
    assert [line.split()[0] for line in lines if "clipped-pca" in line] == ["*", "runs/digits/old"]
    assert "there is no such folder of runs" in plain_cli("runs", "nowhere").check_refused()
    (tmp_path / "empty").mkdir()
    assert plain_cli("runs", "empty").out == "no fits below empty\n"


@pytest.mark.parametrize(
    "name",
    [
        *("evaluate", "export", "fit", "ingest", "neighbours", "next_items", "query"),
        *("report.__main__", "sample", "transform"),
    ],
)
def test_every_option_stands_in_a_part_of_the_help(name, capsys):
    import_module(f"flows.{name}").app.help_print([])
    shown = capsys.readouterr().out
    assert "\nOutput:\n" in shown
    assert "Parameters:" not in shown
