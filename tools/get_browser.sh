#!/usr/bin/env bash
# Get what the tests of the page need: a Chromium, and playwright to drive it. Prints the path of the
# browser. Nothing is installed on the machine: what Debian's packages hold is unpacked into .browser/,
# and removing the folder undoes it. Prints nothing, and says why, where no browser can be had.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/.browser

without() { echo "get_browser: $1; tests of the page are skipped" >&2; exit 0; }

# What apt would install, without installing it: that needs package lists, but no root.
unpack() {
    local packages deb
    packages=$(apt-get install -s --no-install-recommends chromium-headless-shell 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p') || true
    if [ -z "$packages" ]; then
        [ "$(id -u)" = 0 ] && apt-get update -qq >&2 || return 1
        packages=$(apt-get install -s --no-install-recommends chromium-headless-shell |
            sed -n 's/^Inst \([^ ]*\).*/\1/p')
    fi
    rm -rf "$folder/debs" "$folder/root"
    mkdir -p "$folder/debs" "$folder/root"
    # With fonts of its own: a bare machine would draw boxes, and each machine other pictures.
    (cd "$folder/debs" && apt-get download -qq -o APT::Sandbox::User=root $(printf '%s\n' $packages fonts-inter fonts-jetbrains-mono | sort -u) >&2)
    for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$folder/root"; done
    rm -rf "$folder/debs"
    mkdir -p "$folder/fonts"
    cat >"$folder/fonts.conf" <<F
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>$folder/root/usr/share/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>$folder/fonts</cachedir>
</fontconfig>
F
    cat >"$folder/chromium" <<'W'
#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
lib=$here/root/usr/lib/$(uname -m)-linux-gnu
export LD_LIBRARY_PATH="$lib:$lib/pulseaudio${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/root/usr/lib/chromium/chromium-headless-shell" "$@"
W
    chmod +x "$folder/chromium"
}

mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9
if ! .venv/bin/python -c 'import axe_playwright_python, playwright' 2>/dev/null; then
    .venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt playwright axe-playwright-python >&2 ||
        without "playwright cannot be installed here"
fi
for found in "${BLACKBOARD_BROWSER:-}" "$(command -v chromium || true)" "$(command -v chromium-browser || true)" \
    "$(command -v google-chrome || true)"; do
    if [ -n "$found" ]; then echo "$found"; exit 0; fi
done
if [ ! -e "$folder/.complete" ]; then
    command -v apt-get >/dev/null || without "no chromium on PATH, and no apt-get to get it with"
    unpack || without "apt-get has no package lists, or reaches no archive (apt-get update)"
    touch "$folder/.complete"
fi
echo "$folder/chromium"
