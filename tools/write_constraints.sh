#!/usr/bin/env bash
# Write constraints.txt, what a new environment gets from the newest versions that we admit, and
# constraints-lowest.txt, what it gets from the lowest ones (tools/lowest_constraints.py).
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh" constraints.txt.new constraints-lowest.txt.new' EXIT

pinned() { # an environment: what is installed in it, but for our own
    "$1/bin/python" -m pip --disable-pip-version-check freeze --exclude-editable |
        grep -E '^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*$' | LC_ALL=C sort --ignore-case
}

tools/make_venv.sh "$fresh/newest" /dev/null
# What tools/get_browser.sh adds where there is a browser.
"$fresh/newest/bin/python" -m pip --disable-pip-version-check install --quiet playwright axe-playwright-python
{
    echo "# The versions that everything is tested with; tools/make_venv.sh installs exactly these."
    echo "# They bind nobody else: users get what the ranges in pyproject.toml admit."
    echo "# Refresh: \`make constraints\`, then \`make test-all\`, then commit this file."
    pinned "$fresh/newest"
} >constraints.txt.new

"$fresh/newest/bin/python" tools/lowest_constraints.py >"$fresh/floors"
tools/make_venv.sh "$fresh/lowest" "$fresh/floors" ".[embedded,fast,memory,postgresql,telemetry,test]"
{
    echo "# The lowest versions that pyproject.toml admits, which \`make lowest\` runs the quick tests with."
    echo "# What has no floor there is as new as they let it be. \`make constraints\` writes this file."
    pinned "$fresh/lowest"
} >constraints-lowest.txt.new
mv constraints.txt.new constraints.txt
mv constraints-lowest.txt.new constraints-lowest.txt
