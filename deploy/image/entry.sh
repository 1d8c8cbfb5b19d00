#!/bin/sh
# `blackboard` with its arguments. Settings that hold a password can be given as files: where
# NAME_FILE names one, its content becomes NAME.
set -eu
for name in AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY BLACKBOARD_ARCHIVE BLACKBOARD_ENGINE \
    BLACKBOARD_LOCK_MASTERS; do
    eval "file=\${${name}_FILE:-}"
    if [ -n "$file" ]; then
        value=$(cat "$file")
        export "$name=$value"
        unset "${name}_FILE"
    fi
done
exec blackboard "$@"
