#!/usr/bin/env bash
# Make an environment with everything that development needs, at the versions in constraints.txt.
# Usage: tools/make_venv.sh [folder [constraints-file [what]]]
# By default they are .venv, constraints.txt and ".[dev]".
# PYTHON names the interpreter; by default the first of python3, python3.13 ... that is new enough.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv}
constraints=${2:-constraints.txt}
what=${3:-.[dev]}

say() { echo "make_venv: $1" >&2; }

fail() {
    say "$1"
    exit 1
}

new_enough() {
    command -v "$1" >/dev/null &&
        "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "needs Python 3.11 or newer; name one with PYTHON=..."
}

# Debian ships venv in a package of its own; without it `python3 -m venv` stops half-way.
can_make_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

python=$(find_python)
if ! can_make_environments "$python"; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -qq "$package" >&2 ||
            { apt-get -qq update >&2 && apt-get install -y -qq "$package" >&2; } || true
    fi
    can_make_environments "$python" ||
        fail "$python cannot make environments; run: sudo apt-get install $package"
fi

if ! "$folder/bin/python" -c 'import pip' 2>/dev/null; then
    say "creating $folder with $("$python" --version)"
    rm -rf "$folder"
    "$python" -m venv "$folder"
fi

# What pip has to say is shown if it fails: its warnings are many, and about the machine.
install() {
    local told
    told=$("$folder/bin/python" -m pip --disable-pip-version-check install --quiet \
        --constraint "$constraints" "$@" 2>&1) || { echo "$told" >&2 && fail "pip failed: $*"; }
}

count=$(grep -c == "$constraints" || true)
say "installing the build tools"
# At pinned versions, too: an isolated build would take the newest ones.
install hatchling editables
say "installing packages ($count are pinned in $constraints): this takes a minute or two"
install --no-build-isolation --editable clients/python --editable "$what"
say "$folder is ready"
