"""Runs a program and notes, in the kernel's order, what it writes to disk and what it says on its sockets.

    python -m support.tracer NOTES COMMAND...     exits as COMMAND exits; SIGTERM is handed on

It is strace in little: ptrace(2) through ctypes. A preloaded library would see the same calls, but somebody would
have to compile it, and the machine that runs these tests may have no compiler; a process may trace its own children,
root or not (Linux, Documentation/admin-guide/LSM/Yama.rst). 64-bit Linux 5.3 or newer, for PTRACE_GET_SYSCALL_INFO.

A flush of the write-ahead log is held back until the program's main thread waits in epoll. So a reply that does not
wait for the flush is always seen before it, however fast the disk is.
"""

import base64
import ctypes
import json
import os
import platform
import signal
import struct
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

WAL: Final = "-wal"
SOCKET: Final = "socket:"

# ── what is written down ─────────────────────────────────────────────────────────────────────────


class Call(NamedTuple):
    """A system call that ended. `begin` and `end` count the starts and the ends of all noted calls, in one row."""

    begin: int
    end: int
    kind: str
    """`write`, `sync` or `send`."""
    file: str
    """The path of a file, or `socket:[inode]`."""
    data: bytes
    """What was transferred, no more."""


def read_notes(path: Path) -> list[Call]:
    """Read what a traced program did, by `begin`."""
    with path.open() as lines:
        calls = [Call(*json.loads(line)) for line in lines]
    return sorted(call._replace(data=base64.b64decode(call.data)) for call in calls)


# ── system calls (numbers: asm/unistd_64.h and asm-generic/unistd.h of Linux) ────────────────────


class Shape(NamedTuple):
    """What a system call does, and where its bytes are: `flat` (pointer), `vector` (iovec), `message` (msghdr)."""

    kind: str
    layout: str = ""


_SYSCALLS: Final = (  # on x86_64, on aarch64
    (1, 64, Shape("write", "flat")),  # write
    (18, 68, Shape("write", "flat")),  # pwrite64
    (20, 66, Shape("write", "vector")),  # writev
    (296, 70, Shape("write", "vector")),  # pwritev
    (328, 287, Shape("write", "vector")),  # pwritev2
    (44, 206, Shape("write", "flat")),  # sendto
    (46, 211, Shape("write", "message")),  # sendmsg
    (74, 82, Shape("sync")),  # fsync
    (75, 83, Shape("sync")),  # fdatasync
    (232, None, Shape("wait")),  # epoll_wait
    (281, 22, Shape("wait")),  # epoll_pwait
    (441, 441, Shape("wait")),  # epoll_pwait2
)
_COLUMN: Final = {"x86_64": 0, "aarch64": 1}.get(platform.machine())

SYSCALLS: Final = {} if _COLUMN is None else {row[_COLUMN]: row[2] for row in _SYSCALLS}

# ── ptrace(2) (numbers: linux/ptrace.h) ──────────────────────────────────────────────────────────

_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_SYSCALL: Final = 24
_GET_SYSCALL_INFO: Final = 0x420E

_OPTIONS: Final = 0x1 | 0x8 | 0x100000
"""TRACESYSGOOD: a stop at a system call is marked; TRACECLONE: new threads, too; EXITKILL: nothing outlives us."""

_AT_SYSCALL: Final = signal.SIGTRAP | 0x80
_ALL: Final = 0x40000000
"""__WALL of waitpid(2): threads, too."""

