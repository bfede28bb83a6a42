# SPDX-License-Identifier: Apache-2.0
"""`cluster.sh certificates`: a small CA for a cluster that has none, and a certificate for each of its hosts.

A host's certificate is good for its names and addresses, and for the nodes that run there: the coordinator takes a node
only with a certificate of its name. OpenSSL's command does the work.
"""

import ipaddress
import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import settings as config
from output import Failure, own_command, say

HERE = "localhost"
CA_DAYS = 3650


def make(settings):
    """Makes what is missing in tls/ of the state folder; what is there stays."""
    if shutil.which("openssl") is None:
        raise Failure("openssl is not there: apt-get install openssl")
    file = config.ClusterFile(settings, settings.cluster, settings.overrides)
    folder = settings.state / "tls"
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    if not (folder / "ca.pem").exists():
        _make_ca(folder)
    by_host = {}
    for daemon in file.daemons:
        host = HERE if config.is_here(daemon) else daemon.host
        by_host.setdefault(host, []).append(daemon)
    for host, daemons in by_host.items():
        if (folder / f"{host}.pem").exists():
            late = _without(folder / f"{host}.pem", daemons)
            say(f"{folder}/{host}.pem is there already" + (f", and not good for {', '.join(late)}: remove it, and make another" if late else ""))
            continue
        _make_certificate(folder, host, _names(host, daemons, file), settings.days)
        say(f"made {folder}/{host}.pem for {', '.join(d.name for d in daemons)}, good for {settings.days} days")
    if any(file.tls.values()):  # Its output may go to the cluster file again, which has such a line once.
        say(f"{settings.cluster} has tls; {own_command('up', settings=settings)} gives each host its own certificate")
        return 0
    paths = {"ca": "ca.pem", "certificate": "{host}.pem", "key": "{host}.key"}
    print(f"tls: {{{', '.join(f'{key}: {config.quoted(str(folder / name))}' for key, name in paths.items())}}}")
    say(f"add the line above to {settings.cluster}; then {own_command('up', settings=settings)} gives each host its own. Clients: "
        f"--tls-ca {folder}/ca.pem, or LAMINA_TLS_CA. Keep {folder}/ca.key: whoever has it can become a member")
    return 0


def _names(host, daemons, file):
    """Names and addresses that the host's certificate is good for."""
    names = [host, *(d.name for d in daemons)]
    if host == HERE:
        listens = [d.address.rpartition(":")[0] for d in daemons if d.address != "-"]
        names += ["127.0.0.1", "::1", socket.gethostname(), *listens]
        if file.advertise:
            names.append(file.advertise.rpartition(":")[0])
        names += _own_addresses()
    return [name.strip("[]") for name in dict.fromkeys(names) if name not in ("0.0.0.0", "[::]")]


def _without(certificate, daemons):
    """Names of daemons for which the certificate is not good, as of nodes that came to its host later."""
    names = re.findall(r"DNS:([^,\s]+)", _openssl("x509", "-in", certificate, "-noout", "-ext", "subjectAltName"))
    return [daemon.name for daemon in daemons if daemon.name not in names]


def _own_addresses():
    """Those of this host's interfaces, where `ip` tells them."""
    listed = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True) if shutil.which("ip") else None
    words = [line.split() for line in listed.stdout.splitlines()] if listed else []
    return [w[3].split("/")[0] for w in words if len(w) > 3 and w[2] in ("inet", "inet6") and not w[3].startswith("fe80")]


def _subject_names(names):
    parts = []
    for name in names:
        try:
            parts.append(f"IP:{ipaddress.ip_address(name)}")
        except ValueError:
            parts.append(f"DNS:{name}")
    return ",".join(parts)


def _openssl(*words):
    result = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        raise Failure(f"openssl {words[0]}: {result.stderr.strip().splitlines()[-1]}")
    return result.stdout


def _private(path):
    """Files that are made from here on are their owner's alone."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    return path


def _make_ca(folder):
    key = _private(folder / "ca.key")
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out",
             folder / "ca.pem", "-days", CA_DAYS, "-subj", f"/CN=Lamina cluster {folder.parent.name}")
    say(f"made the cluster's CA: {folder}/ca.pem")


def _make_certificate(folder, host, names, days):
    key = _private(folder / f"{host}.key")
    with tempfile.TemporaryDirectory() as work:
        extensions = Path(work) / "extensions"
        extensions.write_text(f"subjectAltName={_subject_names(names)}\nbasicConstraints=CA:FALSE\n"
                              "extendedKeyUsage=serverAuth,clientAuth\n")
        request = Path(work) / "request"
        _openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request,
                 "-subj", f"/CN={host[:64]}")
        _openssl("x509", "-req", "-in", request, "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial",
                 "-days", days, "-extfile", extensions, "-out", folder / f"{host}.pem")
