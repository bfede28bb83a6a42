#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/hosts: models, bundles and commands on another host, which is a folder of this one here."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import harness

sys.path.insert(0, str(harness.REPO / "deploy/hosts"))
import bundle  # noqa: E402
from cluster import stop_together  # noqa: E402
from host import Host, SshHost, for_any_shell  # noqa: E402
from output import HostFailure  # noqa: E402

# In place of ssh: runs the command here.
SHELL = """sh -c 'exec sh -c "$2"' sh"""


class FolderHost(SshHost):
    def __init__(self, home):
        super().__init__("other", SHELL)
        self.ssh = self.ssh[:4]  # Without the options of ssh.
        self.home = str(home)
        self.free_bytes = 1 << 30
        self.system = "Linux x86_64"


class BundleCopyTest(unittest.TestCase):

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-copy-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.home = self.folder / "home"
        self.home.mkdir()
        environment = mock.patch.dict(os.environ, HOME=str(self.home))
        environment.start()
        self.addCleanup(environment.stop)
        self.host = FolderHost(self.home)
        self.here = Host(self.folder, self.folder)
        self.model = self.folder / "model's file.gguf"  # A name that a shell must not read.
        self.model.write_bytes(os.urandom(3 << 20))
        self.sent = []

    def put(self, model=None, there="none"):
        """As for a host that has `there` at the model's path."""
        command = self.host.command
        send = bundle.send

        def ask(line, stdin=None, **limits):
            return there if "echo none" in line and there != "same" else command(line, stdin, **limits)

        def count(host, line, source, total, what):
            self.sent.append(total)
            send(host, line, source, total, what)

        with mock.patch.object(self.host, "command", ask), mock.patch.object(bundle, "send", count):
            return bundle.put_model(self.host, bundle.Model(self.here, model or self.model))

    def test_a_model_is_copied_once_by_its_content(self):
        path = Path(self.put())
        self.assertEqual(path.read_bytes(), self.model.read_bytes())
        self.assertTrue(path.is_relative_to(self.home / ".lamina/models"))
        self.assertEqual(self.put(), str(path))
        self.assertEqual(self.sent, [3 << 20])
        self.assertEqual(bundle.Model(self.here, self.model).hash(), hashlib.sha256(self.model.read_bytes()).hexdigest())

    def split(self):
        """The three parts of a model."""
        parts = [self.folder / f"model's split-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
        for part in parts:
            part.write_bytes(os.urandom(1000))
        return parts

    def test_all_parts_of_a_split_model_are_copied(self):
        parts = self.split()
        path = Path(self.put(parts[0]))
        self.assertEqual(path.name, parts[0].name)
        self.assertEqual([(path.parent / part.name).read_bytes() for part in parts], [part.read_bytes() for part in parts])
        self.assertFalse((path.parent / "partial").exists())
        self.assertEqual(self.put(parts[0]), str(path))
        self.assertEqual(self.sent, [1000] * 3)

        parts[2].write_bytes(os.urandom(1000))
        other = Path(self.put(parts[0]))
        self.assertNotEqual(other, path)
        self.assertEqual((other.parent / parts[2].name).read_bytes(), parts[2].read_bytes())

    def test_a_copy_of_parts_that_was_cut_short_goes_on_where_it_ended(self):
        parts = self.split()
        digest = bundle.Model(self.here, parts[0]).hash()[:bundle.DIGEST_LETTERS]
        folder = self.home / ".lamina/models" / digest
        (folder / "partial").mkdir(parents=True)
        (folder / "partial" / parts[0].name).write_bytes(parts[0].read_bytes())
        (folder / "partial" / parts[1].name).write_bytes(parts[1].read_bytes()[:400])
        (folder / parts[2].name).write_bytes(b"moved already")
        path = Path(self.put(parts[0]))
        self.assertEqual(self.sent, [0, 600, 1000])
        self.assertEqual([(path.parent / part.name).read_bytes() for part in parts], [part.read_bytes() for part in parts])

    def test_all_parts_at_the_same_path_are_looked_at(self):
        parts = self.split()
        self.assertEqual(self.put(parts[0], there="same"), str(parts[0]))
        self.assertEqual(self.sent, [])
        model = bundle.Model(self.here, parts[0])
        digest = model.hash()
        parts[1].write_bytes(os.urandom(1000))
        with self.assertRaisesRegex(HostFailure, "00001-of-00003.gguf, with its other parts, is another file there, of the same size"):
            bundle.put_model(self.host, model)
        parts[1].unlink()
        with self.assertRaisesRegex(HostFailure, "has 2000 bytes there and 3000 here"):
            bundle.put_model(self.host, model)
        self.assertEqual(model.hash(), digest)

    def test_the_same_file_at_the_same_path_is_taken(self):
        self.assertEqual(self.put(there="same"), str(self.model))
        self.assertEqual(self.sent, [])

    def test_another_file_at_that_path_is_named(self):
        with self.assertRaisesRegex(HostFailure, "has 17 bytes there and 3145728 here"):
            self.put(there="17")
        with mock.patch.object(bundle, "hash_of", side_effect=["one", "another"]), self.assertRaisesRegex(HostFailure, "another file there, of the same size"):
            self.put(there="same")

    def partial(self, content):
        digest = bundle.Model(self.here, self.model).hash()[:bundle.DIGEST_LETTERS]
        path = self.home / ".lamina/models" / digest / "partial" / self.model.name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

    def test_a_copy_that_was_cut_short_goes_on_where_it_ended(self):
        self.partial(self.model.read_bytes()[:1 << 20])
        self.assertEqual(Path(self.put()).read_bytes(), self.model.read_bytes())
        self.assertEqual(self.sent, [2 << 20])

    def test_a_copy_that_differs_is_taken_away_and_said(self):
        self.partial(b"x" * 100)
        with self.assertRaisesRegex(HostFailure, "differs from the original"):
            self.put()
        self.assertEqual(Path(self.put()).read_bytes(), self.model.read_bytes())

    def test_a_folder_is_a_model_too(self):
        folder = self.folder / "a model"
        (folder / "part").mkdir(parents=True)
        for name in ("config.json", "part/weights"):
            (folder / name).write_bytes(os.urandom(1000))
        path = Path(self.put(folder))
        for name in ("config.json", "part/weights"):
            self.assertEqual((path / name).read_bytes(), (folder / name).read_bytes())
        self.assertEqual(self.put(folder), str(path))

    def test_a_folder_of_links_is_a_model_too(self):
        """Hugging Face's cache has snapshots all of whose files are links."""
        folder, blobs = self.folder / "snapshot", self.folder / "blobs"
        folder.mkdir()
        (blobs / "part").mkdir(parents=True)
        for name in ("config", "part/weights"):
            (blobs / name).write_bytes(os.urandom(1000))
        (folder / "config.json").symlink_to(blobs / "config")
        (folder / "part").symlink_to(blobs / "part")
        (folder / "loop").symlink_to(folder)
        path = Path(self.put(folder))
        self.assertEqual((path / "config.json").read_bytes(), (blobs / "config").read_bytes())
        self.assertEqual((path / "part/weights").read_bytes(), (blobs / "part/weights").read_bytes())
        self.assertEqual(self.sent, [1000, 1000])
        self.assertEqual(self.put(folder), str(path))

        (blobs / "config").write_bytes(b"another one")
        self.assertNotEqual(self.put(folder), str(path))

    def test_the_hash_of_the_model_here_is_taken_once_for_all_hosts(self):
        model = bundle.Model(self.here, self.model)
        with mock.patch.object(bundle, "hash_of", return_value="one") as taken, ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(lambda _: model.hash(), range(4))), ["one"] * 4)
        taken.assert_called_once()

    def test_the_hash_of_a_large_model_has_the_time_that_it_takes(self):
        with mock.patch.object(self.here, "command", return_value="hash\n") as command:
            self.assertEqual(bundle.hash_of(self.here, ["model"], 140 << 30), "hash")
        self.assertGreater(command.call_args.kwargs["timeout"], 3600)

    def test_a_command_that_takes_too_long_is_a_failure_of_its_host(self):
        for host in (self.here, self.host):
            with self.assertRaisesRegex(HostFailure, f"{host.name}: no answer within 0 s"):
                host.command("exec sleep 10", timeout=0.05)

    def test_what_is_there_of_a_copy_needs_no_room(self):
        self.partial(self.model.read_bytes()[:1 << 20])
        self.host.free_bytes = 1 << 20
        with self.assertRaisesRegex(HostFailure, "1 MiB are free in .*, and the rest of the model needs 2 MiB"):
            self.put()
        self.host.free_bytes = 5 << 19  # Not enough for all of it.
        self.assertEqual(Path(self.put()).read_bytes(), self.model.read_bytes())

    def test_what_does_not_fit_is_not_begun(self):
        self.host.free_bytes = 3 << 20
        with self.assertRaisesRegex(HostFailure, "3 MiB are free in .*, and the model needs 3 MiB"):
            self.put()
        self.assertEqual(self.sent, [])

    def test_a_bundle_that_is_there_is_taken_if_it_is_of_this_version(self):
        bin_folder = self.folder / "opt/bin"
        bin_folder.mkdir(parents=True)
        with self.assertRaisesRegex(HostFailure, "no bin/lamina that runs"):
            bundle.check_bundle_dir(self.host, str(self.folder / "opt"), "1.2.3")
        (bin_folder / "lamina").write_text("#!/bin/sh\necho lamina 1.2.3\n")
        (bin_folder / "lamina").chmod(0o755)
        bundle.check_bundle_dir(self.host, str(self.folder / "opt"), "1.2.3")
        self.assertEqual(self.host.bin, str(bin_folder))
        with self.assertRaisesRegex(HostFailure, "has version 1.2.3, and this host 1.2.4"):
            bundle.check_bundle_dir(self.host, str(self.folder / "opt"), "1.2.4")


