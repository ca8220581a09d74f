"""What runs in place of each process of a job: it ties the process to its parent's life, then becomes the command.

msrun starts the same command for its scheduler too; a scheduler needs nothing of the user's program, so here it runs
MindSpore's part alone.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PIDS = "MS_PARALLEL_PIDS"
"""The environment variable that names the folder in which workers leave their process ids, for the launcher."""
COMMAND = "MS_PARALLEL_COMMAND"
"""The environment variable with the user's command, a JSON list: msrun takes some options of a command for its own."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Replaces this process by the command; a command that cannot be started ends it with code 127."""
    parent = os.getppid()
    # Kept across exec: when the parent ends, however it ends, the kernel ends this process.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the launcher ended before its worker began")
    role, folder = os.environ.get("MS_ROLE"), os.environ.get(PIDS)
    if role == "MS_WORKER" and folder is not None:
        Path(folder, f"rank-{os.environ['RANK_ID']}.pid").write_text(f"{os.getpid()}\n")
    if role == "MS_SCHED":
        from mindspore.communication import init

        init()
        return
    command = sys.argv[1:] or json.loads(os.environ.pop(COMMAND))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
