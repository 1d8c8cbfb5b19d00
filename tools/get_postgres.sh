#!/usr/bin/env bash
# See that there is a PostgreSQL server for the tests: one on PATH, one where Debian puts it, or one
# that apt-get installs if this is root. Nothing is left running.
# Never fails: without it the tests that need it are skipped, and say so.
set -euo pipefail

has_server() {
    command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1
}

if has_server; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "get_postgres: no PostgreSQL server; to test with one: sudo apt-get install postgresql" >&2
    exit 0
fi
# The package would make a cluster and start it; a policy that says no prevents that.
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
install_server() { apt-get install -y -qq --no-install-recommends postgresql >/dev/null; }
install_server || { apt-get -qq update >&2 && install_server; } ||
    echo "get_postgres: apt-get cannot install postgresql; its tests are skipped" >&2
