#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Gets the sources of XGrammar 0.2.8 (Apache-2.0, 3 MB), which keep outputs to a JSON schema, a regular
# expression or a grammar, as build/xgrammar. They travel in the Python package xgrammar; pip only
# downloads it, nothing of Python is installed. Does nothing when they are there.
#
# usage: deploy/get_xgrammar.sh [--help]
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly VERSION=0.2.8
readonly SHA256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80

case ${1:-} in
  -h | --help) print_help; exit 0 ;;
  "") ;;
  *) usage_error "unknown argument '$1'" ;;
esac

target=$REPO/build/xgrammar
archive=xgrammar-$VERSION.tar.gz
[[ "$(cat "$target/.version" 2> /dev/null)" != "$SHA256" ]] || exit 0
python3 -m pip --version > /dev/null 2>&1 ||
  fail "python3 or its pip is missing; run deploy/install_packages.sh first"

mkdir -p "$REPO/build"
work=$(mktemp -d "$REPO/build/.xgrammar.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "getting xgrammar $VERSION (3 MB)"
for attempt in 1 2 3; do
  # The binary package has no C++ interface.
  if python3 -m pip download --quiet --no-deps --no-binary xgrammar --dest "$work" "xgrammar==$VERSION"; then
    break
  fi
  [[ $attempt -lt 3 ]] || fail "pip could not download xgrammar $VERSION"
  say "download failed; trying again"
  sleep "$attempt"
done
[[ "$(sha256sum "$work/$archive" | cut -d ' ' -f 1)" == "$SHA256" ]] ||
  fail "what was downloaded has another SHA-256 than $SHA256; run again"
tar xzf "$work/$archive" -C "$work"
echo "$SHA256" > "$work/xgrammar-$VERSION/.version"
rm -rf "$target"
mv "$work/xgrammar-$VERSION" "$target"
