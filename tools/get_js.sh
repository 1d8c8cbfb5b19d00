#!/usr/bin/env bash
# Get what checks the JavaScript client (TypeScript, Yjs) into .js/, with npm. Nothing is installed
# elsewhere, and removing the folder undoes it. Does nothing if it is there, or if there is no node.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/.js wanted=clients/js/package.json

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "get_js: no node and npm on PATH; tests of the JavaScript client are skipped" >&2
    exit 0
fi
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
if ! cmp -s "$wanted" "$folder/package.json" || [ ! -e "$folder/.complete" ]; then
    rm -rf "$folder/.complete" "$folder/node_modules"
    cp "$wanted" "$folder/"
    npm install --prefix "$folder" --no-audit --no-fund --no-package-lock --ignore-scripts --silent >&2
    touch "$folder/.complete"
fi
