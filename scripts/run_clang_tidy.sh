#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs clang-tidy, with the checks of .clang-tidy, over C++ sources.
#
#   scripts/run_clang_tidy.sh                 the .cc files that differ from main, and new ones
#   scripts/run_clang_tidy.sh --all           every .cc file that the build knows
#   scripts/run_clang_tidy.sh FILE ...        these
#
# --build DIR (default build/release) names a configured build: its compile_commands.json says how
# each file is compiled. --base REF (default main) is what "differs" is measured against. --jobs N
# (default 2). Exit status: 0 clean, 1 findings, 2 wrong usage.
set -euo pipefail
CDPATH='' cd "$(dirname "$0")/.."

build=build/release base=main jobs=2 all=0
files=()
usage() { sed -n '3,12s/^# \{0,1\}//p' "$0"; }
while (($#)); do
  case $1 in
    --all) all=1 ;;
    --build | --base | --jobs)
      [[ $# -ge 2 ]] || { echo "$1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    -*) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done

command -v clang-tidy >/dev/null || { echo "clang-tidy is missing: apt-get install clang-tidy" >&2; exit 2; }
[[ -f $build/compile_commands.json ]] || {
  echo "$build/compile_commands.json is missing: cmake --preset release" >&2
  exit 2
}

changed() {
  git diff --name-only --diff-filter=d "$(git merge-base "$base" HEAD)" -- '*.cc'
  git ls-files --others --exclude-standard -- '*.cc'
}

# A file that is in no target has no compile command; clang-tidy would guess one.
known() {
  python3 -c '
import json, os, sys
commands = json.load(open(sys.argv[1]))
built = {os.path.relpath(os.path.join(c["directory"], c["file"])) for c in commands}
wanted = [line.rstrip("\n") for line in sys.stdin]
for path in sorted(set(wanted)):
    if os.path.relpath(path) in built:
        print(os.path.relpath(path))
    else:
        print(f"not in the build, left out: {path}", file=sys.stderr)
' "$build/compile_commands.json"
}

if ((${#files[@]})); then
  list=$(printf '%s\n' "${files[@]}" | known)
elif ((all)); then
  list=$(git ls-files -co --exclude-standard -- '*.cc' | known)
else
  list=$(changed | known)
fi
[[ -n $list ]] || { echo "nothing to check"; exit 0; }

# GCC's precompiled headers are nothing to Clang.
commands=$(mktemp -d)
trap 'rm -r "$commands"' EXIT
sed -E 's/ -fpch-preprocess| -Winvalid-pch -include [^ ]+//g' "$build/compile_commands.json" >"$commands/compile_commands.json"

echo "clang-tidy: $(wc -l <<<"$list") files" >&2
# The build's compiler is GCC, some of whose warnings Clang does not know.
xargs -d '\n' -P "$jobs" -n 1 clang-tidy -p "$commands" --quiet \
  --extra-arg=-Wno-unknown-warning-option <<<"$list" || exit 1
