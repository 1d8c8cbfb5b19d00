#!/usr/bin/env bash
# Test the adapters whose framework is not in .venv, each in an environment of its own (.frameworks/).
#
#   tools/test_frameworks.sh [NAME...]        all that are below tests/frameworks/, or those named
#   tools/test_frameworks.sh --pin [NAME...]  choose the newest versions that we admit, and write them down
#   tools/test_frameworks.sh --make [NAME...] only make the environments that are missing or outdated
#
# NAME is an extra of pyproject.toml, and a folder of tests/frameworks/: its requirements.in says what
# the tests need beside that extra, its requirements.txt has the version of every package.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "test_frameworks: $1" >&2; }

# pip's warnings are many, and about the machine: shown if it fails.
install() {
    local python=$1 told
    shift
    told=$("$python" -m pip --disable-pip-version-check install --quiet "$@" 2>&1) ||
        { echo "$told" >&2 && say "pip failed: $*" && exit 1; }
}

make_environment() {
    local name=$1 place=$2 constraints=$3
    rm -rf "$place"
    .venv/bin/python -m venv "$place"
    install "$place/bin/python" --constraint constraints.txt hatchling editables
    install "$place/bin/python" --no-build-isolation --constraint "$constraints" \
        --editable clients/python --editable ".[$name]" --requirement "tests/frameworks/$name/requirements.in"
}

pin() {
    local name=$1 folder=tests/frameworks/$1
    say "choosing versions for $name"
    make_environment "$name" ".frameworks/$name" /dev/null
    {
        echo "# What \`make test-frameworks\` tests the extra $name with; tools/test_frameworks.sh --pin $name wrote it."
        ".frameworks/$name/bin/python" -m pip --disable-pip-version-check freeze --exclude-editable |
            grep -E '^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*$' | LC_ALL=C sort --ignore-case
    } >"$folder/requirements.txt"
    cat pyproject.toml "$folder"/requirements.* >".frameworks/$name/.installed"
}

make_if_outdated() {
    local name=$1 folder=tests/frameworks/$1 place=.frameworks/$1
    if ! cat pyproject.toml "$folder"/requirements.* | cmp --quiet - "$place/.installed"; then
        say "making $place"
        make_environment "$name" "$place" "$folder/requirements.txt"
        cat pyproject.toml "$folder"/requirements.* >"$place/.installed"
    fi
}

run() {
    local name=$1 folder=tests/frameworks/$1 place=.frameworks/$1
    local module=blackboard/integrations/${name//-/_}
    make_if_outdated "$name"
    say "$name: types"
    .venv/bin/mypy --strict --python-executable "$place/bin/python" "$folder"/*.py \
        "$([ -d "$module" ] && echo "$module" || echo "$module.py")"
    say "$name: tests"
    "$place/bin/pytest" -q -c tests/frameworks/pytest.ini --rootdir . --confcutdir tests/frameworks "$folder"
}

verb=run
case "${1:-}" in
--pin) verb=pin && shift ;;
--make) verb=make_if_outdated && shift ;;
esac
mkdir -p .frameworks
names=("$@")
if [ $# = 0 ]; then
    for file in tests/frameworks/*/requirements.in; do
        [ -e "$file" ] && names+=("$(basename "$(dirname "$file")")")
    done
fi
for name in "${names[@]}"; do
    [ -e "tests/frameworks/$name/requirements.in" ] || { say "there is no tests/frameworks/$name" && exit 2; }
    "$verb" "$name"
done
