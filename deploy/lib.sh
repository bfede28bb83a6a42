# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the scripts of deploy/ share. Sourced, after `set -euo pipefail`.

# With a CDPATH that is exported, cd takes another folder of that name, or prints the one that it takes.
REPO=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export REPO

if [[ -t 2 ]]; then
  LIB_BOLD=$'\033[1m' LIB_RED=$'\033[31m' LIB_RESET=$'\033[0m'
else
  LIB_BOLD='' LIB_RED='' LIB_RESET=''
fi

# say WORDS...: a step of the script, on stderr.
say() { printf '%s==>%s %s\n' "$LIB_BOLD" "$LIB_RESET" "$*" >&2; }

# fail WORDS...: the cause and the remedy, then exit 1.
fail() {
  printf '%s%s: error:%s %s\n' "$LIB_RED" "$(basename "$0")" "$LIB_RESET" "$*" >&2
  exit 1
}

# usage_error WORDS...: wrong usage, exit 2.
usage_error() {
  printf '%s%s: error:%s %s\nTry: %s --help\n' "$LIB_RED" "$(basename "$0")" "$LIB_RESET" "$*" "$0" >&2
  exit 2
}

# print_help: the comment at the head of the script, which is its help.
print_help() {
  sed -n '/^# SPDX/d; 2,/^[^#]/{/^#/!d; s/^# \{0,1\}//; p}' "$0" | sed '/./,$!d'
}

# value_of FLAG ARGUMENT...: the value after a flag, or a usage error.
value_of() {
  [[ $# -ge 2 && -n $2 ]] || usage_error "$1 wants a value"
  printf '%s' "$2"
}
