#!/bin/sh
# Make the keys of this installation, in the folder that is named. What is there already stays.
set -eu
umask 077
cd "$1"

random() { # BYTES
    od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'
}

# Whole or not at all: another container must not read a half.
keep() { # FILE MODE CONTENT
    if [ ! -s "$1" ]; then
        printf '%s' "$3" >"$1.new"
        chmod "$2" "$1.new"
        mv "$1.new" "$1"
    fi
}

# Only the service reads its own; the others run as users of their own, so everybody may read those.
mkdir -p service postgres s3
chmod 700 service
chmod 755 postgres s3
keep service/secret 600 "$(random 32)"
keep service/signing_key 600 "$(random 32)"
keep postgres/password 644 "$(random 32)"
keep service/archive_url 600 "postgresql://blackboard:$(cat postgres/password)@postgres:5432/blackboard"
keep s3/access_key 644 blackboard
keep s3/secret_key 644 "$(random 20)"
