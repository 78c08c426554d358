"""The scripts in deploy/slurm, in a real SLURM cluster of one node where SLURM is installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from distributed.cli import dask_scheduler, dask_worker

from flows import certificates
from flows.cli.app import run_app
from flows.running.cluster_settings import resolve_cluster_settings
from flows.running.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from storage import load_artifact
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.slurm import Slurm, start_slurm, wait_until

SCRIPTS = Path(__file__).parents[1] / "deploy" / "slurm"
SUBMIT, RUN, WORKERS = (SCRIPTS / f"{name}.sh" for name in ("submit", "run", "workers"))
FIT = ("latentbits", "fit", "--dataset", "d.zarr", "--model", "latent-trait", "--no-report")
FIT += ("--components", "2")
BIN = Path(sys.executable).parent

# Options that the manual page of sbatch lists.
SBATCH_OPTIONS = {
    "account", "array", "constraint", "cpus-per-task", "dependency", "error", "exclusive", "export",
    "job-name", "mem", "mem-per-cpu", "no-requeue", "nodes", "ntasks", "open-mode", "output",
    "parsable", "partition", "qos", "quiet", "requeue", "signal", "time", "tmp",
}  # fmt: skip

# What a user edits: few small workers, or workers that leave 18 to 32 seconds after their start.
SMALL_WORKERS = {
    "--array=1-100%8": "--array=1-100%2",
    "--cpus-per-task=8": "--cpus-per-task=1",
    "--mem=16G": "--mem=1G",
}
SHORT_LIFETIME = {"--time=04:00:00": "--time=00:01:00", "leave_early=300": "leave_early=35"}


def read_commands(script: Path) -> str:
    """Read a script without comments, with continued lines joined."""
    text = script.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.sub(r"(^| )#.*", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("script", [SUBMIT, RUN, WORKERS], ids=lambda path: path.name)
def test_a_script_is_valid(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    lines = re.findall(r"^#SBATCH ([^#\n]*)", text, re.MULTILINE)
    assert bool(lines) == (script != SUBMIT)
    # SLURM ignores such lines after the first command.
    assert "#SBATCH" not in text[text.index("\nset -euo pipefail\n") :]
    for options in [*lines, *re.findall(r"sbatch (--[^|)]*)", read_commands(script))]:
        assert set(re.findall(r"--([a-z-]+)", options)) <= SBATCH_OPTIONS, options
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


@pytest.mark.parametrize(
    ("script", "command"), [(RUN, dask_scheduler), (WORKERS, dask_worker)], ids=["run", "workers"]
)
def test_dask_takes_the_options_and_uses_tls(script: Path, command) -> None:
    (line,) = re.findall(r"^(?:exec )?dask (.*)", read_commands(script), re.MULTILINE)
    known = {
        name for option in command.main.params for name in (*option.opts, *option.secondary_opts)
    }
    options = set(re.findall(r" (--[a-z-]+)", line))
    assert options <= known
    assert options >= {"--tls-ca-file", "--tls-cert", "--tls-key", "--no-dashboard"}
    # Without this, pages of a scheduler without dashboard are open to the network.
    assert "--dashboard-address 127.0.0.1:0" in line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder that the nodes share, with the scripts as a user edits them, and certificates."""
    shutil.copytree(SCRIPTS, tmp_path / "slurm")
    edit_script(tmp_path / "slurm" / "workers.sh", SMALL_WORKERS)
    with pytest.raises(SystemExit) as done:
        run_app(certificates.app, [str(tmp_path / "certificates")])
    assert not done.value.code
    return tmp_path


def edit_script(script: Path, edits: dict[str, str]) -> None:
    text = script.read_text(encoding="utf-8")
    for before, after in edits.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    script.write_text(text, encoding="utf-8")


