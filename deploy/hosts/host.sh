#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What deploy/cluster.sh does on one host; host.py runs it, here or over ssh (sh -s), and it leaves no
# process behind but the daemons. POSIX shell and coreutils: other hosts need no more.
#
# usage: host.sh VERB STATE ...   STATE is the folder of pid files and logs; daemons are known by the
# path of the cluster file in it.
set -eu

verb=$1
state=$2
shift 2

# pid_of NAME: prints the daemon's pid when that process lives and is ours: a pid may have been given
# to another program since it was written down.
pid_of() {
  pid=$(cat "$state/$1.pid" 2> /dev/null) || return 1
  case $pid in '' | *[!0-9]*) return 1 ;; esac
  looks=0
  while :; do
    words=$({ tr '\0' '\n' < "/proc/$pid/cmdline"; } 2> /dev/null) || return 1
    [ -z "$words" ] || break
    # Empty in the moment of an exec; and of a process that has ended, until its parent knows.
    case $(sed 's/.*) //' "/proc/$pid/stat" 2> /dev/null) in '' | Z*) return 1 ;; esac
    looks=$((looks + 1))
    [ "$looks" -lt 50 ] || return 1
    sleep 0.02
  done
  printf '%s\n' "$words" | grep -Fxq -- "$state/cluster.yaml" || return 1
  printf '%s' "$pid"
}

# start NAME PROGRAM ARGUMENT...: starts a daemon and returns at once.
start() {
  name=$1
  shift
  mkdir -p "$state"
  rm -f "$state/$name.ready"
  [ ! -f "$state/$name.log" ] || mv "$state/$name.log" "$state/$name.log.previous"
  # A session of its own: neither Ctrl-C at a terminal nor the end of ssh must reach it.
  # Appending, so that a log that is rotated by copytruncate begins anew.
  nohup setsid "$@" < /dev/null >> "$state/$name.log" 2>&1 &
  pid=$!
  if ! echo "$pid" > "$state/$name.pid"; then
    kill "$pid" # Nobody would find it again.
    exit 1
  fi
  # Until it has become the daemon, its command line is this script's and pid_of would not know it.
  while kill -0 "$pid" 2> /dev/null && ! pid_of "$name" > /dev/null; do
    sleep 0.01
  done
}

# gone_by NAME SECOND: waits for the daemon's end, until that second of the clock.
gone_by() {
  while pid_of "$1" > /dev/null; do
    [ "$(date +%s)" -lt "$2" ] || return 1
    sleep 0.1
  done
}

# stop GRACE NAME...: ends these daemons, all at the same time: SIGTERM drains, a second one stops,
# SIGKILL ends.
stop() {
  grace=$1
  shift
  for signal in TERM TERM KILL; do
    told=
    for name in "$@"; do
      running=$(pid_of "$name") || continue
      kill "-$signal" "$running" 2> /dev/null || true
      told="$told $name"
    done
    [ -n "$told" ] || break
    end=$(($(date +%s) + grace))
    for name in $told; do
      gone_by "$name" "$end" ||
        echo "$name (pid $(cat "$state/$name.pid")) did not stop within $grace s of SIG$signal"
    done
  done
  failed=0
  for name in "$@"; do
    if running=$(pid_of "$name"); then
      echo "$name (pid $running) cannot be stopped"
      failed=1
    else
      rm -f "$state/$name.pid" "$state/$name.ready"
    fi
  done
  return "$failed"
}

# forget: the state of a cluster that has stopped, but for its logs.
forget() {
  rm -f "$state/cluster.yaml" "$state/cluster.token" "$state"/*.ready
  rm -rf "$state/tls"
}

case $verb in
  start) start "$@" ;;
  stop) stop "$@" ;;
  forget) forget ;;
  # "NAME PID" of each that was started; "-" of one that lives no more.
  pids)
    for file in "$state"/*.pid; do
      [ -f "$file" ] || continue
      name=${file##*/}
      name=${name%.pid}
      echo "$name $(pid_of "$name" || echo -)"
    done
    ;;
  log) tail -n "$2" "$state/$1.log" ;;
  ready) cat "$state/$1.ready" ;;
  # Home, free KiB there, operating system and processor, and whether rsync is there.
  facts)
    echo "$HOME"
    df -Pk "$HOME" | awk 'NR == 2 {print $4}'
    uname -sm
    command -v rsync || echo -
    ;;
  *)
    echo "host.sh: unknown verb $verb" >&2
    exit 2
    ;;
esac
