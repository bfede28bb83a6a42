# SPDX-License-Identifier: Apache-2.0
"""The programs, and the model, on other hosts: copied once, by their content, to ~/.lamina of the user there."""

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path

import settings as config
from host import COMMAND_SECONDS, bracketed
from output import Failure, HostFailure, say

PARTS = ("bin", "lib", "libexec", "run", "share")
DIGEST_LETTERS = 16
CHUNK_BYTES = 1 << 20
PROGRESS_SECONDS = 2
BUNDLES_KEPT = 3
# A model is read at this rate at least where its hash is taken.
HASH_BYTES_PER_SECOND = 10 << 20


@contextlib.contextmanager
def bundle_of(settings):
    """The folder of a bundle of this host's programs; made by deploy/bundle.sh where there is none of this build.

    No other command replaces it before the block is left: it may be on its way to a host.
    """
    if (settings.bin.parent / "BUNDLE").is_file():
        yield settings.bin.parent
        return
    build = settings.bin.resolve().parent
    with open(build / "bundle.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while (wanted := _made_of(build)) != _stamp_of(build):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _stamp_of(build) != wanted:  # Another command may have made it meanwhile.
                _make_bundle(build, wanted)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield build / "bundle"


def _made_of(build):
    """What the programs of a build are known by: the same for all commands, wherever they were typed."""
    files = [*sorted((build / "bin").glob("lamina*")), *sorted((build / "lib").glob("*.so"))]
    return "".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}\n" for file in files)


def _stamp_of(build):
    stamp = build / "bundle/made_of"
    return stamp.read_text() if stamp.is_file() else None


def _make_bundle(build, wanted):
    say("making a bundle of the programs, for the other hosts")
    made = subprocess.run([str(config.REPO / "deploy/bundle.sh"), "--build", str(build), "--out", str(build / "bundle")],
                          capture_output=True, text=True)
    if made.returncode != 0:
        raise Failure(made.stderr.strip())
    (build / "bundle/made_of").write_text(wanted)


@contextlib.contextmanager
def programs(cluster):
    """Yields a function that sees to it that a host has the programs, and has its `bin` point there. Errors: HostFailure."""
    folder = cluster.file.bundle_dir
    if folder:
        version = cluster.here.version()
        yield lambda host: check_bundle_dir(host, folder, version)
        return
    with bundle_of(cluster.settings) as made:
        key = digest(made)
        yield lambda host: put_bundle(host, made, key)


def digest(bundle):
    """Of names, modes and bytes, so that equal programs are one version however they came to be."""
    total = hashlib.sha256()
    for part in PARTS:
        top = bundle / part
        for path in sorted([top, *top.rglob("*")]):
            if path.is_file():
                mode = "x" if os.access(path, os.X_OK) else "-"
                total.update(f"{path.relative_to(bundle)} {mode} ".encode())
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:DIGEST_LETTERS]


def size_of(bundle):
    return sum(path.stat().st_size for part in PARTS for path in [bundle / part, *(bundle / part).rglob("*")]
               if path.is_file())


def _mib(count):
    return f"{count / 2**20:.0f} MiB"


def need_space(host, count, what):
    # A tenth more, for what else a host writes meanwhile.
    if host.free_bytes < count * 1.1:
        raise HostFailure(host.name, f"{_mib(host.free_bytes)} are free in {host.home}, and {what} needs {_mib(count)}: "
                          "make room there, or name a bundle that lies elsewhere (bundle.dir)")


def put_bundle(host, bundle, key):
    """Sees to it that the host has that bundle, and has `host.bin` point into it. Errors: HostFailure."""
    target = f"{host.home}/.lamina/bundles/{key}"
    host.bin = f"{target}/bin"
    if host.command(f"test -x {shlex.quote(target)}/bin/lamina && echo there || true").strip() == "there":
        return
    count = size_of(bundle)
    need_space(host, count, "the bundle")
    say(f"{host.name}: copying the programs, {_mib(count)}")
    partial = f"{target}.partial"
    host.command(f"mkdir -p {shlex.quote(partial)}")
    if host.has_rsync and _have_rsync():
        _rsync(host, bundle, partial)
    else:
        _tar(host, bundle, partial)
    tried = host.command(f"{shlex.quote(partial)}/bin/lamina --version 2>&1 || echo \"failed: $?\"")
    if not tried.startswith("lamina "):
        raise HostFailure(host.name, f"the programs do not run there ({host.system}): {tried.strip().splitlines()[0]}; "
                          "a bundle needs Debian 12's C library or a newer one, and the same kind of processor")
    host.command(f"rm -rf {shlex.quote(target)} && mv {shlex.quote(partial)} {shlex.quote(target)}")
    _prune(host)


