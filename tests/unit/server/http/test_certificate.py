"""Under which name a service is announced, by real certificates."""

from pathlib import Path

import pytest

from blackboard.server.http.serve import host_for_clients
from tests.certificates import Authority


@pytest.mark.parametrize(
    ("host", "named", "let_in", "told"),
    [
        ("127.0.0.1", ("board.example.org", "127.0.0.1"), (), "127.0.0.1"),
        ("::1", ("localhost", "::1"), (), "::1"),
        ("0.0.0.0", ("board.example.org", "b.example.org"), (), "board.example.org"),
        ("127.0.0.1", ("board.example.org", "localhost"), ("localhost",), "localhost"),
        ("127.0.0.1", ("board.example.org",), ("localhost", "127.0.0.1"), "127.0.0.1"),
        ("0.0.0.0", ("*.example.org", "10.0.0.7"), (), "0.0.0.0"),
        ("board.example.org", ("*.example.org", "example.org"), (), "board.example.org"),
    ],
)
def test_an_address_gives_way_to_a_name_of_the_certificate(
    tmp_path: Path, host: str, named: tuple[str, ...], let_in: tuple[str, ...], told: str
) -> None:
    """If the certificate lacks the address, and the service accepts requests for the name."""
    pair = Authority(tmp_path).issue(hosts=named)
    assert host_for_clients(host, pair.cert, let_in) == told


def test_without_names_the_address_stays(tmp_path: Path) -> None:
    """An authority's own certificate names no host; a file may hold none, or not be there."""
    empty = tmp_path / "empty.pem"
    empty.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for file in (Authority(tmp_path).ca, empty, tmp_path / "missing.pem"):
        assert host_for_clients("127.0.0.1", file, ()) == "127.0.0.1"
