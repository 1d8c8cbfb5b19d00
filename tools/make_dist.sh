#!/usr/bin/env bash
# Build everything that a release publishes, into dist/ or the folder that is named:
#
#   python/    a wheel and an sdist of each distribution, checked by twine
#   npm/       the packed JavaScript client, if npm is here
#   notes.md   what CHANGELOG.md says of this version
#
# BLACKBOARD_REPOSITORY is the address at which the repository is published: links on the pages of the
# indexes go there. Without it, they have none. With TAG, it fails unless that is the version's tag.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-dist}
mkdir -p "$target"
target=$(cd "$target" && pwd)
python=.venv/bin/python
version=$(sed -nE 's/^version = "(.*)"$/\1/p' pyproject.toml)

say() { echo "make_dist: $1" >&2; }

if [ "${TAG:-v$version}" != "v$version" ]; then
    say "the tag is $TAG, and the version is $version"
    exit 1
fi

# twine has an environment of its own, so that it changes no version that we test with.
checked_by_twine() {
    local own=.venv/.twine
    if [ ! -x "$own/bin/twine" ]; then
        "$python" -m venv "$own"
        "$own/bin/python" -m pip --disable-pip-version-check install --quiet "twine>=6.1"
    fi
    "$own/bin/twine" check --strict "$@"
}

# In a copy: npm writes the types beside the source, and the address belongs into no checkout.
pack_for_npm() {
    local work
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    cp -r clients/js/. "$work"
    ln -s "$PWD/.js/node_modules" "$work/node_modules"
    cd "$work"
    if [ -n "${BLACKBOARD_REPOSITORY:-}" ]; then
        npm pkg set repository.type=git repository.directory=clients/js \
            repository.url="git+$BLACKBOARD_REPOSITORY.git" homepage="$BLACKBOARD_REPOSITORY"
    fi
    npm pack --silent --pack-destination "$target/npm" >/dev/null
}

rm -rf "$target/python" "$target/npm"
mkdir -p "$target/python" "$target/npm"
say "building version $version"
for folder in clients/python .; do
    (cd "$folder" && "$OLDPWD/$python" -m hatchling build -t wheel -t sdist -d "$target/python" >/dev/null)
done
checked_by_twine "$target"/python/*
tools/get_js.sh
if [ -e .js/.complete ]; then
    (pack_for_npm)
else
    say "NOT BUILT: the npm package, for which node and npm are needed"
fi
# From the heading of this version to the next one.
awk -v heading="## $version" 'index($0, heading) == 1 { on = 1; next } /^## / { on = 0 } on' \
    CHANGELOG.md >"$target/notes.md"
(cd "$target" && find python npm -type f | LC_ALL=C sort)