class CommandTest(unittest.TestCase):

    def test_a_command_is_the_same_whatever_the_login_shell_is(self):
        words = ["it's", "a\\b", "\\0101", "wait!", "two\nlines", "$HOME `id`", "%s", "ü"]
        line = for_any_shell(f"printf '<%s>' {shlex.join(words)}\ncat")
        # In quotes csh takes no line ends and looks for events behind !, and fish takes two backslashes for one.
        self.assertNotRegex(line, r"[\n!]|\\(?!0[0-7]{3})")
        self.assertTrue(line.isascii())
        for shell in filter(shutil.which, ("sh", "bash", "zsh", "csh", "tcsh", "fish")):
            result = subprocess.run([shell, "-c", line], input="stdin", capture_output=True, text=True)
            self.assertEqual(result.stdout, "".join(f"<{word}>" for word in words) + "stdin", shell)

    def test_a_log_of_a_host_that_does_not_answer_is_empty(self):
        host = SshHost("other", "sh -c 'exit 255'")
        self.assertEqual(host.log_tail("m0"), "")
        with self.assertRaises(HostFailure):
            host.pids()

    def test_a_host_is_logged_in_to_once_for_all_daemons_that_stop(self):
        hosts = [mock.Mock(stop=mock.Mock(return_value=[])) for _ in range(2)]
        hosts[0].name, hosts[1].name = "n1", "n2"
        hosts[1].stop.side_effect = HostFailure("n2", "gone")
        failures = stop_together([(hosts[0], "m0"), (hosts[1], "m1"), (hosts[0], "m2")], 7)
        hosts[0].stop.assert_called_once_with(["m0", "m2"], 7)
        hosts[1].stop.assert_called_once_with(["m1"], 7)
        self.assertEqual(list(failures), ["n2"])


