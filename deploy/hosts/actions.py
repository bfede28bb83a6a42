# SPDX-License-Identifier: Apache-2.0
"""The actions of deploy/cluster.sh. Each returns the exit status, or raises Failure or Usage."""

import hashlib
import os
import re

import bundle
import settings as config
import watch
from cluster import Cluster, check_ports, find_model, make_token, on_all, write_whole
from host import SshHost
from output import Failure, Interrupted, Usage, own_command, say

TLS_FILES = ("ca", "certificate", "key")
# What a certificate's path may have in it: the name of the host, as the cluster file has it.
HOST_MARK = "{host}"


def _paths(file, settings, host_name):
    """The keys of the cluster file that are paths, absolute, as --set words."""
    words = [f"model={config.quoted(find_model(file.model))}"]
    token = os.path.realpath(file.token_file or settings.state / "cluster.token")
    words.append(f"cluster_token_file={config.quoted(token)}")
    for key in TLS_FILES:
        if file.tls[key]:
            path = os.path.realpath(file.tls[key].replace(HOST_MARK, host_name))
            words.append(f"tls.{key}={config.quoted(path)}")
    # Those of the coordinator and the gateway, which may be started again from another folder. They stay as written behind it: `..` may
    # follow a link, and a link may lead to a pipe.
    words += [f"{key}={config.quoted(os.path.join(os.getcwd(), path))}" for key, path in file.files.items()]
    return words


def _memory_nodes(yaml):
    """The lines of an effective cluster file without its memory nodes, and {name: line} of these."""
    others, nodes, inside = [], {}, False
    for line in yaml.splitlines():
        found = re.match(r'  - \{name: "?([\w-]+)', line) if inside else None
        if found:
            nodes[found[1]] = line
        else:
            inside = line == "memory:"
            others.append(line)
    return others, nodes


def _nodes_gone(before, after):
    """Names of the memory nodes that only the first of two effective files has; None where they differ in more than that one has
    memory nodes that the other has not."""
    (others, nodes), (others_after, nodes_after) = _memory_nodes(before), _memory_nodes(after)
    same = others == others_after and all(nodes_after.get(name, line) == line for name, line in nodes.items())
    return nodes.keys() - nodes_after.keys() if same else None


def _running(cluster):
    """Names of the daemons that live, on all hosts that answer."""
    pids, _ = on_all(cluster.hosts(), lambda host: host.pids())
    return {name for known in pids.values() for name, pid in known.items() if pid is not None}


def _elsewhere(cluster):
    """Which files the cluster that runs has elsewhere, in brackets: relative paths are from the folder in which `up` was typed."""
    try:
        before = config.ClusterFile(cluster.settings, cluster.effective).paths()
    except Failure:  # The file may be one of an older version.
        return ""
    moved = [f"{key}: {before[key]} there, {path} here" for key, path in cluster.file.paths().items() if before.get(key, path) != path]
    return f" ({'; '.join(moved)}; relative paths are from the folder of `up`)" if moved else ""


def _check_change(cluster, before):
    """Refuses another cluster file than the one before while the cluster runs, unless only memory nodes came or went."""
    running = _running(cluster)
    if not running:
        (cluster.state / "address").unlink(missing_ok=True)
        return
    gone = _nodes_gone(before, cluster.file.yaml)
    down = own_command("down", settings=cluster.settings)
    if gone is None:
        raise Failure(f"a cluster of this file runs with other settings{_elsewhere(cluster)}; stop it first: {down}")
    if gone & running:
        raise Failure(f"{', '.join(sorted(gone & running))}: in the cluster file no more, and still running; `lamina node drain NAME` lets a "
                      f"memory node leave, or stop the cluster first: {down}")


def _configure(cluster):
    """Writes the effective cluster file, with absolute paths; refuses to change that of a cluster that runs, but for memory nodes."""
    settings = cluster.settings
    source = config.ClusterFile(settings, settings.cluster, settings.overrides)
    paths = _paths(source, settings, "localhost")
    cluster.file = config.ClusterFile(settings, settings.cluster, [*settings.overrides, *paths])
    cluster.tls_source = source.tls
    cluster.load_hosts()
    cluster.state.mkdir(parents=True, exist_ok=True)
    effective = cluster.effective
    if effective.is_file() and (before := effective.read_text()) != cluster.file.yaml:
        _check_change(cluster, before)
    cluster.others = {}
    for key in TLS_FILES:
        if cluster.file.tls[key] and not os.path.isfile(cluster.file.tls[key]):
            raise Failure(f"tls.{key}: {cluster.file.tls[key]} is not there; {own_command('certificates', settings=settings)} makes "
                          "those of a cluster that has none")
    make_token(cluster.file.token_file)
    write_whole(effective, cluster.file.yaml)