def submit(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Call submit.sh where SLURM is not needed, because it refuses."""
    words = ["bash", folder / "slurm" / "submit.sh", *command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    key = folder / "certificates" / KEY_FILE
    key.chmod(0o640)
    done = submit(folder, *FIT)
    assert (done.returncode, "chmod 600" in done.stderr) == (2, True)
    key.unlink()
    done = submit(folder, *FIT)
    assert (done.returncode != 0, str(key) in done.stderr) == (True, True)
    assert "latentbits fit --dataset votes.zarr" in submit(folder).stderr


def test_the_scheduler_listens_with_tls_only_and_ends_with_the_command(folder: Path) -> None:
    """The job of the command, without SLURM: it has no workers, and cancels them in vain."""
    (folder / "sbatch").symlink_to(shutil.which("true") or "/bin/true")
    mark = folder / "mark"
    command = f"touch {mark}; until [[ -e {mark}.seen ]]; do sleep 0.1; done; exit 7"
    names = {"CA": CA_FILE, "CERT": CERTIFICATE_FILE, "KEY": KEY_FILE}
    files = {
        f"LATENTBITS_TLS_{name}": str(folder / "certificates" / f) for name, f in names.items()
    }
    environment = {**os.environ, **files, "SLURM_JOB_ID": "1"}
    environment["PATH"] = f"{folder}:{BIN}:/usr/bin:/bin"
    job = subprocess.Popen(
        ["bash", RUN, WORKERS, "bash", "-c", command], cwd=folder, env=environment, process_group=0
    )
    try:
        wait_until(lambda: mark.exists() or job.poll() is not None)
        processes = psutil.Process(job.pid).children(recursive=True)
        assert check_listeners(processes, folder) == 1
        assert (folder / "latentbits-1.json").exists()
        mark.with_suffix(".seen").touch()
        assert job.wait(600) == 7
        assert psutil.wait_procs(processes, timeout=600)[1] == []
        assert not (folder / "latentbits-1.json").exists()
    finally:
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(job.pid, signal.SIGKILL)


def test_a_command_takes_the_variables_that_its_script_sets(monkeypatch) -> None:
    variables = re.findall(r"^export (LATENTBITS_\w+)=(\d+)$", read_commands(RUN), re.MULTILINE)
    assert variables
    for name, value in variables:
        monkeypatch.setenv(name, value)
    settings = resolve_cluster_settings({"cluster": "tcp://127.0.0.1:1"})
    assert settings.worker_timeout > 300 * 24 * 3600


def check_listeners(processes: list[psutil.Process], folder: Path) -> int:
    """Check that what listens beyond loopback wants a certificate; return the number of ports."""
    addresses = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            addresses |= {
                (connection.laddr.ip, connection.laddr.port)
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
                and not ip_address(connection.laddr.ip).is_loopback
            }
    files = folder / "certificates"
    anyone, member = (ssl.create_default_context(cafile=files / CA_FILE) for _ in range(2))
    anyone.check_hostname = member.check_hostname = False
    member.load_cert_chain(files / CERTIFICATE_FILE, files / KEY_FILE)
    for address in addresses:
        assert read_over_tls(address, member), address
        assert not read_over_tls(address, anyone), address
    return len({port for _, port in addresses})


def read_over_tls(address: tuple[str, int], context: ssl.SSLContext) -> bytes:
    """Read the first byte that a server sends; nothing if it refuses the connection."""
    with (
        suppress(OSError),
        socket.create_connection(address, 60) as connection,
        context.wrap_socket(connection) as encrypted,
    ):
        return encrypted.recv(1)
    return b""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with start_slurm(tmp_path_factory.mktemp("slurm")) as started:
        started.environment["PATH"] = f"{BIN}{os.pathsep}{started.environment['PATH']}"
        yield started


@pytest.fixture(scope="module")
def serial(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a dataset and of its serial fit."""
    folder = tmp_path_factory.mktemp("serial")
    X, _ = draw_probit_rows(160 * 64, 10, 2, seed=7)
    write_arrays(folder / "d.zarr", X, words_per_chunk=1)
    slurm.run(*FIT, "--executor", "serial", folder=folder)
    return folder


def submit_fit(slurm: Slurm, folder: Path, *options: str) -> str:
    """Submit a fit; return the number of its job."""
    printed = slurm.run("slurm/submit.sh", *FIT, *options, folder=folder)
    return re.findall(r"Submitted job (\d+)\.", printed)[0]


def find_fit(slurm: Slurm, job: str) -> psutil.Process:
    """Find the process of a command."""
    (process,) = (
        process
        for process in slurm.list_job_processes()
        if process.environ()["SLURM_JOB_ID"] == job and "flows.fit" in process.cmdline()
    )
    return process


def wait_for_pass(folder: Path, job: str) -> None:
    """Wait until a command has completed a pass; fail at once if it ends with an error."""
    log = folder / f"latentbits-{job}.log"

    def has_passed() -> bool:
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        assert "error:" not in text, text
        return bool(list(folder.glob("runs/d/.unfinished/*/states/000002/manifest.json")))

    wait_until(has_passed)


def check_end(slurm: Slurm, folder: Path, job: str, serial: Path) -> None:
    """Check that nothing is left of a run, and that its fit has the bytes of a serial one."""
    slurm.wait_until_idle()
    assert slurm.list_job_processes() == []
    assert "JobState=COMPLETED" in slurm.run("scontrol", "show", "job", job)
    assert not list(folder.glob("latentbits-*.json"))
    expected, got = (load_artifact(path / "runs/d") for path in (serial, folder))
    assert set(got) == set(expected)
    for name in expected:
        assert got[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.matrix
def test_workers_that_leave_or_are_preempted_do_not_change_the_fit(slurm, folder, serial) -> None:
    """The command is stopped until its workers have left: what they hold must go to others."""
    edit_script(folder / "slurm" / "workers.sh", SHORT_LIFETIME)
    edit_script(folder / "slurm" / "run.sh", {"--ntasks=1": "--ntasks=1 --partition=urgent"})
    (folder / "d.zarr").symlink_to(serial / "d.zarr")
    job = submit_fit(slurm, folder)
    wait_for_pass(folder, job)
    fit = find_fit(slurm, job)
    fit.send_signal(signal.SIGSTOP)
    try:
        assert check_listeners(slurm.list_job_processes(), folder) > 2
        # All CPUs that are free, and one more.
        urgent = ("--partition=urgent", "--cpus-per-task=253", "--mem=1G", "--output=/dev/null")
        slurm.run("sbatch", *urgent, "--wrap=true")
        for reason in ("signal-15", "worker-lifetime-reached"):
            wait_until(lambda reason=reason: reason in read_worker_logs(folder))
        wait_until((folder / f"latentbits-{job}-workers-3.log").exists)
    finally:
        fit.send_signal(signal.SIGCONT)
    check_end(slurm, folder, job, serial)


def read_worker_logs(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("latentbits-*-workers-*.log"))


@pytest.mark.matrix
def test_a_cancelled_run_ends_its_workers_and_continues(slurm, folder, serial) -> None:
    """SLURM sends the same signals at the time limit."""
    (folder / "d.zarr").symlink_to(serial / "d.zarr")
    job = submit_fit(slurm, folder)
    wait_for_pass(folder, job)
    slurm.run("scancel", job)
    slurm.wait_until_idle()
    assert slurm.list_job_processes() == []
    assert "error: interrupted" in (folder / f"latentbits-{job}.log").read_text()
    check_end(slurm, folder, submit_fit(slurm, folder, "--resume"), serial)


@pytest.mark.matrix
def test_a_preempted_fit_continues_when_it_is_started_again(slurm, folder, serial) -> None:
    """A job that needs all CPUs preempts the command and its workers."""
    (folder / "d.zarr").symlink_to(serial / "d.zarr")
    job = submit_fit(slurm, folder)
    wait_for_pass(folder, job)
    urgent = ("--partition=urgent", "--cpus-per-task=256", "--mem=1G", "--output=/dev/null")
    slurm.run("sbatch", *urgent, "--wrap=true")
    check_end(slurm, folder, job, serial)
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job)
    log = (folder / f"latentbits-{job}.log").read_text(encoding="utf-8")
    before, _, after = log.partition("error: interrupted")
    assert ("pass 1" in before, "pass 1:" in after) == (True, False)
    assert "artifact: " in after
