#!/usr/bin/env bash
# Looks for known holes in the versions of constraints.txt: `make audit`.
# Ends with 1 if there are some, and with 2 if that cannot be found out from here. pip-audit has an
# environment of its own, so that it changes no version that we test with.
set -euo pipefail
cd "$(dirname "$0")/.."

OWN=.venv/.audit
if [ ! -x "$OWN/bin/pip-audit" ]; then
  .venv/bin/python -m venv "$OWN"
  "$OWN/bin/python" -m pip --disable-pip-version-check install --quiet "pip-audit>=2.9"
fi
FOUND=$(mktemp)
trap 'rm -f "$FOUND"' EXIT
"$OWN/bin/pip-audit" --disable-pip --no-deps --requirement constraints.txt --format json \
  --progress-spinner off --output "$FOUND" 2> >(grep -v "is ignored" >&2) || true
"$OWN/bin/python" - "$FOUND" <<'END'
import json, sys

try:
    told = json.load(open(sys.argv[1]))["dependencies"]
except (OSError, ValueError, KeyError):
    print("the service that knows of holes cannot be reached from here")
    sys.exit(2)
skipped = [each["name"] for each in told if "skip_reason" in each]
holes = [(each["name"], each["version"], hole) for each in told for hole in each.get("vulns", ())]
for name, version, hole in holes:
    print(f"{name} {version}: {hole['id']}, fixed in {', '.join(hole['fix_versions']) or 'none'}")
print(f"{len(told) - len(skipped)} packages looked up, {len(holes)} known holes")
if skipped:
    print(f"{len(skipped)} could not be looked up: {', '.join(skipped)}")
sys.exit(1 if holes else 2 if skipped else 0)
END
