#!/bin/bash
# Makes (once) a virtual environment with a real release of another framework, for the tests that
# exchange checkpoints with it, and prints the path of its interpreter.
# Usage: peers.sh NAME...    NAME: paddle-RELEASE, torch-RELEASE, safetensors-RELEASE
#        peers.sh --list     the names that the tests use
#
# They are kept in $RESHARD_PEERS (default: ${XDG_CACHE_HOME:-$HOME/.cache}/reshard-peers), outside
# any checkout: 0.6 to 0.9 GB each, torch with its libraries for GPUs 5.5 GB, so remove the folder to
# have the space back. $RESHARD_PYTHON is the Python that they are made with (default:
# /usr/bin/python3).
# Exit status: 0 done; 1 failed, with pip's words; 2 usage; 3 PyPI does not answer.
set -eu

names=(paddle-2.6.2 paddle-3.0.0 paddle-3.1.1 paddle-3.2.2 paddle-3.3.1
       torch-2.6.0 torch-2.13.0 torch-2.14.1 safetensors-0.8.0)
home=${RESHARD_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/reshard-peers}
python=${RESHARD_PYTHON:-/usr/bin/python3}

# What pip installs for NAME: pinned, so that the pickles that it writes stay the same.
requirements() {
  case $1 in
    paddle-2.6.2) echo "paddlepaddle==2.6.2 numpy==1.26.4 setuptools" ;;
    paddle-*) echo "paddlepaddle==${1#*-} numpy==2.4.6 safetensors==0.8.0 setuptools" ;;
    torch-*) echo "torch==${1#*-} numpy==2.4.6 safetensors==0.8.0" ;;
    safetensors-*) echo "safetensors==${1#*-} numpy==2.4.6" ;;
    *) return 1 ;;
  esac
}

# works FOLDER NAME: whether the environment's own Python has that release.
works() {
  local module=${2%%-*} release=${2#*-}
  [ -x "$1/bin/python" ] || return 1
  OMP_NUM_THREADS=1 "$1/bin/python" -W ignore -c "
import $module, sys
sys.exit(not $module.__version__.startswith('$release'))" >/dev/null 2>&1
}

# install FOLDER NAME: makes the environment anew.
install() {
  local log=$1.log words
  read -r -a words <<<"$(requirements "$2")"
  rm -rf "$1"
  echo "peers.sh: installing ${words[*]} into $1 (minutes)" >&2
  if ! "$python" -m venv "$1" >"$log" 2>&1; then
    echo "peers.sh: $python -m venv failed (Debian: python3-venv); see $log" >&2
    return 1
  fi
  "$1/bin/python" -m pip install --disable-pip-version-check --no-input --retries 2 --timeout 15 \
    "${words[@]}" >>"$log" 2>&1 && return 0
  local silence='connection broken|NewConnectionError|ConnectTimeout|ReadTimeout|name resolution'
  if grep -qE "$silence|ProxyError" "$log"; then
    rm -rf "$1"
    echo "peers.sh: PyPI does not answer, so there is no $2 (see $log)" >&2
    return 3
  fi
  echo "peers.sh: pip could not install ${words[*]}; the end of $log:" >&2
  tail -n 5 "$log" >&2
  return 1
}

# provide NAME: the environment is whole when its marker, written last, is there; one without that
# was interrupted, or made by hand and then taken if it works.
provide() {
  local folder=$home/$1
  if [ ! -e "$folder/.whole" ]; then
    works "$folder" "$1" || install "$folder" "$1" || return
    works "$folder" "$1" || {
      echo "peers.sh: $folder is installed but cannot import release ${1#*-}" >&2
      return 1
    }
    touch "$folder/.whole"
  fi
  echo "$folder/bin/python"
}

if [ $# -eq 0 ]; then
  echo "usage: $0 NAME... | --list   (names: ${names[*]})" >&2
  exit 2
fi
if [ "$1" = --list ]; then
  printf '%s\n' "${names[@]}"
  exit 0
fi
for name in "$@"; do
  if ! requirements "$name" >/dev/null || [[ $name == */* ]]; then
    echo "peers.sh: no peer '$name'; there are ${names[*]}" >&2
    exit 2
  fi
done
mkdir -p "$home"
for name in "$@"; do
  status=0
  # Two that run at once: the second waits, then finds the marker.
  (
    flock 9
    provide "$name"
  ) 9>"$home/$name.lock" || status=$?
  [ $status -eq 0 ] || exit $status
done
