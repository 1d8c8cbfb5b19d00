"""TLS on the command line: what is trusted comes from an option, a variable or a context."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Running, Shell
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signed the service's certificate."""
    return Authority(tmp_path)


@pytest.fixture
def service(shell: Shell, authority: Authority) -> Iterator[Running]:
    """A service with a certificate that this machine does not trust by itself."""
    pair = authority.issue()
    with shell.service("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)) as running:
        yield running


def test_what_is_trusted_is_given_or_remembered(
    shell: Shell, service: Running, authority: Authority
) -> None:
    """By option, by variable, by the context in use; and without any of them the error says so."""
    assert service.url.startswith("wss://")
    refused = shell.run("ls", code=6).stderr
    assert "certificate is not accepted" in refused
    assert "--ca FILE" in refused
    ca = str(authority.ca)
    shell.run("set", "public/a", "1", "--ca", ca)
    shell.environ["BLACKBOARD_CA"] = ca
    assert shell.out("get", "public/a").strip() == "1"
    checks = {found["check"]: found for found in shell.json("doctor")["findings"]}
    assert {checks[name]["status"] for name in ("/healthz", "/readyz", "access")} == {"ok"}
    del shell.environ["BLACKBOARD_CA"]
    token = shell.out("token", "create", "researcher")
    adding = ["context", "add", "team", "--url", service.url, "--token", "-", "--use"]
    shell.run(*adding, "--ca", ca, given=token)
    assert shell.out("get", "public/a").strip() == "1"
    assert shell.json("context", "ls")["contexts"]["team"]["ca"] == ca


def test_an_address_that_the_certificate_lacks_is_not_announced(
    shell: Shell, authority: Authority
) -> None:
    """But a name that it has; commands that find the service by themselves then accept it."""
    pair = authority.issue(hosts=("board.example.org", "localhost"))
    shell.environ["BLACKBOARD_CA"] = str(authority.ca)
    with shell.service("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)) as service:
        assert service.url == f"wss://localhost:{service.port}"
        shell.run("set", "public/a", "1")


def test_doctor_says_what_is_wrong_with_a_certificate(shell: Shell, service: Running) -> None:
    """In words, and once: nothing else about the service can be found out."""
    checks = {
        found["check"]: found
        for found in json.loads(shell.run("doctor", "--json", code=1).stdout)["findings"]
    }
    assert "certificate is not accepted" in checks["/healthz"]["text"]
    assert service.url in checks["/healthz"]["text"]


def test_a_certificate_to_trust_needs_an_address_with_tls(
    shell: Shell, authority: Authority
) -> None:
    """It would be of no use, and the token would travel in the clear."""
    arguments = ["ls", "--url", "ws://127.0.0.1:1", "--ca", str(authority.ca)]
    assert "is not encrypted" in shell.run(*arguments, code=2).stderr
    missing = ["ls", "--url", "wss://127.0.0.1:1", "--ca", "nowhere.pem"]
    assert "nowhere.pem" in shell.run(*missing, code=2).stderr
    assert "--data" in shell.run("ls", "--data", "d", "--ca", "ca.pem", code=2).stderr
