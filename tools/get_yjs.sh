#!/usr/bin/env bash
# Get unmodified Yjs clients for the tests into .yjs/, with npm. Nothing is installed elsewhere, and
# removing the folder undoes it. Does nothing if they are there, or if there is no node.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/.yjs wanted=tests/acceptance/yjs

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "get_yjs: no node and npm on PATH; tests with Yjs clients are skipped" >&2
    exit 0
fi
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
# Only if it is another one: a test beside this one may be reading it.
cmp -s "$wanted/client.mjs" "$folder/client.mjs" || cp "$wanted/client.mjs" "$folder/"
if ! cmp -s "$wanted/package.json" "$folder/package.json" || [ ! -e "$folder/.complete" ]; then
    rm -rf "$folder/.complete" "$folder/node_modules"
    cp "$wanted/package.json" "$folder/"
    npm install --prefix "$folder" --no-audit --no-fund --no-package-lock --silent >&2
    touch "$folder/.complete"
fi
