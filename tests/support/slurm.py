"""A real SLURM cluster of one node, on loopback, for as long as a test needs it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

_COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin")
_SECONDS = 600

# Its node claims more CPUs and memory than this machine may have, so that jobs need not wait. Jobs
# in the partition `urgent` preempt others, which start again once the credential expires.
_CONFIGURATION = """
ClusterName=latentbits
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=256 RealMemory=1000000
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """A running SLURM cluster."""

    def __init__(self, configuration: Path) -> None:
        self.environment = {
            **os.environ,
            "PATH": _search_path(),
            "SLURM_CONF": str(configuration),
        }

    def run(self, *command: object, folder: Path | None = None) -> str:
        """Run a command on the login node; return what it prints."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        return done.stdout.strip()

    def list_job_processes(self) -> list[psutil.Process]:
        """List the processes of all jobs."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if variables.get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    processes += [process] if "SLURM_JOB_ID" in variables else []
        return processes

    def wait_until_idle(self) -> None:
        """Wait until no job is left, in the queue or running."""
        wait_until(lambda: not self.run("squeue", "--noheader"))


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _search_path() -> str:
    return os.pathsep.join((os.environ["PATH"], *_SYSTEM_FOLDERS))


@contextmanager
def start_slurm(folder: Path) -> Iterator[Slurm]:
    """Start SLURM with its files in a folder; skip the test if SLURM is not installed."""
    for command in _COMMANDS:
        if shutil.which(command, path=_search_path()) is None:
            pytest.skip(f"{command} is not installed (Debian: munge slurmctld slurmd slurm-client)")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    controller_port, node_port = _find_free_ports(2)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            user=psutil.Process().username(),
            controller_port=controller_port,
            node_port=node_port,
        )
    )
    slurm = Slurm(configuration)
    files = {"socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    munge = [*options, f"--key-file={key}", f"--log-file={folder / 'munge.log'}"]
    with ExitStack() as stack:
        stack.enter_context(_run_daemon(slurm, folder, "munged", "--foreground", "--force", *munge))
        wait_until((folder / "munge.socket").exists)
        stack.enter_context(_run_daemon(slurm, folder, "slurmctld", "-D"))
        stack.enter_context(_run_daemon(slurm, folder, "slurmd", "-D"))
        wait_until(lambda: _is_node_idle(slurm))
        try:
            yield slurm
        finally:
            for process in slurm.list_job_processes():
                with suppress(psutil.Error):
                    process.kill()


def _find_free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _run_daemon(slurm: Slurm, folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=slurm.environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _is_node_idle(slurm: Slurm) -> bool:
    with suppress(subprocess.CalledProcessError):  # the controller is still starting
        return set(slurm.run("sinfo", "--noheader", "--format", "%T").split()) == {"idle"}
    return False
