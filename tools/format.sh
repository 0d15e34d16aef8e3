#!/bin/bash
# Formats all C++ sources in place; with --check it changes nothing and fails on a difference.
set -eu
cd "$(dirname "$0")/.."

folders=()
for folder in src tests bench examples fuzz python; do
  [ ! -d "$folder" ] || folders+=("$folder")
done
mode=(-i)
[ "${1-}" != --check ] || mode=(--dry-run -Werror)
find "${folders[@]}" \( -name '*.h' -o -name '*.cc' \) -print0 | xargs -0 clang-format-14 "${mode[@]}"
