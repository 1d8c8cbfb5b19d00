#!/usr/bin/env bash
# Write constraints.txt: what a new environment gets from the newest versions that we admit.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh" constraints.txt.new' EXIT

tools/make_venv.sh "$fresh/venv" /dev/null
{
    echo "# The versions that everything is tested with; tools/make_venv.sh installs exactly these."
    echo "# They bind nobody else: users get what the ranges in pyproject.toml admit."
    echo "# Refresh: \`make constraints\`, then \`make test-all\`, then commit this file."
    "$fresh/venv/bin/python" -m pip --disable-pip-version-check freeze --exclude-editable |
        grep -E '^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*$' | LC_ALL=C sort --ignore-case
} >constraints.txt.new
mv constraints.txt.new constraints.txt
