#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts and stops the daemons of a cluster file on this host. For nodes whose `host` is another one it
# prints what to type there.
#
# usage: deploy/cluster.sh up            [--cluster FILE] [--set KEY=VALUE]... [--wait SECONDS]
#        deploy/cluster.sh down          [--cluster FILE] [--grace SECONDS]
#        deploy/cluster.sh status        [--cluster FILE]
#        deploy/cluster.sh logs [NAME]   [--cluster FILE] [--follow]
#        deploy/cluster.sh restart NAME  [--cluster FILE] [--wait SECONDS]
#
#   --cluster FILE     the cluster file (default: deploy/clusters/local.yaml)
#   --set KEY=VALUE    override a key of it, like pipeline.mode=fixed; `down` and the others need none
#   --wait SECONDS     for the whole cluster to serve (default: 120)
#   --grace SECONDS    for a daemon to drain, before it is killed (default: 10)
#   --state DIR        pid files and logs (default: run/NAME OF THE FILE; of a bundle state/NAME)
#   --bin DIR          the programs (default: build/release/bin, or those of the bundle)
#
# `up` returns when the cluster serves, or says which daemon does not and why, with the end of its
# log, and stops what it started; so does Ctrl-C. It starts only what is not running, so it also mends.
# `up` also draws the secret of the cluster's members, a file of mode 0600, unless it is there: the
# cluster file's cluster_token_file, else cluster.token in the state folder. Other hosts need a copy.
# `restart` returns when the cluster serves with that daemon, whatever else is missing.
#
# examples:
#   deploy/cluster.sh up
#   deploy/cluster.sh up --cluster my.yaml --set memory.m0.capacity=1GiB --set coordinator.listen=127.0.0.1:0
#   deploy/cluster.sh logs m0 --follow
#   deploy/cluster.sh restart c0
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

action=
node=
cluster=$REPO/deploy/clusters/local.yaml
overrides=()
wait_s=120
grace_s=10
state=
bin=$REPO/build/release/bin
states=$REPO/run
if [[ -f $REPO/BUNDLE ]]; then # There `run` is a program.
  bin=$REPO/bin
  states=$REPO/state
fi
follow=false
started=() # By this `up`.

