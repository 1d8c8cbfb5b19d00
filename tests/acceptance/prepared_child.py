"""What tests/acceptance/prepared.py starts: imports `blackboard`, and forks for each command.

A fork becomes the program: it leaves the loop below with its arguments, and ends as `python -m
blackboard` would.
"""

import gc
import json
import os
import socket
import struct
import sys

import blackboard.cli.render
import blackboard.cli.session
import blackboard.client.remote.link
import blackboard.embedded  # noqa: F401  commands import them when they need them
from blackboard.cli import main

NUMBER = struct.Struct("!i")


def serve(requests: socket.socket) -> None:
    """Fork for each request. Returns in a process that shall run its command."""
    while True:
        _, files, _, _ = socket.recv_fds(requests, 64, 4)
        _reap()
        if not files:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            run(socket.socket(fileno=files[0]), files[1:])
            return
        for file in files:
            os.close(file)


def run(connection: socket.socket, streams: list[int]) -> None:
    """Fork once more, and answer with the process id and the exit code of that process.

    Returns in that process.
    """
    with connection, connection.makefile("rb") as reader:
        arguments, folder, environ = json.loads(reader.read())
        process = os.fork()
        if process:
            connection.sendall(NUMBER.pack(process))
            _, status = os.waitpid(process, 0)
            connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, folder)
    sys.argv[1:] = arguments


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


gc.freeze()
serve(socket.socket(fileno=int(sys.argv[1])))
main.app(prog_name="blackboard")
