#!/usr/bin/env bash
# Make the vendored files of the page (blackboard/page/vendor/) from their packages: fetched with npm,
# joined by esbuild, checked in with their licences. vendor.json says which version is in which file, and
# the digest of each file; tests/test_page.py compares them. Needed only to take newer versions.
set -euo pipefail
cd "$(dirname "$0")/.."
vendor=$PWD/blackboard/page/vendor
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
echo '{"private":true,"type":"module"}' >"$work/package.json"

base="preact@11.2.0 @preact/signals@2.11.4 @preact/signals-core@1.14.5 htm@3.1.1"
diff="diff@9.0.0"
# codemirror is named by its version: what npm takes for the newest one is CodeMirror 5.
editor="yjs@13.6.33 y-websocket@3.1.0 y-protocols@1.0.7 lib0@0.2.120 y-codemirror.next@0.3.6 codemirror@6.0.2
    @codemirror/state@6.7.6 @codemirror/view@6.43.15 @codemirror/commands@6.11.1 @codemirror/language@6.13.1
    @codemirror/search@6.7.2 @codemirror/autocomplete@6.20.4 @codemirror/lint@6.9.8
    @lezer/common@1.5.5 @lezer/highlight@1.2.5 style-mod@4.1.5 w3c-keyname@2.2.8 crelt@1.0.7 @marijn/find-cluster-break@1.0.4"
npm install --prefix "$work" --no-audit --no-fund --silent esbuild@0.28.2 $base $diff $editor >&2

cat >"$work/preact.mjs" <<'J'
export { render } from 'preact'
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
export { batch, computed, effect, signal, useComputed, useSignal } from '@preact/signals'
export { html } from 'htm/preact'
J
cat >"$work/editor.mjs" <<'J'
export * as Y from 'yjs'
export { WebsocketProvider } from 'y-websocket'
export { yCollab, yUndoManagerKeymap } from 'y-codemirror.next'
export { minimalSetup, EditorView } from 'codemirror'
export { Annotation, EditorState, Prec } from '@codemirror/state'
export { Decoration, ViewPlugin, WidgetType, keymap } from '@codemirror/view'
J
echo "export { diffLines, diffWordsWithSpace } from 'diff'" >"$work/diff.mjs"

bundle() { # NAME PACKAGE@VERSION...
    local name=$1 package folder; shift
    (cd "$work" && npx esbuild "$name.mjs" --bundle --minify --format=esm --legal-comments=none \
        --log-level=error --outfile="$name.js")
    cp "$work/$name.js" "$vendor/$name.js"
    : >"$vendor/$name.LICENSES.txt"
    for package in "$@"; do
        folder=$work/node_modules/${package%@*}
        { echo "--- $package"; echo; cat "$folder"/LICENSE*; echo; } >>"$vendor/$name.LICENSES.txt"
    done
    PACKAGES="$*" NODE_MODULES="$work/node_modules" node --input-type=module - "$vendor" "$name" <<'J'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
const [folder, name] = process.argv.slice(2)
const path = `${folder}/vendor.json`
const known = existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {}
const packages = {}
for (const named of process.env.PACKAGES.split(' ')) {
  const at = named.lastIndexOf('@')
  const told = JSON.parse(readFileSync(`${process.env.NODE_MODULES}/${named.slice(0, at)}/package.json`, 'utf8'))
  if (told.version !== named.slice(at + 1)) throw new Error(`${named} is ${told.version}`)
  packages[told.name] = { version: told.version, licence: told.license }
}
const sha256 = createHash('sha256').update(readFileSync(`${folder}/${name}.js`)).digest('hex')
known[`${name}.js`] = { sha256, packages }
writeFileSync(path, JSON.stringify(known, null, 2) + '\n')
J
    echo "$name.js: $(wc -c <"$vendor/$name.js") bytes, $(gzip -9c "$vendor/$name.js" | wc -c) compressed" >&2
}

bundle preact $base
bundle diff $diff
bundle editor $editor