parse_arguments() {
  while [[ $# -gt 0 ]]; do
    case $1 in
      --cluster) cluster=$(value_of "$@"); shift ;;
      --set) overrides+=(--set "$(value_of "$@")"); shift ;;
      --wait) wait_s=$(value_of "$@"); shift ;;
      --grace) grace_s=$(value_of "$@"); shift ;;
      --state) state=$(value_of "$@"); shift ;;
      --bin) bin=$(value_of "$@"); shift ;;
      --follow) follow=true ;;
      -h | --help) print_help; exit 0 ;;
      -*) usage_error "unknown flag '$1'" ;;
      *)
        if [[ -z $action ]]; then
          action=$1
        elif [[ -z $node ]]; then
          node=$1
        else
          usage_error "unknown argument '$1'"
        fi
        ;;
    esac
    shift
  done
  [[ -n $action ]] || usage_error "say what to do: up, down, status, logs or restart"
  if [[ -n $node && $action =~ ^(up|down|status)$ ]]; then
    usage_error "$action is of the whole cluster and takes no NAME, here '$node'; only logs and restart do"
  fi
  if [[ $action == restart && ${#overrides[@]} -gt 0 ]]; then
    usage_error "restart takes no --set: a daemon comes back with the settings of the cluster; for others: down, then up --set"
  fi
  [[ $wait_s =~ ^[0-9]{1,7}$ && $grace_s =~ ^[0-9]{1,7}$ ]] || usage_error "--wait and --grace are whole seconds"
  wait_s=$((10#$wait_s)) grace_s=$((10#$grace_s)) # 08 is no octal number.
  if [[ -z $state ]]; then
    local name
    name=$(basename "$cluster")
    state=$states/${name%.y*ml}
  fi
  # Daemons are known by this path, so it must be the same however it is written.
  state=$(realpath -m -- "$state")
}

# --- daemons -------------------------------------------------------------------------------------

# pid_of NAME: prints the daemon's pid when that process lives and is ours: a pid may have been given to
# another program since it was written down.
pid_of() {
  local pid
  pid=$(cat "$state/$1.pid" 2> /dev/null) || return 1
  [[ $pid =~ ^[0-9]+$ ]] || return 1
  # In braces, since the shell itself says when the file is not there.
  { tr '\0' '\n' < "/proc/$pid/cmdline"; } 2> /dev/null | grep -Fxq "$state/cluster.yaml" || return 1
  printf '%s' "$pid"
}

# listing: "role name host cores address" of each daemon, from the configuration that `up` left.
listing() { "$bin/lamina" config --cluster "$state/cluster.yaml" --list; }

# is_here ROLE HOST: whether that daemon runs on this host. The coordinator and the gateway always do.
is_here() {
  case $1:$2 in
    coordinator:* | gateway:* | *:localhost | *:127.*) return 0 ;;
  esac
  [[ $2 == "$HOSTNAME" || " $(hostname -I 2> /dev/null) " == *" $2 "* ]]
}

# daemons: "role name" of each on this host.
daemons() {
  local role name host _rest
  while read -r role name host _rest; do
    ! is_here "$role" "$host" || printf '%s %s\n' "$role" "$name"
  done < <(listing)
}

# address_for_others: where other hosts find the coordinator. One that listens at every address of
# this host is named by the first of them.
address_for_others() {
  local listen first
  listen=$(head -n 1 "$state/coordinator.ready")
  first=$(hostname -I 2> /dev/null | awk '{print $1}')
  listen=${listen/#0.0.0.0:/${first:-$HOSTNAME}:}
  echo "${listen/#\[::\]:/${first:-$HOSTNAME}:}"
}

# say_elsewhere: what to type on other hosts.
say_elsewhere() {
  local role name host address token _rest
  token=$(value_in cluster_token_file < "$state/cluster.yaml")
  address=$(address_for_others)
  while read -r role name host _rest; do
    is_here "$role" "$host" ||
      say "on $host, with copies of $state/cluster.yaml and of $token (chmod 600): lamina-$role --cluster cluster.yaml --cluster-token-file ${token##*/} --name $name --coordinator $address"
  done < <(listing)
}

# show_log NAME: the end of its log, on stderr.
show_log() {
  printf -- '--- end of %s\n' "$state/$1.log" >&2
  tail -n 15 "$state/$1.log" >&2 || true
  printf -- '---\n' >&2
}

# start ROLE NAME EXTRA...: starts a daemon and returns at once.
start() {
  local role=$1 name=$2
  shift 2
  rm -f "$state/$name.ready"
  [[ ! -f $state/$name.log ]] || mv "$state/$name.log" "$state/$name.log.previous"
  # A session of its own: Ctrl-C at a terminal must not reach it.
  setsid "$bin/lamina-$role" --cluster "$state/cluster.yaml" --name "$name" \
    --ready-file "$state/$name.ready" "$@" < /dev/null > "$state/$name.log" 2>&1 &
  local pid=$!
  echo "$pid" > "$state/$name.pid"
  # Until it has become the daemon, its command line is this script's and pid_of would not know it.
  while kill -0 "$pid" 2> /dev/null && ! pid_of "$name" > /dev/null; do
    sleep 0.01
  done
}

# gone_within NAME SECONDS: waits for the daemon's end.
gone_within() {
  local end=$((SECONDS + $2))
  while pid_of "$1" > /dev/null; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}

# stop NAME: SIGTERM drains, a second one stops, SIGKILL ends.
stop() {
  local pid signal
  for signal in TERM TERM KILL; do
    pid=$(pid_of "$1") || break
    kill "-$signal" "$pid" 2> /dev/null || true
    gone_within "$1" "$grace_s" && break
    say "$1 (pid $pid) did not stop within $grace_s s of SIG$signal"
  done
  if pid=$(pid_of "$1"); then
    fail "$1 (pid $pid) cannot be stopped"
  fi
  rm -f "$state/$1.pid" "$state/$1.ready"
}

# stop_all NAME...: the gateway and then the coordinator first, so that requests can end while the nodes
# are there.
stop_all() {
  local name stops=()
  for name in gateway coordinator; do
    [[ " $* " != *" $name "* ]] || stop "$name"
  done
  for name in "$@"; do
    [[ $name == coordinator || $name == gateway ]] || { stop "$name" & stops+=($!); }
  done
  [[ ${#stops[@]} -eq 0 ]] || wait "${stops[@]}" # Not for daemons, which are children too.
}

# interrupted STATUS: Ctrl-C and the like while `up` waits.
interrupted() {
  trap '' INT TERM HUP
  say "interrupted; stopping what was started"
  stop_all "${started[@]}"
  exit "$1"
}

# --- waiting -------------------------------------------------------------------------------------

# dead [NAME]: names the first daemon, of all or NAME alone, that has been started and lives no more.
dead() {
  local _role name
  while read -r _role name; do
    if [[ ${1:-$name} == "$name" && -f $state/$name.pid ]] && ! pid_of "$name" > /dev/null; then
      printf '%s' "$name"
      return 0
    fi
  done < <(daemons)
  return 1
}

# give_up NAME WORDS...: shows why, stops what this `up` started, and fails.
give_up() {
  local name=$1
  shift
  show_log "$name"
  stop_all "${started[@]}"
  fail "$*"
}

# await_ready NAME: waits for the ready file of the coordinator or the gateway.
await_ready() {
  local end=$((SECONDS + wait_s))
  until [[ -s $state/$1.ready ]]; do
    pid_of "$1" > /dev/null || give_up "$1" "the $1 ended; its log is above"
    ((SECONDS < end)) || give_up "$1" "the $1 is not ready after $wait_s s"
    sleep 0.05
  done
}

# await_coordinator: sets `address`.
await_coordinator() {
  await_ready coordinator
  address=$(head -n 1 "$state/coordinator.ready")
  address=${address/#0.0.0.0:/127.0.0.1:}
  echo "$address" > "$state/address"
}

# state_of_cluster: "serving", "waiting for m1", ...
state_of_cluster() {
  "$bin/lamina" status --json --server "$address" 2> /dev/null |
    sed -n 's/^.*"state":"\([^"]*\)","model":.*$/\1/p'
}

# serves STATE [NAME]: whether that is a whole cluster, or one that serves and misses not NAME.
serves() {
  [[ $1 == serving ]] ||
    [[ -n ${2:-} && $1 == "serving; "* && ! $1 =~ (^|[^A-Za-z0-9_-])$2([^A-Za-z0-9_-]|$) ]]
}

# fails STATE: whether a cluster in that state waits for nobody and tries nothing, and a node says why.
fails() {
  [[ $1 != *"waiting for "* && $1 != *"configuring "* && $1 =~ (^|"; ")("cannot serve: "|[A-Za-z0-9_-]+" failed: ") ]]
}

# await_serving [NAME]: waits for the whole cluster, or for NAME in it, telling what it waits for. A
# state that fails gets a few seconds: it may be of before a daemon was started again.
await_serving() {
  local end=$((SECONDS + wait_s)) now last='' name since=$SECONDS
  while :; do
    if name=$(dead "$@"); then
      give_up "$name" "$name ended; the end of its log is above"
    fi
    now=$(state_of_cluster) || now=
    ! serves "$now" "$@" || return 0
    if [[ -n $now && $now != "$last" ]]; then
      say "$now"
      last=$now
      since=$SECONDS
    fi
    if fails "$now" && ((SECONDS >= since + 5)); then
      name=$(sed -n 's/^\(.*; \)\{0,1\}\([A-Za-z0-9_-]*\) failed: .*$/\2/p' <<< "$now")
      [[ -f $state/$name.log ]] || name=coordinator
      give_up "$name" "the cluster cannot serve: $now"
    fi
    if ((SECONDS >= end)); then
      name=$(sed -n 's/^waiting for \([A-Za-z0-9_-]*\).*$/\1/p' <<< "$last")
      [[ -f $state/$name.log ]] || name=coordinator
      give_up "$name" "the cluster does not serve after $wait_s s: ${last:-no answer from $address}"
    fi
    sleep 0.2
  done
}

# --- actions -------------------------------------------------------------------------------------

need_programs() {
  local program
  for program in lamina lamina-coordinator lamina-compute lamina-memory; do
    [[ -x $bin/$program ]] || fail "$bin/$program is not there; build it with deploy/build.sh"
  done
}

# need_gateway: only clusters with HTTP need the program and its port.
need_gateway() {
  local listen
  listen=$("$bin/lamina" config --cluster "$state/cluster.yaml" --list | awk '$1 == "gateway" {print $5}')
  [[ -n $listen ]] || return 0
  [[ -x $bin/lamina-gateway ]] || fail "$bin/lamina-gateway is not there; build it with deploy/build.sh"
  pid_of gateway > /dev/null || check_port "$listen" gateway
}

need_state() {
  [[ -f $state/cluster.yaml ]] ||
    fail "no cluster was started from $cluster here ($state is empty); start it with deploy/cluster.sh up --cluster $cluster"
}

# find_model PATH: prints the absolute path of the model, looked for from here and from the repository.
find_model() {
  local directory
  for directory in "$PWD" "$REPO"; do
    local candidate=$1
    [[ $1 == /* ]] || candidate=$directory/$1
    if [[ -e $candidate ]]; then
      printf '%s' "$candidate"
      return 0
    fi
  done
  fail "the model '$1' is not there (looked in $PWD and $REPO); deploy/get_model.sh gets the quick start's, --set model=PATH names another"
}

# value_in KEY: prints the value of a key of the first level in the configuration on stdin.
value_in() { sed -n "s/^$1: [\"']\{0,1\}\(.*[^\"']\)[\"']\{0,1\}\$/\1/p"; }

# quoted WORDS: as a text of YAML.
quoted() { printf "'%s'" "${1//\'/\'\'}"; }

# make_token FILE: draws the secret of the cluster, unless it is there. On no command line, and whole or
# not at all.
make_token() {
  [[ ! -e $1 ]] || return 0
  mkdir -p "$(dirname "$1")"
  (umask 077 && od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' > "$1.partial") || fail "could not write $1"
  mv -n "$1.partial" "$1"
  rm -f "$1.partial" # Another `up` was there first.
  say "drew the cluster's secret: $1"
}

# configure: writes the effective cluster file, with absolute paths of the model and of the secret.
configure() {
  local new model token
  new=$("$bin/lamina" config --cluster "$cluster" "${overrides[@]}") || exit 1
  model=$(find_model "$(value_in model <<< "$new")") || exit 1
  token=$(value_in cluster_token_file <<< "$new")
  token=$(realpath -m -- "${token:-$state/cluster.token}")
  new=$("$bin/lamina" config --cluster "$cluster" "${overrides[@]}" --set "model=$(quoted "$model")" \
    --set "cluster_token_file=$(quoted "$token")") || exit 1
  mkdir -p "$state"
  if [[ -f $state/cluster.yaml && $new != "$(cat "$state/cluster.yaml")" ]]; then
    local _role name
    while read -r _role name; do
      if pid_of "$name" > /dev/null; then
        fail "a cluster of this file runs with other settings; stop it first: deploy/cluster.sh down --cluster $cluster"
      fi
    done < <(daemons)
    rm -f "$state/address"
  fi
  make_token "$token"
  printf '%s\n' "$new" > "$state/cluster.yaml"
}

# check_port HOST:PORT [SECTION]: fails when somebody listens there.
check_port() {
  local host=${1%:*} port=${1##*:}
  [[ $port != 0 ]] || return 0
  if (exec 3<> "/dev/tcp/${host/#0.0.0.0/127.0.0.1}/$port") 2> /dev/null; then
    fail "port $port of $host is in use by another program; stop it, or take another port: --set ${2:-coordinator}.listen=$host:0"
  fi
}

start_coordinator() {
  local listen extra=()
  listen=$("$bin/lamina" config --cluster "$state/cluster.yaml" --list | awk '$1 == "coordinator" {print $5}')
  # A port that was picked stays: the nodes of a cluster that is mended look for it there.
  if [[ -f $state/address && ${listen##*:} == 0 ]]; then
    listen=$(cat "$state/address")
    extra=(--set "coordinator.listen=$listen")
  fi
  check_port "$listen"
  start coordinator coordinator "${extra[@]}"
}

up() {
  need_programs
  configure
  need_gateway
  local role name
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
  trap 'interrupted 129' HUP
  if ! pid_of coordinator > /dev/null; then
    started+=(coordinator)
    start_coordinator
  fi
  await_coordinator
  while read -r role name; do
    if ! pid_of "$name" > /dev/null; then
      started+=("$name")
      start "$role" "$name" --coordinator "$address"
    fi
  done < <(daemons)
  say_elsewhere
  await_serving
  if [[ ${#started[@]} -eq 0 ]]; then
    say "the cluster was up already, and serves at $address"
  else
    say "the cluster serves at $address"
  fi
  say_gateway
}

# say_gateway: where HTTP is served, if it is.
say_gateway() {
  local scheme=http
  daemons | grep '^gateway ' > /dev/null || return 0  # grep -q would end before daemons has written all.
  await_ready gateway
  ! grep -q '^ *tls_certificate:' "$state/cluster.yaml" || scheme=https
  say "OpenAI's API is at $scheme://$(head -n 1 "$state/gateway.ready")/v1"
}

down() {
  [[ -f $state/cluster.yaml ]] || { say "nothing to stop: no cluster was started from $cluster here"; return 0; }
  # By their pid files: this works without the programs, too.
  local names=("$state"/*.pid)
  [[ -f ${names[0]} ]] || names=()
  names=("${names[@]##*/}")
  stop_all "${names[@]%.pid}"
  rm -f "$state/address"
  say "stopped"
}

status() {
  need_state
  local _role name pid
  while read -r _role name; do
    if pid=$(pid_of "$name"); then
      printf '%-12s pid %s\n' "$name" "$pid"
    else
      printf '%-12s not running\n' "$name"
    fi
  done < <(daemons)
  [[ -f $state/address ]] || return 1
  "$bin/lamina" status --server "$(cat "$state/address")"
}

logs() {
  need_state
  local files=("$state"/*.log)
  if [[ -n $node ]]; then
    files=("$state/$node.log")
  fi
  [[ -f ${files[0]} ]] || fail "there is no log ${files[0]}; the daemons are: $(daemons | awk '{printf "%s ", $2}')"
  if $follow; then
    exec tail -n 20 -F "${files[@]}"
  fi
  tail -n 50 "${files[@]}"
}

restart() {
  need_programs
  need_state
  [[ -n $node ]] || usage_error "restart wants the name of a daemon"
  local role name
  while read -r role name; do
    if [[ $name == "$node" ]]; then
      stop "$node"
      if [[ $role == coordinator ]]; then
        start_coordinator
        await_coordinator
      else
        address=$(cat "$state/address")
        start "$role" "$node" --coordinator "$address"
      fi
      [[ $role != gateway ]] || await_ready gateway
      await_serving "$node"
      say "$node was restarted; the cluster serves at $address"
      return 0
    fi
  done < <(daemons)
  fail "no daemon is called '$node'; there are: $(daemons | awk '{printf "%s ", $2}')"
}

parse_arguments "$@"
case $action in
  up | down | status | logs | restart) "$action" ;;
  *) usage_error "unknown action '$action'; it is one of up, down, status, logs, restart" ;;
esac
