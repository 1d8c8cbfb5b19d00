#!/usr/bin/env bash
# Run the quick checks under every Python that the package supports and this machine has.
# Each gets an environment of its own, .venv-3.12 and so on. A version that is missing is told.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
for version in 3.11 3.12 3.13; do
    python=python$version
    # A shim of pyenv is there for versions that it would not run.
    if ! "$python" -c 'import sys' 2>/dev/null; then
        echo "versions: there is no $python on this machine: NOT CHECKED"
        continue
    fi
    echo "versions: $python"
    PYTHON=$python tools/make_venv.sh ".venv-$version"
    ".venv-$version/bin/python" -m pytest -q -p no:cacheprovider tests/test_layers.py \
        tests/test_tidy.py tests/unit tests/simulation -m "not redis and not slow" || failed=1
done
exit $failed
