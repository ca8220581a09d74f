"""Starts a job of several workers on this machine through MindSpore's own `msrun`, and ends it when a worker dies.

msrun alone notices a dead worker after half a minute and a busy port after another, and may leave workers behind. Here
the workers are watched directly, and every process is tied to the life of its parent.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from ms_parallel.errors import LaunchError
from ms_parallel.processes import status
from ms_parallel.worker import COMMAND, PIDS

_POLL_SECONDS = 0.05
_SCHEDULER_SECONDS = 30.0  # how long MindSpore's scheduler may take to leave after the last worker
_COLLECTIVE_SECONDS = 120  # a rank that compiles or saves is late; MindSpore's default of 30 s would fail the job
_TAIL_LINES = 20


def launch(
    command: Sequence[str | Path],
    *,
    num_workers: int,
    log_dir: Path | str,
    port: int | None = None,
    timeout: float = 120.0,
    console: TextIO | None = None,
) -> int:
    """Runs `command` in `num_workers` processes and waits for all; returns 0 or the first failed worker's exit code.

    Rank 0's output appears on the console as it is written; every rank's is kept in `log_dir/worker_RANK.log`. When
    a worker fails, the others are ended at once and its last lines are shown. SIGINT and SIGTERM are passed on to the
    workers, which may then save and end; a second one ends them.

    Args:
        command: program and arguments, the same for all; each finds its rank in RANK_ID (see `current_rank`).
        num_workers: how many processes.
        log_dir: folder for the logs; those of an earlier job there are removed.
        port: where the job's scheduler listens; None picks a free one.
        timeout: seconds within which every worker must have joined (`ms_parallel.mindspore.init`).
        console: where to write; standard output by default.

    Raises:
        LaunchError: nothing was started: a port in use, no msrun, a command that does not exist.
    """
    console = sys.stdout if console is None else console
    _check(command, num_workers)
    port = _free_port() if port is None else _check_port(port)
    log_dir = Path(log_dir).absolute()
    log_dir.mkdir(parents=True, exist_ok=True)
    for pattern in ("worker_*.log", "scheduler.log", "msrun.log", "rank-*.pid"):
        for old in log_dir.glob(pattern):
            old.unlink()
    keeper = [sys.executable, "-c", "from ms_parallel.worker import main; main()"]
    options = {
        "--worker_num": num_workers,
        "--local_worker_num": num_workers,
        "--master_port": port,
        "--log_dir": log_dir,
        "--join": True,
        "--cluster_time_out": max(1, int(timeout)),
        "--tail_worker_log": num_workers,  # a rank that does not exist: the console is written here, not by `tail`
    }
    flags = [str(part) for option in options.items() for part in option]
    # msrun starts nothing but `python` or `python3` as found on PATH: make that this interpreter.
    python = _python_name()
    start = [*keeper, _find_msrun(), *flags, python, *keeper[1:]]
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        PIDS: str(log_dir),
        COMMAND: json.dumps([str(part) for part in command]),
        "MS_CPU_COMM_OP_TIMEOUT": str(max(_COLLECTIVE_SECONDS, int(os.environ.get("MS_CPU_COMM_OP_TIMEOUT", "0")))),
    }
    with (log_dir / "msrun.log").open("wb") as log:
        msrun = subprocess.Popen(start, stdout=log, stderr=log, env=variables, start_new_session=True)
        return _Job(msrun, num_workers, log_dir, console).watch()


class _Job:
    """A job under way."""

    def __init__(self, msrun: "subprocess.Popen[bytes]", num_workers: int, log_dir: Path, console: TextIO) -> None:
        self._msrun = msrun
        self._num_workers = num_workers
        self._log_dir = log_dir
        self._console = console
        self._pids: dict[int, int] = {}  # rank -> process
        self._codes: dict[int, int | None] = {}  # rank -> exit code, of those that ended
        self._signal = 0
        self._num_signals = 0

    def watch(self) -> int:
        """Waits until the job ended or must be ended."""
        shown = _Follower(self._log_dir / "worker_0.log", self._console)
        ended: float | None = None
        try:
            with self._passed_signals():
                while self._msrun.poll() is None:
                    shown.show()
                    self._update()
                    is_stopping = self._num_signals > 0
                    if self._num_signals > 1 or (self._failed() and not is_stopping):
                        break
                    if len(self._codes) == self._num_workers:
                        ended = time.monotonic() if ended is None else ended
                        if is_stopping or time.monotonic() - ended > _SCHEDULER_SECONDS:
                            break
                    time.sleep(_POLL_SECONDS)
            self._update()
        finally:
            self._end()
            shown.show()
            shown.close()
        return self._report(is_scheduler_left=ended is not None and self._msrun.returncode != 0)

    def _find_workers(self) -> None:
        if len(self._pids) < self._num_workers:
            for path in self._log_dir.glob("rank-*.pid"):
                if (text := path.read_text()).endswith("\n"):
                    self._pids.setdefault(int(path.stem.removeprefix("rank-")), int(text))

    def _update(self) -> None:
        self._find_workers()
        for rank, pid in list(self._pids.items()):  # a signal may add some meanwhile
            if rank not in self._codes and not (found := status(pid)).is_running:
                self._codes[rank] = found.exit_code
            if self._codes.get(rank, 0) is None:  # msrun was quicker; it says what it found
                said = re.search(rf"Worker process {pid} exit with exception. Error code: (-?\d+)", self._msrun_log())
                if said:
                    self._codes[rank] = int(said[1]) if int(said[1]) >= 0 else 128 - int(said[1])

    def _msrun_log(self) -> str:
        return (self._log_dir / "msrun.log").read_text(encoding="utf-8", errors="replace")

    def _failed(self) -> list[int]:
        """The ranks that ended with another code than 0, first the one that was seen first."""
        return [rank for rank, code in self._codes.items() if code]

    @contextmanager
    def _passed_signals(self) -> Iterator[None]:
        """Passes SIGINT and SIGTERM on to the workers (they are in sessions of their own) for the duration."""

        def pass_on(number: int, frame: FrameType | None) -> None:
            self._signal = number
            self._find_workers()  # one that began since the last look must not be killed instead of told
            self._num_signals += 1 if len(self._pids) == self._num_workers else 2  # nothing to save before that
            # msrun kills all workers as soon as one ends with another code than 0: others may still be saving.
            self._msrun.send_signal(signal.SIGSTOP)
            for rank, pid in self._pids.items():
                if rank not in self._codes:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)

        before: dict[signal.Signals, object] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                with suppress(ValueError):  # not the main thread: the caller's business
                    before[number] = signal.signal(number, pass_on)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() itself returned

    def _end(self) -> None:
        """Ends whatever still runs: the workers' groups, then msrun, with which its scheduler goes."""
        for rank, pid in self._pids.items():
            if rank not in self._codes or self._failed():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        if self._msrun.poll() is None:
            self._msrun.kill()
        self._msrun.wait()

    def _report(self, *, is_scheduler_left: bool) -> int:
        failed = self._failed()
        if failed:
            code = self._codes[failed[0]] or 1
            self._console.write(f"\nrank {failed[0]} ended with {_explain(code)}; its last lines:\n")
            self._console.write(_last_lines(self._log_dir / f"worker_{failed[0]}.log"))
            self._console.write(f"all logs: {self._log_dir}\n")
            return code
        if self._num_signals:
            return 0 if len(self._codes) == self._num_workers and self._num_signals == 1 else 128 + self._signal
        if is_scheduler_left:
            self._console.write(
                "\nthe workers ended, but never joined one job: each trained alone. Call ms_parallel.mindspore.init() "
                f"before anything else.\nall logs: {self._log_dir}\n"
            )
            return 1
        if self._msrun.returncode != 0:
            self._console.write(f"\nmsrun ended with {_explain(self._msrun.returncode)}; its last lines:\n")
            self._console.write(_last_lines(self._log_dir / "msrun.log"))
            self._console.write(f"all logs: {self._log_dir}\n")
            return 1
        return 0


