#!/bin/bash
# Installs the Debian packages of the named groups that are missing; touches nothing when none is.
# Usage: install_deps.sh GROUP...   (groups: tools/debian-packages.txt)
set -eu

list=$(dirname "$0")/debian-packages.txt

if [ $# -eq 0 ]; then
  echo "usage: $0 GROUP...   (groups: $(sed '/^#/d; s/ .*//' "$list" | sort -u | paste -sd' '))" >&2
  exit 2
fi

wanted=()
for group in "$@"; do
  packages=$(awk -v group="$group" '$1 == group { print $2 }' "$list")
  if [ -z "$packages" ]; then
    echo "$0: no packages for group '$group' in $list" >&2
    exit 2
  fi
  mapfile -t -O "${#wanted[@]}" wanted <<<"$packages"
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "$0: not a Debian system; install the equivalents of: ${wanted[*]}" >&2
  exit 0  # the build says what it cannot find
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "$0: missing Debian packages; run as root (or install sudo):" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing ${#missing[@]} Debian packages: ${missing[*]}"
apt() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q "$@"; }
if ! apt update || ! apt install -y --no-install-recommends "${missing[@]}"; then
  echo "$0: apt-get failed; these packages are needed: ${missing[*]}" >&2
  exit 1
fi
