#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart.sh, build.sh, bundle.sh and install_packages.sh around programs that only pretend.

Each test has a copy of the scripts, in a folder whose name has a space.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cluster_script_test import DAEMON, GATEWAY, LAMINA
from harness import BIN, NEVER_RETRIED, REPO, run

# Keeps its command lines, and configures as far as deploy/build.sh looks.
CMAKE = """#!/bin/bash
echo "$*" >> '{folder}/cmake.log'
[[ $1 == --preset ]] || exit 0
mkdir -p build/release
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" > build/release/CMakeCache.txt
[[ ! -d build/xgrammar ]] || library=lamina_xgrammar
echo "$library" > build/release/build.ninja
"""

# Another program holds dpkg's lock: only who waits for it gets it.
APT_GET = """#!/bin/bash
[[ $1 == install ]] || exit 0
[[ " $* " == *" DPkg::Lock::Timeout="* ]] || { echo "E: Could not get lock" >&2; exit 100; }
[[ -n $http_proxy ]] || { echo "E: Could not connect" >&2; exit 100; }
"""

# As in most places, it keeps no variable that it is not asked to keep.
SUDO = """#!/bin/bash
[[ $1 == --preserve-env=*http_proxy* ]] && shift || unset http_proxy
exec "$@"
"""

# Fails the tests that a file names, each as often as it says there, with a log and a summary like CTest's. Another file says of some how
# many failures are left when they say that an answer was wrong.
CTEST = """#!/usr/bin/env python3
import json, pathlib, re, sys
state = pathlib.Path("{folder}/tests.json")
tests = json.loads(state.read_text())
wrong = json.loads(pathlib.Path("{folder}/wrong.json").read_text())
with open("{folder}/ctest.log", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
chosen = sys.argv[sys.argv.index("--tests-regex") + 1] if "--tests-regex" in sys.argv else "."
runs = int(sys.argv[sys.argv.index("--repeat") + 1].split(":")[1]) if "--repeat" in sys.argv else 1
failed = []
for number, name in enumerate(tests, 1):
    if re.search(chosen, name):
        for _ in range(runs):
            good = tests[name] == 0
            result = "Passed " if good else "***Failed "
            print(f"1/9 Test #{{number}}: {{name}} ....   {{result}} {{number}}.00 sec")
            if not good and wrong.get(name) == tests[name]:
                print("AssertionError: [1] != [2] : {mark}")
            tests[name] = max(0, tests[name] - 1)
            if good:
                break
        failed += [] if good else [f"{{number}}:{{name}}"]
state.write_text(json.dumps(tests))
print("\\nLabel Time Summary:\\nhostile    = 180.00 sec*proc (1 test)\\nunit       =  12.00 sec*proc (2 tests)\\n")
folder = pathlib.Path(sys.argv[sys.argv.index("--test-dir") + 1]) / "Testing/Temporary"
folder.mkdir(parents=True, exist_ok=True)
if failed:
    (folder / "LastTestsFailed.log").write_text("\\n".join(failed) + "\\n")
sys.exit(8 if failed else 0)
"""

# Has it a child, it says how that one ended.
WAITS_FOR_A_CHILD = """#!{python}
import os
try:
    print(os.waitpid(-1, 0))
except ChildProcessError:
    print("none")
"""

# As of Slurm 22.05. Host n1 has two GPUs of the job, n2 has one, n3 none.
SCONTROL = """#!/bin/bash
[[ $1 != --details ]] || exec cat '{folder}/job'
[[ $2 != job ]] || exec echo '   Command={repository}/deploy/slurm/lamina.sbatch m'
case $3 in
  'n[1-3]') printf '%s\\n' n1 n2 n3 ;;
  'n[4-5]') printf '%s\\n' n4 n5 ;;
  *) echo "$3" ;;
esac
"""
SLURM_JOB = """JobId=7 HetJobId=7 HetJobOffset=0 JobName=lamina
   NodeList=n[1-3]
   NumNodes=3 NumCPUs=12 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:a100:3,nic:1
     Nodes=n1 CPU_IDs=0-3 Mem=1500 GRES=gpu:a100:2(IDX:0,3),nic:1(IDX:0)
     Nodes=n2 CPU_IDs=0-3 Mem=1500 GRES=gpu:1(IDX:5)
     Nodes=n3 CPU_IDs=0-3 Mem=1500 GRES=
   MinCPUsNode=1 MinMemoryNode=1500M MinTmpDiskNode=0

JobId=8 HetJobId=7 HetJobOffset=1 JobName=lamina
   NodeList=n[4-5]
   JOB_GRES=gpu:8
     Nodes=n[4-5] CPU_IDs=0-7 Mem=1000 GRES=gpu:4(IDX:0-3)
"""