class _Follower:
    """Copies what is appended to a file."""

    def __init__(self, path: Path, console: TextIO) -> None:
        self._path = path
        self._console = console
        self._file: IO[str] | None = None

    def show(self) -> None:
        if self._file is None and self._path.exists():
            self._file = self._path.open(encoding="utf-8", errors="replace")
        if self._file is not None and (text := self._file.read()):
            self._console.write(text)
            self._console.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _check(command: Sequence[str | Path], num_workers: int) -> None:
    if num_workers < 1:
        raise LaunchError(f"number of workers: expected at least 1, found {num_workers}")
    if not command:
        raise LaunchError("no command to launch")
    if shutil.which(command[0]) is None:
        raise LaunchError(f"{command[0]}: no such program")


def _find_msrun() -> str:
    beside = Path(sys.executable).with_name("msrun")
    found = str(beside) if beside.exists() else shutil.which("msrun")
    if found is None:
        raise LaunchError(f'no msrun beside {sys.executable} or on PATH; pip install "ms-parallel[mindspore]"')
    return found


def _python_name() -> str:
    for name in ("python", "python3"):
        if Path(sys.executable).with_name(name).exists():
            return name
    raise LaunchError(f"{sys.executable}: msrun needs a file named python beside it; use a virtual environment")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_port(port: int) -> int:
    if not 1024 <= port <= 65535:
        raise LaunchError(f"port {port}: expected 1024 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a job that just ended does not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LaunchError(f"port {port} is in use ({error.strerror}); choose another, or none") from error
    return port


def _explain(code: int) -> str:
    if code > 128:
        with suppress(ValueError):
            return f"code {code} ({signal.Signals(code - 128).name})"
    return f"code {code}"


def _last_lines(path: Path) -> str:
    if not path.exists():
        return "(no output)\n"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return "".join(f"  | {line}\n" for line in lines)
