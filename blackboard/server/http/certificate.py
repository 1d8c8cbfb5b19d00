"""By which name clients reach a service over TLS: its certificate must have it."""

from collections.abc import Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509

_BOTH: Final = (x509.DNSName, x509.IPAddress)


def host_for_clients(host: str, certificate: Path, let_in: Collection[str]) -> str:
    """`host`, which the service listens at, or the first name in `certificate` that serves instead.

    A name replaces only an address that the certificate does not have. It must be one that the
    service lets in (`let_in`, empty = any), and stand there in full: what `*` is, nobody knows.
    `certificate` is a PEM file; nothing is known of one that cannot be understood.
    """
    try:
        address = ip_address(host)
    except ValueError:  # a name, by which people reach it already
        return host
    names = _names_in(certificate)
    if address in names:
        return host
    good = (name for name in names if isinstance(name, str) and "*" not in name)
    return next((name for name in good if not let_in or name in let_in), host)


def _names_in(certificate: Path) -> "list[object]":
    """Names as text and addresses of the first certificate in a file, in its order."""
    try:
        own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    return [name.value for name in found if isinstance(name, _BOTH)]