def check_bundle_dir(host, folder, version):
    """Has `host.bin` point into a bundle that is there. Errors: HostFailure when it is none, or another version."""
    host.bin = f"{folder}/bin"
    found = host.version()
    if found == "no programs":
        raise HostFailure(host.name, f"bundle.dir: {folder} has no bin/lamina that runs; put a bundle there (deploy/bundle.sh), "
                          "or leave bundle.dir out, and it is copied")
    if found != version:
        raise HostFailure(host.name, f"bundle.dir: {folder} has version {found}, and this host {version}; install the same "
                          "everywhere, or leave bundle.dir out")


def _have_rsync():
    return any(os.access(f"{folder}/rsync", os.X_OK) for folder in os.get_exec_path())


def _rsync(host, bundle, target):
    sources = [f"{bundle}/{part}" for part in PARTS if (bundle / part).exists()]
    done = subprocess.run(["rsync", "-a", "--delete", "-e", shlex.join(host.ssh), *sources, f"{bracketed(host.name)}:{target}/"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostFailure(host.name, f"could not copy the programs: {host.explain(0, done.stderr)}")


def _tar(host, bundle, target):
    parts = [part for part in PARTS if (bundle / part).exists()]
    source = subprocess.Popen(["tar", "-C", str(bundle), "-cz", *parts], stdout=subprocess.PIPE)
    with source:
        send(host, f"tar -C {shlex.quote(target)} -xzf -", source.stdout, 0, "the programs")


def _prune(host):
    """Old versions that nothing runs from go."""
    host.command(f'cd {shlex.quote(host.home)}/.lamina/bundles && ls -1t | tail -n +{BUNDLES_KEPT + 1} | '
                 'while read -r old; do ls -l /proc/[0-9]*/exe 2> /dev/null | grep -qF "/$old/" || rm -rf "./$old"; done')


def send(host, command, source, total, what):
    """Streams a file object into a command of the host, telling how far it is where that takes long."""
    sent = 0
    told = time.monotonic()
    with subprocess.Popen(host.words(command), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE) as process:
        try:
            while chunk := source.read(CHUNK_BYTES):
                process.stdin.write(chunk)
                sent += len(chunk)
                if total > 0 and time.monotonic() > told + PROGRESS_SECONDS:
                    told = time.monotonic()
                    say(f"{host.name}: {what}: {100 * sent // total}% of {_mib(total)}")
            process.stdin.close()
        except BrokenPipeError:
            pass  # What it wrote says why.
        words = process.stderr.read().decode(errors="replace")
        if process.wait() != 0:
            raise HostFailure(host.name, f"could not copy {what}: {host.explain(process.returncode, words)}")


# --- the model -----------------------------------------------------------------------------------

# Prints the SHA-256 of a file, of a split's parts in turn, or of a folder's files with their names; remembered while sizes and times
# stay. Files may be links, as in Hugging Face's cache.
_HASH = r"""set -e
list() { if [ -d "$1" ]; then cd "$1" && find -L . -type f -printf "%P %s %T@\n" | LC_ALL=C sort; else stat -L -c "%s %.Y %i" "$@"; fi; }
memory="$HOME/.lamina/hashes/$(printf "%s\n%s" "$*" "$(list "$@")" | sha256sum | cut -c1-32)"
if [ ! -s "$memory" ]; then
  mkdir -p "$HOME/.lamina/hashes"
  if [ -d "$1" ]; then
    (cd "$1" && find -L . -type f | LC_ALL=C sort | while read -r f; do sha256sum "$f"; done | sha256sum) > "$memory.$$"
  elif [ $# = 1 ]; then
    sha256sum < "$1" > "$memory.$$"
  else
    for f; do sha256sum < "$f"; done | sha256sum > "$memory.$$"
  fi
  mv "$memory.$$" "$memory"
fi
cut -c1-64 "$memory"
"""


# The first part of a GGUF file that is split (docs/models.md), whose name has those of the others.
_FIRST_PART = re.compile(r"(.+)-00001-of-(\d{5})\.gguf", re.DOTALL)


def parts_of(path):
    """What a model has where it lies: its file, or the parts of one that is split, as far as they are there; or its folder."""
    first = _FIRST_PART.fullmatch(str(path))
    if first is None or path.is_dir():
        return [path]
    name, count = first.groups()
    others = (Path(f"{name}-{number:05}-of-{count}.gguf") for number in range(2, int(count) + 1))
    return [path, *filter(Path.is_file, others)]


def hash_of(host, paths, count):
    """The SHA-256 of the model at those paths of the host, which has about `count` bytes."""
    return host.command(f"set -- {shlex.join(paths)}\n{_HASH}", timeout=COMMAND_SECONDS + count / HASH_BYTES_PER_SECOND).strip()


def files_of(path):
    """The files of a model, sorted: those that the hash is of, also behind links."""
    if not path.is_dir():
        return parts_of(path)
    found = []
    for folder, folders, names in os.walk(path, followlinks=True):
        # A link to a folder that it lies in is not followed.
        real = f"{os.path.realpath(folder)}/"
        folders[:] = [name for name in folders if not real.startswith(f"{os.path.realpath(os.path.join(folder, name))}/")]
        found += [file for file in (Path(folder, name) for name in names) if file.is_file()]
    return sorted(found)


class Model:
    """The model of this host: a file, all parts of a split, or a folder. Its hash is taken once for all other hosts, by the first to ask.

    Threading: any thread.
    """

    def __init__(self, local, path):
        self.path = str(path)
        self.parts = [str(part) for part in parts_of(Path(path))]
        self.files = files_of(Path(path))
        self.bytes = sum(file.stat().st_size for file in self.files)
        self._local = local
        self._lock = threading.Lock()
        self._hash = ""

    def hash(self):
        with self._lock:
            self._hash = self._hash or hash_of(self._local, self.parts, self.bytes)
            return self._hash


def put_model(host, model):
    """Where the host has the same model: at the same path, or else copied there. Errors: HostFailure."""
    path, count = model.path, model.bytes
    there = host.command(f"set -- {shlex.join(model.parts)}; if [ -d \"$1\" ]; then echo folder; elif [ -e \"$1\" ]; then "
                         "n=0; for f; do [ ! -e \"$f\" ] || n=$((n + $(wc -c < \"$f\"))); done; echo $n; else echo none; fi").strip()
    what = path if len(model.parts) == 1 else f"{path}, with its other parts,"
    if there != "none":
        if there not in ("folder", str(count)):
            raise HostFailure(host.name, f"{what} has {there} bytes there and {count} here: another model, or a copy that was cut "
                              "short; copy it again, or remove it there and it is copied")
        if model.hash() != hash_of(host, model.parts, count):
            raise HostFailure(host.name, f"{what} is another file there, of the same size: copy it again, or remove it there and it "
                              "is copied")
        return path
    names = [Path(part).name for part in model.parts]
    folder = f"{host.home}/.lamina/models/{model.hash()[:DIGEST_LETTERS]}"
    target = f"{folder}/{names[0]}"
    if host.command(f"test -e {shlex.quote(target)} && echo there || true").strip() == "there":
        return target
    partial = f"{folder}/partial"
    copies = [f"{partial}/{name}" for name in names]
    _copy_model(host, model, partial)
    if hash_of(host, copies, count) != model.hash():
        host.command(f"rm -rf {shlex.quote(folder)}")
        raise HostFailure(host.name, f"the copy of {names[0]} differs from the original: the network or the disk damaged it; try again")
    # The first part goes last: where it is, all are.
    host.command(f"mv {shlex.join(reversed(copies))} {shlex.quote(folder)} && rmdir {shlex.quote(partial)}")
    return target


def _copy_model(host, model, folder):
    """Goes on where a copy that was cut short has ended."""
    parts = []  # (file, its size, its place there, how much of it is there).
    for file in model.files:
        at = f"{folder}/{file.relative_to(Path(model.path).parent)}"
        place = shlex.quote(at)
        had = int(host.command(f"mkdir -p {shlex.quote(os.path.dirname(at))}; wc -c < {place} 2> /dev/null || echo 0"))
        size = file.stat().st_size
        parts.append((file, size, place, had if had <= size else 0))
    missing = sum(size - had for _, size, _, had in parts)
    need_space(host, missing, "the model" if missing == model.bytes else "the rest of the model")
    say(f"{host.name}: copying the model, {_mib(missing)}")
    for file, size, place, had in parts:
        with open(file, "rb") as source:
            source.seek(had)
            send(host, f"cat {'>>' if had else '>'} {place}", source, size - had, file.name)
