"""Run a command as on Windows, as far as our own code sees it.

`python -m tests.support.windows MODULE ARGUMENTS` runs a module. Imports by our packages of modules
that only POSIX systems have fail, and the `os` that they import lacks what Windows lacks. Other
packages see the real system, whose parts they are built for.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from types import ModuleType
from typing import Any

_OWN_PACKAGES = {"flows", "latentbits", "pipeline", "storage", "__main__"}
_MISSING_MODULES = {
    *("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"),
}
_MISSING_NAMES = {
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "chown", "confstr"),
    *("ctermid", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid"),
    *("getgroups", "getloadavg", "getpgid", "getpgrp", "getpriority", "getresuid", "getsid"),
    *("getuid", "killpg", "lchown", "mkfifo", "nice", "pread", "pwrite", "register_at_fork"),
    *("sched_getaffinity", "sched_setaffinity", "setsid", "setuid", "statvfs", "sysconf"),
    *("ttyname", "uname", "wait", "wait3", "wait4"),
}


def hide_posix() -> None:
    """Hide what Windows lacks from modules of our packages that are imported from now on."""
    windows_os = ModuleType("os")
    names = vars(os).items()
    windows_os.__dict__.update({name: value for name, value in names if name not in _MISSING_NAMES})
    import_really = builtins.__import__

    def import_as_on_windows(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        importer = str((globals or {}).get("__name__", "")).partition(".")[0]
        if importer in _OWN_PACKAGES and level == 0:
            if name in _MISSING_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name == "os":
                return windows_os
        return import_really(name, globals, locals, fromlist, level)

    builtins.__import__ = import_as_on_windows


if __name__ == "__main__":
    hide_posix()
    _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