# In place of deploy/bundle.sh: says that it ran, and copies the programs.
MAKER = """#!/bin/sh
set -e
[ "$1 $3" = "--build --out" ]
echo once >> "$2/made"
rm -rf "$4"
mkdir "$4"
cp -r "$2/bin" "$4/bin"
"""


class BundleOfTest(unittest.TestCase):

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lamina-bundle-")))
        self.build = self.folder / "m/build"
        for name in ("m/build/bin/lamina", "m/build/lib/lamina-more.so", "deploy/bundle.sh"):
            (self.folder / name).parent.mkdir(parents=True)
            (self.folder / name).write_text(MAKER)
        (self.folder / "deploy/bundle.sh").chmod(0o755)
        self.enterContext(mock.patch.object(bundle.config, "REPO", self.folder))
        self.enterContext(mock.patch.object(bundle, "say"))

    def bundle_of(self, place="m/build/bin"):
        return bundle.bundle_of(mock.Mock(bin=self.folder / place))

    def times_made(self):
        return (self.build / "made").read_text().count("once")

    def test_is_made_once_for_a_build_wherever_its_programs_are_named(self):
        # Names that sort before and behind the build's.
        for place in ("a", "z"):
            (self.folder / place).symlink_to(self.build / "bin")
            with self.bundle_of(place) as made:
                self.assertEqual(made, self.build / "bundle")
        with self.bundle_of():
            self.assertEqual(self.times_made(), 1)

    def test_stays_while_another_command_wants_it_made_anew(self):
        anew = threading.Event()

        def make_anew():
            with self.bundle_of():
                anew.set()

        with self.bundle_of() as made:
            (self.build / "bin/lamina").write_text("newer, and longer")
            other = threading.Thread(target=make_anew)
            other.start()
            self.assertFalse(anew.wait(0.3))
            self.assertEqual((made / "bin/lamina").read_text(), MAKER)
        other.join()
        self.assertEqual((made / "bin/lamina").read_text(), "newer, and longer")
        self.assertEqual(self.times_made(), 2)


if __name__ == "__main__":
    unittest.main()
