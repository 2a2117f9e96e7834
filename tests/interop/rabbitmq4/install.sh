#!/bin/bash
# RabbitMQ of a Debian release and its dependencies, unpacked into a folder that is used with chroot; installed packages stay as they
# are.  Requires root.  Mirror and key are those of the machine's apt configuration.
#   install.sh [SUITE [DIR]]      SUITE: bullseye (3.8.9), bookworm (3.10.8), trixie (4.0.5, the default) or sid (4.3)
#                                 DIR/root is the chroot; by default ~/.cache/brokerstore/rabbitmq-SUITE, rabbitmq-4.0 for trixie
set -euo pipefail
SUITE=${1:-trixie}
DIR=${2:-$HOME/.cache/brokerstore/rabbitmq-${SUITE/#trixie/4.0}}
"${PYTHON:-python3}" -m pip install -q pika
[ ! -s "$DIR/version" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "chroot and mknod need root" >&2; exit 1; }
mkdir -p "$DIR"/apt/{lists/partial,cache/archives/partial} "$DIR/root"
read -r MIRROR KEY < <(python3 - <<'PY'
import glob, re

found = []
for file in sorted(glob.glob("/etc/apt/sources.list.d/*.sources")):
    for stanza in re.split(r"\n\s*\n", open(file).read()):
        field = {name.lower(): value.strip() for name, value in re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.M)}
        if re.search(r"/debian/?$", field.get("uris", "").split(" ")[0]):
            found.append((field["uris"].split()[0], field.get("signed-by", "")))
for file in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*.list"))]:
    try:
        lines = open(file).read()
    except OSError:
        continue
    for options, address in re.findall(r"^\s*deb\s+(?:\[(.*?)\]\s+)?(\S+/debian/?)\s", lines, re.M):
        key = re.search(r"signed-by=(\S+)", options)
        found.append((address, key[1] if key else ""))
print(*(found or [("", "")])[0])
PY
)
[ -n "$MIRROR" ] || { echo "no Debian mirror among this machine's apt sources" >&2; exit 1; }
echo "deb [signed-by=${KEY:-/usr/share/keyrings/debian-archive-keyring.gpg}] $MIRROR $SUITE main" >"$DIR/apt/sources.list"
: >"$DIR/apt/status"
APT=(apt-get -q -y -o Dir::Etc::sourcelist="$DIR/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$DIR/apt"
     -o Dir::State::status="$DIR/apt/status" -o Dir::Cache="$DIR/apt/cache" -o APT::Install-Recommends=false
     -o Acquire::Languages=none -o APT::Sandbox::User=root -o Debug::NoLocking=true)
"${APT[@]}" update
"${APT[@]}" -d install rabbitmq-server base-files coreutils dash bash sed grep mawk findutils hostname procps util-linux libc-bin
dpkg-deb -x "$DIR"/apt/cache/archives/base-files_*.deb "$DIR/root"   # first: it brings the links of the merged /usr
for package in "$DIR"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$DIR/root"; done
ROOT=$DIR/root
mkdir -p "$ROOT"/{dev,proc,tmp,srv}
chmod 1777 "$ROOT/tmp"
for device in "null 3" "zero 5" "random 8" "urandom 9"; do
  set -- $device
  [ -e "$ROOT/dev/$1" ] || mknod -m 666 "$ROOT/dev/$1" c 1 "$2"
done
echo 'root:x:0:0:root:/root:/bin/bash' >"$ROOT/etc/passwd"
echo 'root:x:0:' >"$ROOT/etc/group"
printf '127.0.0.1 localhost\n127.0.0.1 %s\n' "$(hostname)" >"$ROOT/etc/hosts"
echo 'hosts: files' >"$ROOT/etc/nsswitch.conf"  # Erlang of bullseye and bookworm finds no localhost without it
[ -e "$ROOT/usr/bin/awk" ] || ln -s mawk "$ROOT/usr/bin/awk"
rm -rf "$DIR/apt"
ls "$ROOT/usr/lib/rabbitmq/lib" | sed -n 's/^rabbitmq_server-//p' >"$DIR/version"
