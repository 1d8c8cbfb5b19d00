"""Ends with 0 if the service of this container answers; else with 1 and the reason.

It asks `/healthz`, not `/readyz`: a restart does not bring back an engine that is away.
"""

import os
import ssl
import sys
import tomllib
import urllib.request
from pathlib import Path

TIMEOUT_S = 4


def has_tls() -> bool:
    """Whether the settings of the service name a certificate."""
    config = os.environ.get("BLACKBOARD_CONFIG")
    written = tomllib.loads(Path(config).read_text(encoding="utf-8")) if config else {}
    return bool(os.environ.get("BLACKBOARD_TLS_CERT") or written.get("tls_cert"))


def main() -> None:
    """Ask once."""
    tls = has_tls()
    url = f"http{'s' * tls}://127.0.0.1:{os.environ['BLACKBOARD_PORT']}/healthz"
    context = ssl.create_default_context()
    # Its certificate has the name that clients use; this connection does not leave the machine.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # The variables of a proxy, which a container may have for its object store, do not count.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        opener.open(url, timeout=TIMEOUT_S).close()
    except OSError as error:
        sys.exit(f"{url}: {error}")


if __name__ == "__main__":
    main()
