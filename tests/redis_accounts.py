"""The account of docs/howto/deploy_redis.md, made on a real server by the lines of the page."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from redis import Redis

from tests.source_tree import ROOT

PASSWORD = "canary-password-5d1e"
_PAGE = ROOT / "docs/howto/deploy_redis.md"
_LINE = re.compile(r"^    (ACL SETUSER blackboard .*)$", re.MULTILINE)


def acl_lines(*, cluster: bool = False) -> Sequence[Sequence[str]]:
    """The commands that make the account, word by word."""
    found = _LINE.findall(_PAGE.read_text(encoding="utf-8"))
    lines = [line.replace("PASSWORD", PASSWORD).split() for line in found]
    return [line for line in lines if cluster or "+cluster|slots" not in line]


def make_account(url: str, *changes: str, cluster: bool = False) -> str:
    """Make the account, with `changes` of its rights behind it; returns the URL to come with it."""
    with Redis.from_url(url) as client:
        for line in acl_lines(cluster=cluster):
            client.execute_command(*line)
        if changes:
            client.execute_command("ACL", "SETUSER", "blackboard", *changes)
    parts = urlsplit(url)
    return parts._replace(netloc=f"blackboard:{PASSWORD}@{parts.netloc}").geturl()