# A step ends with its program. All that are told to stop are nodes.
SRUN = """#!/bin/bash
export SLURM_PROCID=0
while [[ $1 == --* ]]; do
  shift
done
exec "$@"
"""
SCANCEL = """#!/bin/bash
xargs kill -TERM < '{folder}/nodes'
"""
# It fails once all nodes run; they wait for another one, and here not for ever.
SLURM_COORDINATOR = """#!/bin/bash
echo n1:7400 > "${{@: -1}}"
for ((i = 0; i < 400 && $(wc -l < '{folder}/nodes') < 5; ++i)); do
  sleep 0.05
done
exit 3
"""
SLURM_NODE = """#!/bin/bash
trap 'exit 0' TERM
echo $$ >> '{folder}/nodes'
for ((i = 0; i < 400; ++i)); do
  sleep 0.05
done
"""
SLURM_LAMINA = """#!/bin/bash
[[ $1 == config ]] && exec cat "$3"
"""

# The C library and the C++ runtime.
SYSTEM = ("libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libresolv.so", "libstdc++.so",
          "libgcc_s.so")


class DeployScriptsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-deploy-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.repository = self.folder / "a clone"
        for part in ("deploy", "docs", "cost/catalogues"):
            shutil.copytree(REPO / part, self.repository / part)
        self.path = self.folder / "path"
        self.path.mkdir()

    @staticmethod
    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, name, *arguments, repository=None, **variables):
        """Whatever is required around this test (.ci/run), these scripts require what `variables` say."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("LAMINA_REQUIRE_")}
        environment = {**own, "PATH": f"{self.path}:{os.environ['PATH']}", **variables}
        return subprocess.run([str((repository or self.repository) / "deploy" / name), *arguments],
                              capture_output=True, text=True, cwd=self.folder, timeout=120,
                              env=environment)

    def test_the_quick_start_takes_settings_and_says_where_its_cluster_is(self):
        for script in ("install_packages.sh", "get_model.sh", "build.sh"):
            self.write(self.repository / "deploy" / script, "#!/bin/sh\n")
        (self.repository / "models").mkdir()
        (self.repository / "models/smollm2-135m-instruct.gguf").touch()
        binaries = self.repository / "build/release/bin"
        for role in ("coordinator", "compute", "memory"):
            self.write(binaries / f"lamina-{role}", DAEMON.format(dir=self.folder))
        self.write(binaries / "lamina-gateway", GATEWAY.format(dir=self.folder))
        lamina = LAMINA.replace("else\n", "elif [[ $1 == generate ]]; then\n  echo An answer.\nelse\n")
        self.write(binaries / "lamina", lamina.format(dir=self.folder, bin=BIN))
        (self.folder / "state").write_text("serving")
        self.addCleanup(self.run_script, "cluster.sh", "down", "--grace", "1")
        local = self.repository / "deploy/clusters/local.yaml"  # Another cluster may have its ports here.
        local.write_text(re.sub(r", http: [0-9.:]+", "", local.read_text()))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            setting = ("--set", "coordinator.listen=127.0.0.1:0", "--set", f"gateway.listen=127.0.0.1:{port}")
            refused = self.run_script("quickstart.sh", *setting)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--set gateway.listen=127.0.0.1:0", refused.stderr)

        kept = self.run_script("quickstart.sh", "--keep", *setting[:3], "gateway.listen=127.0.0.1:0")

        self.assertEqual(kept.returncode, 0, kept.stderr)
        self.assertIn("An answer.", kept.stdout)
        self.assertIn("export LAMINA_SERVER=127.0.0.1:7999", kept.stdout)
        self.assertRegex(kept.stdout, "curl http://127.0.0.1:[0-9]+/v1/chat/completions")

        again = self.run_script("quickstart.sh", LAMINA_TLS_CA="/nonexistent/of_another_cluster.pem", LAMINA_SERVER="127.0.0.1:7998")

        self.assertEqual(again.returncode, 0, "one that runs keeps its settings: " + again.stderr)
        self.assertIn("An answer.", again.stdout)
        self.assertIn("The cluster runs at 127.0.0.1:7999. Try:\n  export LAMINA_SERVER=127.0.0.1:7999\n  unset LAMINA_TLS_CA\n", again.stdout)
        self.assertEqual(self.run_script("cluster.sh", "down", "--grace", "1").returncode, 0)

    def test_scripts_find_their_own_folder_whatever_cdpath_says(self):
        other = self.folder / "other"
        (other / "deploy").mkdir(parents=True)
        for folders in (".", str(other), f":.:{other}"):
            for script, *arguments in (("cluster.sh", "--help"), ("install_packages.sh", "--list")):
                with self.subTest(script, folders=folders):
                    done = subprocess.run([f"deploy/{script}", *arguments], capture_output=True, text=True, cwd=self.repository,
                                          timeout=120, env={**os.environ, "CDPATH": folders})
                    self.assertEqual((done.returncode, done.stderr), (0, ""))

    def builds(self, repository=None, **variables):
        """What cmake was asked for by a build."""
        log = self.folder / "cmake.log"
        log.unlink(missing_ok=True)
        done = self.run_script("build.sh", repository=repository, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line for line in log.read_text().splitlines() if not line.startswith("--build")]

    def test_a_build_is_configured_again_where_it_must_be(self):
        self.write(self.path / "cmake", CMAKE.format(folder=self.folder))
        self.write(self.repository / "deploy/get_xgrammar.sh", "#!/bin/sh\nexit 1\n")
        self.assertEqual(self.builds(), ["--preset release"])
        self.assertEqual(self.builds(), [])

        (self.repository / "build/xgrammar").mkdir()
        self.assertEqual(self.builds(), ["--preset release"], "the sources have come")
        self.assertEqual(self.builds(), [])

        copy = self.folder / "another clone"
        shutil.copytree(self.repository, copy)
        self.assertEqual(self.builds(copy), ["--preset release --fresh"], "not the first one's sources")
        self.assertEqual(self.builds(copy), [])

    def test_a_build_without_what_is_required_fails(self):
        self.write(self.path / "cmake", CMAKE.format(folder=self.folder))
        self.write(self.repository / "deploy/get_xgrammar.sh", "#!/bin/sh\nexit 1\n")
        done = self.run_script("build.sh", LAMINA_REQUIRE_XGRAMMAR="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("XGrammar's sources are missing and LAMINA_REQUIRE_XGRAMMAR is 1", done.stderr)
        self.assertFalse((self.folder / "cmake.log").exists())

        # libibverbs is what CMake looks for: it is asked again where the build has none.
        self.assertEqual(self.builds(), ["--preset release"])
        self.assertEqual(self.builds(LAMINA_REQUIRE_VERBS="1"), ["--preset release"])
        with (self.repository / "build/release/build.ninja").open("a") as ninja:
            ninja.write("build verbs_transport.cc.o: CXX verbs_transport.cc\n")
        self.assertEqual(self.builds(LAMINA_REQUIRE_VERBS="1"), [])

    def test_a_build_that_fails_says_why_whatever_its_log_has(self):
        self.write(self.repository / "deploy/get_xgrammar.sh", "#!/bin/sh\nexit 1\n")
        for last in ("ninja: build stopped: interrupted by user.", "Error: could not load cache", "a.cc:1:1: error: expected ';'"):
            self.write(self.path / "cmake", CMAKE.format(folder=self.folder).replace("|| exit 0", f'|| {{ echo "{last}"; exit 1; }}'))
            done = self.run_script("build.sh")
            self.assertEqual(done.returncode, 1)
            self.assertIn(last, done.stderr)
            self.assertIn("the whole output is in build/release-build.log", done.stderr)

    def test_continuous_integration_requires_what_groups_of_tests_need(self):
        required = set(re.findall(r"^export (LAMINA_REQUIRE_\w+)=1$", (REPO / ".ci/run").read_text(), re.MULTILINE))
        self.assertLessEqual({f"LAMINA_REQUIRE_{what}" for what in ("MODEL", "RDMA_VM", "NAMESPACES", "CLUSTER_TESTS", "XGRAMMAR", "VERBS")},
                             required)
        looked_for = (REPO / "cmake/LaminaDependencies.cmake").read_text()
        for what in ("XGRAMMAR", "VERBS"):
            self.assertRegex(looked_for, rf'if\("\$ENV{{LAMINA_REQUIRE_{what}}}" STREQUAL "1" AND NOT LAMINA_HAVE_{what}\)\n  message\(FATAL_ERROR')

    def test_a_bundle_has_what_programs_load_and_can_be_made_again(self):
        build = self.repository / "build/cuda"
        for name in ("tests/cuda_gpu_test", "tests/cuda_node_gpu_test", "tests/cuda_ipc_gpu_test", "bin/lamina-gpu-bench",
                     "bin/lamina-gateway", "lib/lamina-sentencepiece.so", "../release/bin/lamina",
                     "../release/bin/lamina-memory"):
            self.write(build / name, "")
            shutil.copy("/bin/true", build / name)
        self.write(self.folder / "small.gguf", "weights")
        out = self.folder / "out"
        # As left by a run that was interrupted.
        self.write(self.path / "strip", "#!/bin/sh\nexit 1\n")
        self.assertNotEqual(self.run_script("bundle.sh", "--cuda", "--out", str(out)).returncode, 0)
        (self.path / "strip").unlink()

        done = self.run_script("bundle.sh", "--cuda", "--model", str(self.folder / "small.gguf"), "--out", str(out))

        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("lib/lamina-sentencepiece.so", "bin/lamina-gateway", "bin/lamina", "BUNDLE", "run",
                     "deploy/gpu_check.sh", "deploy/gpu_tests.py", "deploy/gpu_serve.py",
                     "deploy/gpu_calibration.py", "deploy/gpu_torch.py", "models/small.gguf", "deploy/slurm/lamina.sbatch",
                     "deploy/systemd/lamina-memory@.service", "deploy/kubernetes/base/kustomization.yaml", "deploy/monitoring/alerts.yml", "docs/clusters.md"):
            self.assertTrue((out / name).exists(), name)
        # The one of preset release knows no CUDA.
        self.assertFalse((out / "bin/lamina-memory").exists())
        self.assertIn("lamina-memory is not built, and left out", done.stderr)
        self.assertEqual(subprocess.run([str(out / "run"), "bin/lamina-gateway"]).returncode, 0)

        # A program takes the place of `run`, so that what that one started and did not wait for would be the program's.
        self.write(out / "libexec/waits", WAITS_FOR_A_CHILD.format(python=sys.executable))
        for library in ("libm.so.6", "libcublasLt.so.13"):
            self.write(self.path / "ldd", f"#!/bin/sh\nprintf '\\t{library} => found\\n'\n")
            for _ in range(5):
                done = subprocess.run([str(out / "run"), "libexec/waits"], capture_output=True, text=True,
                                      env={**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}"})
                self.assertEqual(done.stdout, "none\n", done.stderr)

    def test_a_library_of_two_programs_is_in_a_bundle_once(self):
        build = self.repository / "build/cuda"
        for name in ("tests/cuda_gpu_test", "tests/cuda_node_gpu_test", "tests/cuda_ipc_gpu_test", "bin/lamina-gpu-bench"):
            self.write(build / name, "")
            shutil.copy("/bin/true", build / name)
        self.write(self.folder / "libshared.so.1", "")
        self.write(self.path / "ldd", f"#!/bin/sh\nprintf '\\tlibshared.so.1 => {self.folder}/libshared.so.1 (0x7f)\\n'\n")
        # With -n coreutils 9.2 to 9.4 fail where the file is there.
        self.write(self.path / "cp", f"""#!/bin/bash
