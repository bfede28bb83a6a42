#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts, stops and watches the daemons of a cluster file, here and on other hosts over ssh. What it
# does is in deploy/hosts/, in Python's standard library; deploy/cluster.sh --help tells how to use it.
set -euo pipefail
# With a CDPATH that is exported, cd takes another folder of that name, or prints the one that it takes.
here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2> /dev/null; then
  echo "cluster.sh: error: this needs python3, of version 3.9 at least, on this host (on others it does not)" >&2
  exit 1
fi
# Its files, its arguments and what it prints are UTF-8, as what daemons write, whatever the locale is.
exec python3 -B -X utf8 "$here/hosts/main.py" "$@"
