#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a relocatable folder of what preset cuda built: programs and the libraries they need, but not
# the C library, the C++ runtime, the driver, or CUDA's own libraries, which BUNDLE/run finds on the
# machine it is started on.
#
# usage: deploy/bundle.sh --cuda [--out DIR] [--help]
#   --cuda      the GPU tests and the GPU benchmark, with deploy/gpu_check.sh, and those of the daemons
#               and the command that were built
#   --out DIR   default: build/bundle; it must not exist, or be a bundle
# Then, on another machine: DIR/run PROGRAM [ARGUMENT]..., DIR/deploy/gpu_check.sh
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

out=$REPO/build/bundle
cuda=false
while [[ $# -gt 0 ]]; do
  case $1 in
    --cuda) cuda=true ;;
    --out) out=$(value_of "$@"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
$cuda || usage_error "say --cuda: there is no other bundle"
build=$REPO/build/cuda
for program in "$build/tests/cuda_gpu_test" "$build/tests/cuda_node_gpu_test" "$build/bin/lamina-gpu-bench"; do
  [[ -x $program ]] || fail "$program is not built; build it: deploy/build_cuda.sh"
done
if [[ -e $out ]]; then
  [[ -f $out/BUNDLE ]] || fail "$out exists and is no bundle; choose another --out"
  rm -rf "$out"
fi

mkdir -p "$out/gpu" "$out/bin" "$out/lib" "$out/deploy"
cp "$build/tests/cuda_gpu_test" "$build/tests/cuda_node_gpu_test" "$build/bin/lamina-gpu-bench" "$out/gpu/"
for program in lamina lamina-coordinator lamina-compute lamina-memory; do
  [[ ! -x $build/bin/$program ]] || cp "$build/bin/$program" "$out/bin/"
done
cp "$REPO/deploy/gpu_check.sh" "$REPO/deploy/lib.sh" "$out/deploy/"
git -C "$REPO" describe --always --dirty > "$out/BUNDLE"

# What every machine has, or must bring itself.
system='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libcuda|libcublas|libcublasLt|libcudart)[.-]'
programs=("$out"/gpu/* "$out"/bin/*)
for program in "${programs[@]}"; do
  [[ -f $program ]] || continue
  strip --strip-unneeded "$program"
  while read -r name _ path _; do
    [[ $name =~ $system || $name == /* ]] && continue
    [[ -f $path ]] || fail "$(basename "$program") needs $name, which this machine does not have"
    cp -nL "$path" "$out/lib/"
  done < <(ldd "$program")
done

cat > "$out/run" <<'RUN'
#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a program of this bundle with the bundle's libraries, and CUDA's of this machine.
# usage: run PROGRAM [ARGUMENT]...    PROGRAM is a path inside the bundle, like gpu/lamina-gpu-bench
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted=libcublasLt.so.13

# Where a toolkit, the system, or the wheels that PyTorch brings put it.
candidates() {
  [[ -z ${LAMINA_CUDA_LIBRARIES:-} ]] || printf '%s\n' "$LAMINA_CUDA_LIBRARIES"
  [[ -z ${CUDA_HOME:-} ]] || printf '%s\n' "$CUDA_HOME/lib64"
  printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64 /usr/lib/x86_64-linux-gnu
  local site
  while read -r site; do
    printf '%s\n' "$site/nvidia/cu13/lib" "$site/nvidia/cublas/lib"
  done < <(python3 -c 'import site, sysconfig
print(sysconfig.get_paths()["purelib"])
print(*site.getsitepackages(), sep="\n")' 2> /dev/null || true)
}

[[ $# -ge 1 ]] || { echo "usage: run PROGRAM [ARGUMENT]..." >&2; exit 2; }
[[ -x $here/$1 ]] || { echo "run: $1 is not in this bundle" >&2; exit 2; }
found=
looked=()
while read -r folder; do
  looked+=("$folder")
  if [[ -z $found && -f $folder/$wanted ]]; then
    found=$folder
  fi
done < <(candidates)
if [[ -z $found ]] && ldd "$here/$1" | grep -q "$wanted => not found"; then
  echo "run: $1 needs $wanted, which is in none of: ${looked[*]}; name its folder in LAMINA_CUDA_LIBRARIES" >&2
  exit 1
fi
export LD_LIBRARY_PATH=$here/lib${found:+:$found}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$here/$1" "${@:2}"
RUN
chmod +x "$out/run"
say "$out: $(du -sh "$out" | cut -f1), $(find "$out/lib" -type f | wc -l) libraries"
