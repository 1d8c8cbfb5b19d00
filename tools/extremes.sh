#!/usr/bin/env bash
# Run the quick tests at one end of what pyproject.toml admits, in an environment of its own:
#
#   tools/extremes.sh lowest    the versions in constraints-lowest.txt: each floor, .venv-lowest
#   tools/extremes.sh newest    the newest ones that there are now, .venv-newest
set -euo pipefail
cd "$(dirname "$0")/.."
workers=${WORKERS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}

case "${1:-}" in
lowest)
    tools/make_venv.sh .venv-lowest constraints-lowest.txt ".[embedded,fast,memory,postgresql,telemetry,test]"
    # What runs with those versions. Pages and generated files are checked with ours, and Pydantic AI,
    # which asks a provider's model, has higher floors.
    tests=(tests/*/ --ignore tests/unit/sync/test_generated.py --ignore tests/unit/test_telemetry_agents.py
        --ignore tests/unit/cli/test_mcp_sharing.py
        --deselect tests/unit/sync/test_calls.py::test_values_of_a_programs_own_types
        --deselect tests/unit/test_platforms.py::test_what_connects_needs_nothing_that_windows_lacks)
    ;;
newest)
    tools/make_venv.sh .venv-newest /dev/null
    tests=(tests)
    ;;
*) echo "usage: tools/extremes.sh lowest|newest" >&2 && exit 2 ;;
esac
".venv-$1/bin/python" -m pytest -q -p no:cacheprovider -n "$workers" --dist worksteal -m quick "${tests[@]}"
echo "$1: passed"