_ENTRY, _EXIT = 1, 2
_INFO: Final = struct.Struct("=B3xIQQ7Q")
"""struct ptrace_syscall_info: op, arch, instruction and stack pointer; then number and six arguments, or result."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, thread: int, address: int | None = None, data: Any = None) -> None:
    """Call ptrace(2); a thread that was killed under our hands is no error, waitpid will tell."""
    if _libc.ptrace(request, thread, address, data) < 0 and (error := ctypes.get_errno()) != 3:  # ESRCH
        raise OSError(error, f"ptrace: {os.strerror(error)}: these tests trace the server they start")


class _Pending(NamedTuple):
    begin: int
    kind: str
    file: str
    data: bytes


class Tracer:
    def __init__(self, command: list[str]) -> None:
        self.calls: list[Call] = []
        self._info = ctypes.create_string_buffer(_INFO.size)
        self._count = 0
        self._pending: dict[int, _Pending] = {}
        self._held: list[int] = []
        self._main_waits = False
        self._memory = -1
        self.pid = self._start(command)

    def run(self) -> int:
        """Trace until the program ends; gives its exit code, negative for a signal."""
        while True:
            thread, status = os.waitpid(-1, _ALL)
            if not os.WIFSTOPPED(status):
                if thread == self.pid:
                    return os.waitstatus_to_exitcode(status)
                continue
            number, event, passed = os.WSTOPSIG(status), status >> 16, 0
            if number == _AT_SYSCALL:
                self._at_syscall(thread)
                if thread in self._held:
                    continue
            elif not event:
                passed = number
            ptrace(_SYSCALL, thread, None, passed)

    def _start(self, command: list[str]) -> int:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _become(command, reader, writer)
        os.close(reader)
        ptrace(_SEIZE, child, None, _OPTIONS)
        ptrace(_INTERRUPT, child)
        os.waitpid(child, _ALL)
        ptrace(_SYSCALL, child)
        os.write(writer, b"!")
        os.close(writer)
        return child

    def _at_syscall(self, thread: int) -> None:
        ptrace(_GET_SYSCALL_INFO, thread, _INFO.size, self._info)
        op, _, _, _, first, *arguments = _INFO.unpack(self._info)
        if op == _ENTRY:
            shape = SYSCALLS.get(first)
            if shape is not None:
                self._enter(thread, shape, tuple(arguments))
        elif op == _EXIT and thread in self._pending:
            self._leave(self._pending.pop(thread), ctypes.c_int64(first).value)
        if thread == self.pid and op == _EXIT:
            self._main_waits = False

    def _enter(self, thread: int, shape: Shape, arguments: tuple[int, ...]) -> None:
        if shape.kind == "wait":
            if thread == self.pid:
                self._main_waits = True
                for held in self._held:
                    ptrace(_SYSCALL, held)
                self._held.clear()
            return
        try:
            file = str(Path(f"/proc/{self.pid}/fd/{arguments[0]}").readlink())
        except FileNotFoundError:
            return
        kind = shape.kind
        if file.startswith(SOCKET):
            kind = "send" if kind == "write" else kind
        elif kind == "write" and not file.endswith(WAL):
            return
        self._count += 1
        data = b"" if kind == "sync" else self._to_be_written(shape, arguments)
        self._pending[thread] = _Pending(self._count, kind, file, data)
        if kind == "sync" and file.endswith(WAL) and thread != self.pid and not self._main_waits:
            self._held.append(thread)

    def _leave(self, call: _Pending, result: int) -> None:
        self._count += 1
        if result >= 0:
            self.calls.append(Call(call.begin, self._count, call.kind, call.file, call.data[:result]))

    def _to_be_written(self, shape: Shape, arguments: tuple[int, ...]) -> bytes:
        _, pointer, length, *_ = arguments
        if shape.layout == "flat":
            return self._fetch(pointer, length)
        if shape.layout == "message":  # struct msghdr: name, its length, then the vector and its length
            pointer, length = struct.unpack("=16xQQ", self._fetch(pointer, 32))
        vector = struct.iter_unpack("=QQ", self._fetch(pointer, 16 * length))
        return b"".join(self._fetch(*piece) for piece in vector)

    def _fetch(self, pointer: int, size: int) -> bytes:
        if self._memory < 0:  # the memory after execve(2) is another: there is no call to look at before it
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        return os.pread(self._memory, size, pointer)


def _become(command: list[str], reader: int, writer: int) -> NoReturn:
    """Wait until we are traced, and be the command; if the tracer is gone, nothing."""
    os.close(writer)
    if os.read(reader, 1):
        os.execvp(command[0], command)
    os._exit(1)


def main() -> None:
    notes, *command = sys.argv[1:]
    if not SYSCALLS:
        sys.exit(f"tracer: the system calls of {platform.machine()} are not known here")
    tracer = Tracer(command)

    def hand_on(number: int, _frame: FrameType | None) -> None:
        os.kill(tracer.pid, number)

    signal.signal(signal.SIGTERM, hand_on)
    code = tracer.run()
    with Path(notes).open("w") as file:
        file.writelines(
            json.dumps([*call[:-1], base64.b64encode(call.data).decode()]) + "\n" for call in tracer.calls
        )
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