def _check_ports(cluster):
    """Those of all that is to be started on this host, so that whoever has another cluster there is told once."""
    known = cluster.here.pids()
    addresses = {}
    for daemon in cluster.file.daemons:
        if config.is_here(daemon) and known.get(daemon.name) is None:
            section = daemon.name if daemon.address != "-" else f"{daemon.role}.{daemon.name}"
            addresses[f"{section}.listen"] = daemon.address
            addresses[f"{section}.http"] = cluster.file.http.get(daemon.name, "-")
    check_ports({key: address for key, address in addresses.items() if address != "-"})


# --- other hosts ---------------------------------------------------------------------------------


def _prepare_others(cluster):
    """Brings programs, model and settings to the other hosts. Returns the failures of those that cannot take part."""
    settings, file = cluster.settings, cluster.file
    names = file.hosts()
    if not names or settings.no_ssh:
        return {}
    tag = hashlib.sha256(f"{os.uname().nodename} {cluster.state}".encode()).hexdigest()[:6]
    computing = {d.host for d in file.daemons if d.role == "compute"}
    model = bundle.Model(cluster.here, file.model) if computing.intersection(names) else None

    def prepare(host):
        host.learn(f"{cluster.state.name}-{tag}")
        put_programs(host)
        _put_settings(cluster, host, bundle.put_model(host, model) if host.name in computing else file.model)
        return host

    with bundle.programs(cluster) as put_programs:
        hosts, failures = on_all([SshHost(name, settings.ssh) for name in names], prepare)
    cluster.others = hosts
    cluster.keep_hosts()
    return failures


def _put_settings(cluster, host, model):
    """The cluster file with that host's paths, the secret, and its certificate."""
    token = f"{host.state}/cluster.token"
    paths = [f"model={config.quoted(model)}", f"cluster_token_file={config.quoted(token)}"]
    for key in TLS_FILES:
        if source := cluster.tls_source[key]:
            path = f"{host.state}/tls/{key}.pem"
            own = os.path.realpath(source.replace(HOST_MARK, host.name))
            if not os.path.isfile(own):
                raise Failure(f"tls.{key}: {own} is not there; {own_command('certificates', settings=cluster.settings)} makes those of "
                              "each host")
            with open(own, "rb") as file:
                host.put(path, file.read(), 0o600 if key == "key" else 0o644)
            paths.append(f"tls.{key}={config.quoted(path)}")
    yaml = config.ClusterFile(cluster.settings, cluster.effective, paths).yaml
    with open(cluster.file.token_file, "rb") as file:
        host.put(token, file.read(), 0o600)
    host.put(f"{host.state}/cluster.yaml", yaml.encode())


def _say_elsewhere(cluster):
    """With --no-ssh: what to type on other hosts."""
    token = cluster.file.token_file
    for daemon in cluster.file.daemons:
        if not config.is_here(daemon):
            address = cluster.address_for(SshHost(daemon.host, ""))
            say(f"on {daemon.host}, with copies of {cluster.effective} and of {token} (chmod 600): lamina-{daemon.role} --cluster "
                f"cluster.yaml --cluster-token-file {os.path.basename(token)} --name {daemon.name} --coordinator {address}")


# --- actions -------------------------------------------------------------------------------------


def up(settings):
    config.need_programs(settings)
    cluster = Cluster(settings)
    _configure(cluster)
    if cluster.file.daemon("gateway") is not None:  # Only clusters with HTTP need it.
        config.need_program(settings, "lamina-gateway")
    _check_ports(cluster)
    failures = _prepare_others(cluster)
    for failure in failures.values():
        say(str(failure))
    if failures and not settings.keep_going:
        raise Failure(f"{len(failures)} of {len(failures) + len(cluster.others)} other hosts cannot take part: "
                      f"{', '.join(failures)}; what to do is above (--keep-going starts the others)")
    try:
        return _bring_up(cluster, list(failures))
    except Interrupted:
        say("interrupted; stopping what was started")
        cluster.undo()
        raise
    except OSError:
        if not settings.keep_going:
            cluster.undo()
        raise


def _bring_up(cluster, missing_hosts):
    try:
        if cluster.pid(cluster.file.daemon("coordinator")) is None:
            cluster.start_coordinator()
        address = cluster.await_coordinator()
        known, _ = on_all(cluster.hosts(), lambda host: host.pids())
        cluster.start_nodes([(daemon, host) for daemon, host in cluster.daemons()
                             if daemon.role != "coordinator" and known.get(host.name, {}).get(daemon.name) is None])
        if cluster.settings.no_ssh:
            _say_elsewhere(cluster)
        if missing_hosts:
            raise Failure(f"started all but what runs on {', '.join(missing_hosts)}, at {address}; when those hosts are mended: "
                          f"{own_command('up', settings=cluster.settings)}")
        watch.await_serving(cluster, cluster.settings.wait)
        http = cluster.await_gateway()
    except watch.GaveUp as why:
        cluster.give_up(why)
    already = "" if cluster.started else "was up already, and "
    say(f"the cluster {already}serves at {address}")
    if http is not None:
        say(f"OpenAI's API is at {'https' if cluster.file.gateway_tls else 'http'}://{http}/v1")
    return 0


