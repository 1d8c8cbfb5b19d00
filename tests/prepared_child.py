"""What tests/prepared.py starts: imports `blackboard`, and forks for each program.

A fork becomes the program: it leaves the loop below with its arguments, and ends as `python -m`
would.
"""

import atexit
import gc
import json
import os
import runpy
import socket
import struct
import sys
from contextlib import suppress
from importlib import import_module

from typer.main import get_command

from blackboard.cli.main import app

PREPARED = (
    "aiosqlite",
    "anyio._backends._asyncio",
    "uvloop",
    "blackboard.cli.render",
    "blackboard.cli.session",
    "blackboard.client.remote.link",
    "blackboard.embedded",
    "blackboard.server.http.serve",
    "blackboard.server.settings",
)
"""What programs import when they need it."""
NUMBER = struct.Struct("!i")


def serve(requests: socket.socket) -> str:
    """Fork for each request. Returns, in a process that shall run it, the name of a module."""
    while True:
        _, files, _, _ = socket.recv_fds(requests, 64, 4)
        _reap()
        if not files:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            return run(socket.socket(fileno=files[0]), files[1:])
        for file in files:
            os.close(file)


def run(connection: socket.socket, streams: list[int]) -> str:
    """Fork once more; that process sends its id, and this one, when it has ended, its exit code.

    Returns in that process.
    """
    with connection, connection.makefile("rb") as reader:
        command, folder, environ, leads = json.loads(reader.read())
        process = os.fork()
        if process:
            for stream in streams:  # who reads its output waits for the end of it
                os.close(stream)
            _, status = os.waitpid(process, 0)
            with suppress(BrokenPipeError):  # nobody waits for it any more
                connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os._exit(0)
        if leads:
            os.setsid()
        connection.sendall(NUMBER.pack(os.getpid()))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, folder)
    sys.argv[1:] = command[1:]
    return str(command[0])


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def ended_by(module: str) -> int | None:
    """Run it as `python -m` would; returns its exit code, unless it has to be made of an error."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        raise
    return 0


def leave() -> None:
    """Exit without taking the interpreter apart, which would copy all memory that forks share.

    It is the last that is done at the exit of a program. One that can not write its output ends as
    the interpreter decides.
    """
    if code is not None:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


code: int | None = None
atexit.register(leave)  # before the others: what was registered first runs last
for name in PREPARED:
    import_module(name)
get_command(app)  # typer imports more for it
gc.freeze()
code = ended_by(serve(socket.socket(fileno=int(sys.argv[1]))))
