#!/bin/sh
# Make the bucket that is named, at AWS_ENDPOINT_URL, if it is not there.
set -eu
url="$AWS_ENDPOINT_URL/$1"

# The key goes in by standard input: other users of a machine can read the arguments of a program.
signed() {
    printf 'user = "%s:%s"\n' "$(cat "$AWS_ACCESS_KEY_ID_FILE")" "$(cat "$AWS_SECRET_ACCESS_KEY_FILE")" |
        curl --config - --fail --silent --output /dev/null --max-time 30 \
            --aws-sigv4 "aws:amz:$AWS_REGION:s3" "$@"
}

signed --head "$url" || signed --show-error --request PUT "$url"