[[ $1 != -*n* || ! -e ${{@: -1}}/libshared.so.1 ]] || exit 1
exec {shutil.which("cp")} "$@"
""")
        done = self.run_script("bundle.sh", "--cuda", "--out", str(self.folder / "out"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.folder / "out/lib/libshared.so.1").exists())

    def test_a_program_of_a_bundle_finds_cuda_where_it_is_named(self):
        build = self.repository / "build/cuda"
        for name in ("tests/cuda_gpu_test", "tests/cuda_node_gpu_test", "tests/cuda_ipc_gpu_test", "bin/lamina-gpu-bench"):
            self.write(build / name, "")
            shutil.copy("/bin/true", build / name)
        out = self.folder / "out"
        done = self.run_script("bundle.sh", "--cuda", "--out", str(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.write(out / "libexec/says", '#!/bin/sh\necho "$LD_LIBRARY_PATH"\n')
        self.write(self.path / "ldd", "#!/bin/sh\nprintf '\\tlibcublasLt.so.13 => not found\\n'\n")
        libraries = self.folder / "libraries of CUDA"
        libraries.mkdir()
        environment = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", "LAMINA_CUDA_LIBRARIES": str(libraries)}
        environment.pop("CUDA_HOME", None)

        def start():
            return subprocess.run([str(out / "run"), "libexec/says"], capture_output=True, text=True, env=environment)

        without = start()
        (libraries / "libcublasLt.so.13").touch()
        found = start()

        if without.returncode != 0:  # Not where this machine has CUDA.
            self.assertRegex(without.stderr, f"libexec/says needs libcublasLt.so.13, which is in none of: {libraries} /usr/local/cuda/lib64 ")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(found.stdout.strip().split(":")[:2], [str(out / "lib"), str(libraries)])

    def test_a_bundle_from_which_a_cluster_runs_is_not_made_again(self):
        build = self.repository / "build/cuda"
        for name in ("tests/cuda_gpu_test", "tests/cuda_node_gpu_test", "tests/cuda_ipc_gpu_test", "bin/lamina-gpu-bench"):
            self.write(build / name, "")
            shutil.copy("/bin/true", build / name)
        out = self.folder / "out"
        for name in ("BUNDLE", "bin/lamina", "state/mine/cluster.token", "state/mine/m0.pid"):
            self.write(out / name, "of before")

        refused = self.run_script("bundle.sh", "--cuda", "--out", str(out))

        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"{out}/state/mine/m0.pid", refused.stderr)
        self.assertTrue((out / "bin/lamina").exists())

        (out / "state/mine/m0.pid").unlink()
        done = self.run_script("bundle.sh", "--cuda", "--out", str(out))

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((out / "state/mine/cluster.token").read_text(), "of before")
        self.assertNotEqual((out / "BUNDLE").read_text(), "of before")
        self.assertFalse((out / "bin/lamina").exists())

    def test_a_bundle_of_this_build_runs_where_it_is_moved(self):
        build = self.repository / "build/release"
        shutil.copytree(BIN.parent / "lib", build / "lib")
        (build / "bin").mkdir()
        for name in ("", "-coordinator", "-compute", "-memory", "-gateway"):
            shutil.copy(BIN / f"lamina{name}", build / "bin")
        done = self.run_script("bundle.sh")
        self.assertEqual(done.returncode, 0, done.stderr)
        bundle = self.folder / "another place"
        (self.repository / "build/bundle").rename(bundle)
        shutil.rmtree(self.repository)

        link = self.folder / "lamina"
        link.symlink_to(bundle / "bin/lamina")
        version = subprocess.run([str(link), "--version"], capture_output=True, text=True)
        self.assertEqual(version.stdout, run("--version").stdout, version.stderr)
        (self.folder / "none.gguf").touch()
        up = self.run_script("cluster.sh", "up", "--set", "model=none.gguf", "--set",
                             "coordinator.listen=127.0.0.1:0", "--set", "gateway=null", repository=bundle)
        self.assertIn("the coordinator ended", up.stderr, "of this model")
        self.assertIn("none.gguf", up.stderr)
        self.assertEqual(self.foreign_libraries(bundle), set())

    @staticmethod
    def foreign_libraries(bundle):
        """What the bundle loads from elsewhere, but for what every machine has."""
        files = [*bundle.glob("libexec/*"), *bundle.glob("lib/**/*.so*")]
        listing = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True,
                                 env={**os.environ, "LD_LIBRARY_PATH": str(bundle / "lib")}).stdout
        found = {tuple(line.strip().split(" => ")) for line in listing.splitlines() if " => " in line}
        return {name for name, path in found
                if not path.startswith(str(bundle)) and not name.startswith(SYSTEM)}

    def test_wrong_arguments_of_the_tests_end_before_anything_is_built(self):
        for script in ("install_packages.sh", "get_model.sh", "build.sh"):
            self.write(self.repository / "deploy" / script, "#!/bin/sh\necho started\n")
        for wrong, words in ((("--label", "tset"), "--label is one of unit conformance"),
                             (("--jobs", "many"), "--jobs is a number"), (("--sanitizer", "msan"), "asan or tsan"),
                             (("--target",), "--target wants a value")):
            done = self.run_script("test.sh", *wrong)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)

    def run_tests(self, tests, *arguments, wrong=None):
        """deploy/test.sh with tests that fail so often; what it said, and how often CTest was called. The failures of `wrong`, counted
        from the last one, are wrong answers."""
        for script in ("install_packages.sh", "get_model.sh", "build.sh"):
            self.write(self.repository / "deploy" / script, "#!/bin/sh\n")
        self.write(self.path / "ctest", CTEST.format(folder=self.folder, mark=NEVER_RETRIED))
        (self.repository / "build/release").mkdir(parents=True, exist_ok=True)
        (self.repository / "tests").mkdir(exist_ok=True)
        shutil.copy(REPO / "tests/retried_tests.txt", self.repository / "tests")
        (self.folder / "tests.json").write_text(json.dumps(tests))
        (self.folder / "wrong.json").write_text(json.dumps(wrong or {}))
        log = self.folder / "ctest.log"
        log.unlink(missing_ok=True)
        done = self.run_script("test.sh", *arguments)
        return done, len(log.read_text().splitlines())

    def test_tests_that_are_listed_are_run_again(self):
        tests = {"a_unit_test": 0, "integration_slurm_test.JobTest": 1, "hostile_kill_rounds_test": 2}
        done, calls = self.run_tests(tests, "--retries", "2")
        self.assertEqual((done.returncode, calls), (0, 2), done.stderr)
        self.assertIn("failed at least once, each a defect to be found: "
                      "integration_slurm_test.JobTest hostile_kill_rounds_test", done.stderr)
        self.assertRegex(done.stdout + done.stderr, r"1.5 min  hostile, tests: 1\n.*0.1 min  unit, tests: 2\n")
        self.assertRegex(done.stdout + done.stderr, r"3.0 s  hostile_kill_rounds_test\n.*2.0 s  integration_slurm_test.JobTest\n")

        done, calls = self.run_tests({"hostile_kill_rounds_test": 3}, "--retries", "2")
        self.assertEqual((done.returncode, calls), (8, 2), "it failed each time")
        done, calls = self.run_tests({"hostile_kill_rounds_test": 1})
        self.assertEqual((done.returncode, calls), (8, 1), "nothing is run again unless it is asked for")

    def test_any_other_test_that_fails_is_a_failure_at_once(self):
        tests = {"a_unit_test": 1, "hostile_kill_rounds_test": 1, "integration_slurm_tests": 1}
        done, calls = self.run_tests(tests, "--retries", "2")
        self.assertEqual((done.returncode, calls), (8, 1))
        self.assertIn("not in tests/retried_tests.txt", done.stderr)
        self.assertRegex(done.stderr, r"==>.*  a_unit_test integration_slurm_tests\n")

        done, calls = self.run_tests({"a_unit_test": 0}, "--retries", "2")
        self.assertEqual((done.returncode, calls), (0, 1), done.stderr)

    def test_a_wrong_answer_is_a_failure_whatever_is_listed(self):
        tests = {"a_unit_test": 0, "hostile_kill_rounds_test": 1, "integration_failure_test": 1}
        done, calls = self.run_tests(tests, "--retries", "2", wrong={"hostile_kill_rounds_test": 1})
        self.assertEqual((done.returncode, calls), (8, 1))
        self.assertRegex(done.stderr, r"failed by a wrong answer.*\n.*==>.*  hostile_kill_rounds_test\n")

        done, calls = self.run_tests({"hostile_kill_rounds_test": 2}, "--retries", "2", wrong={"hostile_kill_rounds_test": 1})
        self.assertEqual((done.returncode, calls), (8, 2), "it was wrong once, and passed then")
        self.assertIn("failed by a wrong answer when it was run again: hostile_kill_rounds_test", done.stderr)

        conformance = (REPO / "tests/conformance/transport_support.h").read_text()
        self.assertIn(f'"{NEVER_RETRIED.split(":")[0]}: ', conformance, "the mark of bytes")

    def test_tests_that_are_run_again_exist_and_have_a_reason(self):
        listed = [line.split(maxsplit=1) for line in (REPO / "tests/retried_tests.txt").read_text().splitlines()
                  if not line.startswith("#")]
        names = [entry[0] for entry in listed]
        self.assertEqual(names, sorted(set(names)))
        for name, *reason in listed:
            label = next(label for label in ("integration", "hostile", "rdma_vm") if name.startswith(f"{label}_"))
            script = name[len(label) + 1:]
            file = f"guest_{script[:-len('_test')]}.sh" if label == "rdma_vm" else f"{script}.py"
            self.assertTrue((REPO / "tests" / label / file).exists(), name)
            self.assertGreater(len(reason[0].split()), 5, f"{name} has no reason")

    def test_a_missing_package_of_cluster_tests_is_red_in_continuous_integration(self):
        shutil.copytree(REPO / ".ci", self.repository / ".ci")
        deploy = self.repository / "deploy"
        self.write(deploy / "install_packages.sh", '#!/bin/sh\n[ "$1" != --cluster-tests ]\n')
        self.write(deploy / "build_cuda.sh", "#!/bin/sh\n")
        for script in ("get_model.sh", "build.sh"):
            self.write(deploy / script, "#!/bin/sh\necho started\n")
        done = subprocess.run([str(self.repository / ".ci/run")], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("deploy/packages_cluster_tests.txt are missing and LAMINA_REQUIRE_CLUSTER_TESTS is 1", done.stderr)

        # So is a program that no package brought; elsewhere the test is left out by its name.
        look = [sys.executable, "-B", "-c", "import machines; machines.leave_out_without('no-such-program')"]
        for required, status in (("1", 1), ("0", 77)):
            done = subprocess.run(look, cwd=Path(__file__).parent, env={**os.environ, "LAMINA_REQUIRE_CLUSTER_TESTS": required},
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, status)
            self.assertIn("no-such-program missing: deploy/install_packages.sh --cluster-tests", done.stdout)

    def slurm_allocation(self, job, **more):
        """The environment of the job, which scontrol knows."""
        self.write(self.path / "scontrol", SCONTROL.format(folder=self.folder, repository=self.repository))
        (self.folder / "job").write_text(job)
        allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-3]", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[4-5]",
                      "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "4(x3)", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "8(x2)",
                      "SLURM_MEM_PER_NODE_HET_GROUP_1": "1000", **more}
        return {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", **allocation}

    def slurm_cluster_file(self, job, **more):
        return subprocess.run([sys.executable, "-B", str(self.repository / "deploy/slurm/cluster_file.py"), "--model", "m", "--token", "t"],
                              env=self.slurm_allocation(job, **more), capture_output=True, text=True, timeout=120)

    def slurm_job(self, **variables):
        """As Slurm runs it: a copy, somewhere else."""
        copy = self.folder / "slurm_script"
        shutil.copy(self.repository / "deploy/slurm/lamina.sbatch", copy)
        return subprocess.run([str(copy), "m"], capture_output=True, text=True, timeout=120, cwd=self.folder,
                              env=self.slurm_allocation(SLURM_JOB, **variables))

    def test_a_slurm_job_takes_no_other_programs_than_those_named(self):
        programs = self.repository / "build/release/bin"
        self.write(programs / "lamina", SLURM_LAMINA)
        job = self.slurm_job(LAMINA_BIN=str(self.folder / "cuda"), LAMINA_DIR=str(self.folder / "kept"))
        self.assertEqual(job.returncode, 1, job.stdout + job.stderr)
        self.assertIn(f"LAMINA_BIN, {self.folder}/cuda, has no program lamina", job.stderr)

    def test_a_slurm_job_ends_with_its_coordinator(self):
        (self.folder / "nodes").touch()
        programs = self.folder / "bin"
        for path, text in ((self.path / "srun", SRUN), (self.path / "scancel", SCANCEL), (programs / "lamina", SLURM_LAMINA),
                           (programs / "lamina-coordinator", SLURM_COORDINATOR), (programs / "lamina-compute", SLURM_NODE),
                           (programs / "lamina-memory", SLURM_NODE)):
            self.write(path, text.format(folder=self.folder))
        job = self.slurm_job(LAMINA_BIN=str(programs), LAMINA_DIR=str(self.folder / "kept"))

        self.assertEqual(job.returncode, 3, job.stdout + job.stderr)
        self.assertIn("the coordinator has ended, with status 3; stopping the others", job.stderr)
        self.assertTrue(job.stdout.endswith("lamina: ended\n"), job.stdout)

    def test_each_gpu_of_a_slurm_job_has_a_compute_node(self):
        made = self.slurm_cluster_file(SLURM_JOB, SLURM_GPUS_HET_GROUP_0="3")
        self.assertEqual(made.returncode, 0, made.stderr)
        nodes = json.loads(made.stdout)
        self.assertEqual([(n["name"], n["host"], n["threads"], n["device"]) for n in nodes["compute"]],
                         [("c0", "n1", 2, "cuda:0"), ("c1", "n1", 2, "cuda:1"), ("c2", "n2", 4, "cuda:0"), ("c3", "n3", 4, "cpu")])
        self.assertEqual([(n["name"], n["host"], n["threads"], n["capacity"]) for n in nodes["memory"]],
                         [("m0", "n4", 8, "800MiB"), ("m1", "n5", 8, "800MiB")])

        without = re.sub("GRES=gpu.*", "GRES=", SLURM_JOB)
        made = self.slurm_cluster_file(without)
        self.assertEqual([n["device"] for n in json.loads(made.stdout)["compute"]], ["cpu"] * 3)
        refused = self.slurm_cluster_file(without, SLURM_GPUS_PER_NODE_HET_GROUP_0="a100:1")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("asked for GPUs", refused.stderr)

    def test_programs_that_another_preset_lacks_are_named_with_what_builds_them(self):
        build = self.repository / "build/cuda"
        for program in ("lamina-compute", "lamina-memory"):
            self.write(build / "bin" / program, "")
        up = self.run_script("cluster.sh", "up", "--bin", str(build / "bin"))
        self.assertEqual(up.returncode, 1)
        self.assertIn("deploy/build.sh --preset cuda --target lamina --target lamina-coordinator --target lamina-gateway, or say", up.stderr)
        self.assertIn("build it: deploy/build.sh --preset cuda\n", self.run_script("bundle.sh", "--build", str(build)).stderr)

    def test_packages_wait_for_others_who_install_and_come_by_the_users_proxy(self):
        self.write(self.path / "apt-get", APT_GET)
        self.write(self.path / "dpkg-query", "#!/bin/sh\n")
        self.write(self.path / "sudo", SUDO)
        self.write(self.path / "id", "#!/bin/sh\necho 1000\n")
        done = self.run_script("install_packages.sh", http_proxy="http://127.0.0.1:1")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
