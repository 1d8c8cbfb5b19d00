#!/usr/bin/env bash
# Run the tests under every Python that the package supports and this machine has: those of
# `make check`, or with WHOLE=1 all of them. VERSIONS="3.13" picks. Each version gets an environment
# of its own, .venv-3.13 and so on; a version that is missing is told.
set -euo pipefail
cd "$(dirname "$0")/.."
workers=${WORKERS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
[ -n "${WHOLE:-}" ] && tier="quick or not quick" || tier=quick

is_python() { # a file, a version
    [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]
}

# On PATH, or among those that pyenv built, the newest first. On PATH pyenv puts shims, which also
# stand for versions that they refuse to run.
find_python() {
    local candidate
    for candidate in "python$1" $(printf '%s\n' \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"python$1" | sort -rV); do
        if is_python "$candidate" "$1"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

check() { # a version; how it went is left in $verdict
    local python
    python=$(find_python "$1") || { verdict="NOT CHECKED: no python$1 on this machine" && return; }
    echo "versions: $1 is $python"
    PYTHON=$python tools/make_venv.sh ".venv-$1" &&
        ".venv-$1/bin/python" -m pytest -q -p no:cacheprovider \
            -n "$workers" --dist worksteal -m "$tier" &&
        verdict=passed || verdict=FAILED
}

verdicts=()
for version in ${VERSIONS:-3.11 3.12 3.13}; do
    check "$version"
    verdicts+=("versions: $version $verdict")
done
printf '%s\n' "${verdicts[@]}"
[[ ${verdicts[*]} != *FAILED* ]]
