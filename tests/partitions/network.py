"""A network of hosts on this machine, each a network namespace, and ways to cut it.

    with Network(("ada", "service", "redis")) as network:
        network.cut(["ada"], ["service"])
        network.heal()

Each host has one address and one cable (a veth pair) to a router between them. A cut is a rule of
that router which drops packets and tells nobody, as a firewall does that lost its state. Nothing of
the machine's own network changes, and no root is needed where users may make namespaces.
"""

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import TracebackType
from typing import Final, Self

from tests.hosts import Host

_PROGRAMS: Final = ("ip", "nsenter", "unshare")
_ROUTER: Final = "10.77.0.254"
_WAITS: Final = ("sh", "-c", "echo; read _")
"""Holds a namespace until its standard input is closed, however we end."""
_OWN: Final = ("unshare", "--user", "--map-root-user", "--net")
_ENTER: Final = ("nsenter", "--user", "--preserve-credentials", "--net", "--target")
_FORWARD: Final = "echo 1 >/proc/sys/net/ipv4/ip_forward"
_RULE: Final = "ip rule add from 10.0.0.1 to 10.0.0.2 ipproto tcp sport 1 blackhole"


@cache
def why_not() -> str | None:
    """Why there can be no such network on this machine; None where there can."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"there is no program {' or '.join(missing)} here (iproute2, util-linux)"
    tried = [
        ("to make a network namespace", "true"),
        ("to make cables", "ip link add a0 type veth peer name b0"),
        ("to drop packets", _RULE),
        ("to forward packets", _FORWARD),
    ]
    for what, command in tried:
        done = subprocess.run([*_OWN, "sh", "-c", command], capture_output=True, check=False)
        if done.returncode != 0:
            return f"not allowed {what} here: {done.stderr.decode().strip()}"
    return None


@dataclass(frozen=True, slots=True)
class _Namespace:
    """A network namespace: the process that holds it, and how commands are run in it."""

    pid: int
    enter: tuple[str, ...]

    def run(self, *command: str, given: str = "") -> None:
        """Run a command in it. Errors: `CalledProcessError`."""
        subprocess.run([*self.enter, *command], input=given.encode(), check=True)

    def ip(self, lines: Iterable[str]) -> None:
        """Carry out lines of iproute2, one after the other."""
        self.run("ip", "-batch", "-", given="\n".join(lines) + "\n")


class Network:
    """Hosts by name; all of them reach each other until something is cut."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._stack = ExitStack()
        self._hosts: dict[str, Host] = {}
        self._rules: list[str] = []
        self._unplugged: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            self._router = self._hold(_OWN)
            self._router.run("sh", "-c", _FORWARD)
            for number, name in enumerate(self._names, 1):
                self._add(name, f"10.77.0.{number}", f"cable{number}")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def cut(
        self, some: Iterable[str], others: Iterable[str], *, only_answers: bool = False
    ) -> None:
        """Drop every packet between `some` and `others`, or only those to `some`, silently."""
        ways = list(product(others, some))
        if not only_answers:
            ways += [(target, source) for source, target in ways]
        self._add_rules(
            f"from {self[source].address} to {self[target].address} blackhole"
            for source, target in ways
        )

    def cut_connections(self, client: str, service: str) -> None:
        """Drop what comes from the ports that a client uses now, as a firewall does that forgot
        them; others of its ports reach the service."""
        used = self._ports(client)
        source, target = self[client].address, self[service].address
        rules = [f"from {source} to {target} ipproto tcp sport {port} blackhole" for port in used]
        self._add_rules(rules)

    def unplug(self, name: str) -> None:
        """Take the cable out of a host: it has no link, and the router says that it is away."""
        self._router.ip([f"link set {self._cable(name)} down"])
        self._unplugged.append(name)

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        plugged = [f"link set {self._cable(name)} up" for name in self._unplugged]
        self._router.ip([f"rule del {rule}" for rule in self._rules] + plugged)
        self._rules.clear()
        self._unplugged.clear()

    def _add_rules(self, rules: Iterable[str]) -> None:
        added = list(rules)
        self._router.ip(f"rule add {rule}" for rule in added)
        self._rules += added

    def _ports(self, name: str) -> set[int]:
        """The local ports of the TCP connections of a host."""
        table = [*self[name].enter, "cat", "/proc/net/tcp"]
        lines = subprocess.run(
            table, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        return {int(line.split()[1].rpartition(":")[2], 16) for line in lines[1:]}

    def _cable(self, name: str) -> str:
        return f"cable{self._names.index(name) + 1}"

    def _add(self, name: str, address: str, cable: str) -> None:
        inside = self._hold((*self._router.enter, "unshare", "--net"))
        self._router.ip(
            [
                f"link add {cable} type veth peer name wire netns {inside.pid}",
                f"address add {_ROUTER} peer {address} dev {cable}",
                f"link set {cable} up",
            ]
        )
        inside.ip(
            [
                "link set lo up",
                f"address add {address} peer {_ROUTER} dev wire",
                "link set wire up",
                f"route add default via {_ROUTER}",
            ]
        )
        self._hosts[name] = Host(address, inside.enter)

    def _hold(self, made_by: Sequence[str]) -> _Namespace:
        """A new namespace, until the end."""
        holder = subprocess.Popen(
            [*made_by, *_WAITS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._stack.callback(_release, holder)
        assert holder.stdout is not None
        holder.stdout.readline()
        enter = (
            "nsenter",
            "--user",
            "--preserve-credentials",
            "--net",
            "--target",
            str(holder.pid),
        )
        return _Namespace(holder.pid, enter)


def _release(holder: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        holder.communicate()