def down(settings):
    cluster = Cluster(settings)
    if not cluster.effective.is_file():
        say(f"nothing to stop: no cluster was started from {settings.cluster} here")
        return 0
    cluster.load_hosts()
    # By their pid files: this works without the programs, too.
    pids, failures = on_all(cluster.hosts(), lambda host: host.pids())
    pairs = [(host, name) for host in cluster.hosts() for name in pids.get(host.name, {})]
    failures.update(cluster.stop(pairs, settings.grace))
    clean = [host for host in cluster.others.values() if host.name not in failures]
    failures.update(on_all(clean, lambda host: host.run("forget"))[1])
    for host in clean:
        cluster.forget_host(host.name)
    for failure in failures.values():
        say(str(failure))
    if failures:
        raise Failure(f"not everything could be stopped: {', '.join(failures)}; once that is mended: "
                      f"{own_command('down', settings=settings)}")
    cluster.forget()
    say("stopped")
    return 0


def status(settings):
    cluster = Cluster(settings)
    cluster.load()
    pids, failures = on_all(cluster.hosts(), lambda host: (host.pids(), host.version()))
    for daemon in cluster.file.daemons:
        host = cluster.host_of(daemon)
        place = daemon.host if host is None or not host.is_local else "localhost"
        if host is None:
            print(f"{daemon.name:<12} {'not looked after':<18} {place}")
        elif host.name in failures:
            print(f"{daemon.name:<12} {'no answer':<18} {place}  {failures[host.name]}")
        else:
            known, version = pids[host.name]
            pid = known.get(daemon.name)
            print(f"{daemon.name:<12} {f'pid {pid}' if pid else 'not running':<18} {place}  {version}", flush=True)
    address = cluster.kept_address()
    if not address:
        return 1
    cluster.watch_at(address)
    return cluster.client.print_status() or (1 if failures else 0)


def logs(settings):
    cluster = Cluster(settings)
    cluster.load()
    wanted = [(d, host) for d, host in cluster.daemons() if settings.node in ("", d.name)]
    if not wanted:
        raise Failure(f"there is no log of '{settings.node}'; the daemons are: {' '.join(d.name for d in cluster.file.daemons)}")
    if settings.follow:
        return _follow(wanted)
    for daemon, host in wanted:
        text = host.log_tail(daemon.name, 50)
        if len(wanted) > 1:
            print(f"==> {daemon.name} on {host.name} <==")
        print(text, end="" if len(wanted) == 1 else "\n")
    return 0


def _follow(wanted):
    by_host = {}
    for daemon, host in wanted:
        by_host.setdefault(host.name, (host, []))[1].append(daemon.name)
    streams = [host.follow(names, 20) for host, names in by_host.values()]
    try:
        for stream in streams:
            stream.wait()
    finally:
        for stream in streams:
            stream.stdin.close()  # Ends what runs at the other end.
            stream.wait()
    return max(stream.returncode for stream in streams)


def restart(settings):
    config.need_programs(settings)
    cluster = Cluster(settings)
    cluster.load()
    if not settings.node:
        raise Usage("restart wants the name of a daemon")
    running = _running(cluster)
    if not running:
        raise Failure(f"the cluster is down, and {settings.node} alone would serve nobody; start all of it: "
                      f"{own_command('up', settings=settings)}")
    daemon = next((d for d, _ in cluster.daemons() if d.name == settings.node), None)
    if daemon is None:
        raise Failure(f"no daemon is called '{settings.node}'; there are: {' '.join(d.name for d, _ in cluster.daemons())}")
    if daemon.role != "coordinator" and ("coordinator" not in running or not cluster.kept_address()):
        raise Failure(f"the coordinator does not run, and {daemon.name} would wait for it; first: "
                      f"{own_command('restart', 'coordinator', settings=settings)}")
    host = cluster.host_of(daemon)
    for line in host.stop([daemon.name], settings.grace):
        say(line)
    cluster.watch_at(cluster.kept_address())
    try:
        if daemon.role == "coordinator":
            cluster.start_coordinator()
            cluster.await_coordinator()
        else:
            cluster.start_nodes([(daemon, host)])
        watch.await_serving(cluster, settings.wait, daemon.name)
        cluster.await_gateway()
    except watch.GaveUp as why:
        cluster.give_up(why)
    say(f"{daemon.name} was restarted; the cluster serves at {cluster.client.address}")
    return 0


