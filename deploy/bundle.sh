#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a relocatable folder of the programs and the libraries they need, that runs on a machine without
# our packages; not with the C library and the C++ runtime, which that machine has: Debian 12's or newer.
#
# usage: deploy/bundle.sh [--cuda] [--bench] [--model FILE] [--build DIR] [--out DIR] [--help]
#   --cuda      of what preset cuda built: the GPU tests and the GPU benchmark, with deploy/gpu_check.sh,
#               and those of the programs that were built; lamina and lamina-coordinator, which need no
#               CUDA, of preset release where preset cuda has none. Without CUDA's own libraries and the
#               driver: they are looked for on the machine it is started on
#   --bench     also the benchmarks and the tests of the processor's kernels, of preset release: to see what
#               a processor of another class does (docs/testing.md)
#   --model FILE  also this model file, as models/NAME (default: none)
#   --build DIR  the build whose programs it takes (default: build/release, or with --cuda build/cuda)
#   --out DIR   default: build/bundle; it must not exist, or be a bundle from which no
#               cluster runs; state/ there, with clusters' logs and secrets, stays
# Then, on another machine: DIR/bin/lamina, DIR/deploy/cluster.sh, with --cuda DIR/deploy/gpu_check.sh, and
# with --bench DIR/bin/lamina-bench-dense and DIR/run tests/linear_test
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

out=$REPO/build/bundle
cuda=false
bench=false
model=
build=
while [[ $# -gt 0 ]]; do
  case $1 in
    --cuda) cuda=true ;;
    --bench) bench=true ;;
    --model) model=$(value_of "$@"); shift ;;
    --build) build=$(value_of "$@"); shift ;;
    --out) out=$(value_of "$@"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
all=(lamina lamina-coordinator lamina-compute lamina-memory lamina-gateway)
gpu=()
if $cuda; then
  build=${build:-$REPO/build/cuda}
  gpu=("$build/tests/cuda_gpu_test" "$build/tests/cuda_node_gpu_test" "$build/tests/cuda_ipc_gpu_test" "$build/bin/lamina-gpu-bench")
  needed=("${gpu[@]}")
  remedy=deploy/build_cuda.sh
else
  build=${build:-$REPO/build/release}
  needed=("${all[@]/#/$build/bin/}")
  remedy=deploy/build.sh
  [[ $build == "$REPO/build/release" ]] || remedy="deploy/build.sh --preset $(basename "$build")"
fi
benchmarks=()
tests=()
if $bench; then
  benchmarks=(lamina-bench-dense lamina-bench-packed lamina-bench-attention lamina-bench-experts)
  tests=(linear_test block_linear_test tile_products_test attention_test bf16_attention_test int8_attention_test)
  needed+=("${benchmarks[@]/#/$REPO/build/release/bin/}" "${tests[@]/#/$REPO/build/release/tests/}")
  [[ $remedy == deploy/build.sh ]] || remedy+=" and deploy/build.sh"
fi
for program in "${needed[@]}"; do
  [[ -x $program ]] || fail "$program is not built; build it: $remedy"
done
[[ -z $model || -f $model ]] || fail "$model is no file; deploy/get_model.sh gets the quick start's model"
if [[ -e $out ]]; then
  [[ -f $out/BUNDLE ]] || fail "$out exists and is no bundle; choose another --out"
  pid_file=$(compgen -G "$out/state/*/*.pid" | head -n 1) || true
  [[ -z $pid_file ]] || fail "a cluster was started from $out ($pid_file); stop it first: $out/deploy/cluster.sh down"
  # BUNDLE stays too, so that what an interruption leaves is known as a bundle.
  find "$out/" -mindepth 1 -maxdepth 1 ! -name BUNDLE ! -name state -exec rm -rf {} +
fi

mkdir -p "$out/bin" "$out/libexec" "$out/lib/ucx" "$out/deploy"
# First, for the same reason.
git -C "$REPO" describe --always --dirty > "$out/BUNDLE" 2> /dev/null || echo "not from a clone" > "$out/BUNDLE"
if $cuda; then
  mkdir "$out/gpu"
  cp "${gpu[@]}" "$out/gpu/"
  cp "$REPO"/deploy/gpu_check.sh "$REPO"/deploy/gpu_*.py "$out/deploy/"
fi
# What is in bin/ finds the libraries, wherever the bundle lies.
for program in "${all[@]}" "${benchmarks[@]}"; do
  built=$build/bin/$program
  [[ $program != lamina-bench-* ]] || built=$REPO/build/release/bin/$program
  if [[ ! -x $built && " lamina lamina-coordinator " == *" $program "* ]]; then
    built=$REPO/build/release/bin/$program
  fi
  if [[ ! -x $built ]]; then
    say "$program is not built, and left out"
    continue
  fi
  cp "$built" "$out/libexec/"
  # shellcheck disable=SC2016 # For the machine that runs it.
  printf '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/../run" libexec/%s "$@"\n' "$program" > "$out/bin/$program"
  chmod +x "$out/bin/$program"
done
if $bench; then
  mkdir "$out/tests"
  cp "${tests[@]/#/$REPO/build/release/tests/}" "$out/tests/"
fi
if [[ -n $model ]]; then
  mkdir "$out/models"
  cp "$model" "$out/models/"
fi
# Where `lamina plan` looks for catalogues: in share/ next to libexec/.
mkdir -p "$out/share/catalogues"
cp "$REPO"/cost/catalogues/*.yaml "$out/share/catalogues/"
for part in cluster.sh lib.sh hosts clusters systemd slurm kubernetes monitoring; do
  cp -r "$REPO/deploy/$part" "$out/deploy/"
done
cp -r "$REPO/docs" "$out/"
# Programs load these themselves: SentencePiece, and next to UCX's libraries its transports.
loaded=("$build/lib/lamina-sentencepiece.so")
[[ ! -f ${loaded[0]} ]] || cp "${loaded[0]}" "$out/lib/"
ucx=$(ldd "$out"/libexec/* "$out"/gpu/* 2> /dev/null | awk '$1 ~ /^libucs\.so/ {print $3; exit}') || true
[[ -z $(compgen -G "${ucx%/*}/ucx/*.so.[0-9]") ]] || cp -L "${ucx%/*}"/ucx/*.so.[0-9] "$out/lib/ucx/"

# What every machine has, or must bring itself.
system='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libcuda|libcublas|libcublasLt|libcudart)[.-]'
programs=("$out"/gpu/* "$out"/tests/* "$out"/libexec/* "$out"/lib/*.so "$out"/lib/ucx/*)
for program in "${programs[@]}"; do
  [[ -f $program ]] || continue
  strip --strip-unneeded "$program"
  while IFS='|' read -r name path; do
    [[ $name =~ $system ]] && continue
    [[ -f $path ]] || fail "$(basename "$program") needs $name, which this machine does not have"
    [[ -e $out/lib/${path##*/} ]] || cp -L "$path" "$out/lib/"
  done < <(ldd "$program" | sed -nE 's/^\s*(\S+) => (.*)$/\1|\2/; T; s/ \(0x[0-9a-f]+\)$//; p')
done

cat > "$out/run" <<'RUN'
#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a program of this bundle with the bundle's libraries, and CUDA's of this machine.
# usage: run PROGRAM [ARGUMENT]...    PROGRAM is a path inside the bundle, like bin/lamina
set -euo pipefail
here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted=libcublasLt.so.13

# Where a toolkit, the system, or the wheels that PyTorch brings put it.
candidates() {
  [[ -z ${LAMINA_CUDA_LIBRARIES:-} ]] || printf '%s\n' "$LAMINA_CUDA_LIBRARIES"
  [[ -z ${CUDA_HOME:-} ]] || printf '%s\n' "$CUDA_HOME/lib64"
  printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64 /usr/lib/x86_64-linux-gnu
  local site
  { python3 -c 'import site, sysconfig
print(sysconfig.get_paths()["purelib"])
print(*site.getsitepackages(), sep="\n")' 2> /dev/null || true; } | while read -r site; do
    printf '%s\n' "$site/nvidia/cu13/lib" "$site/nvidia/cublas/lib"
  done
}

[[ $# -ge 1 ]] || { echo "usage: run PROGRAM [ARGUMENT]..." >&2; exit 2; }
[[ -x $here/$1 ]] || { echo "run: $1 is not in this bundle" >&2; exit 2; }
found=
looked=()
needs=$(ldd "$here/$1" 2> /dev/null | grep -E '^\s*(libcublas|libcuda)' || true)
if [[ -n $needs ]]; then
  # No `< <(candidates)`: nobody waits for that process, and the program, which takes this one's place, would have it as a zombie.
  mapfile -t looked <<< "$(candidates)"
fi
for folder in "${looked[@]}"; do
  if [[ -f $folder/$wanted ]]; then
    found=$folder
    break
  fi
done
if [[ -z $found && $needs == *"$wanted => not found"* ]]; then
  echo "run: $1 needs $wanted, which is in none of: ${looked[*]}; name its folder in LAMINA_CUDA_LIBRARIES" >&2
  exit 1
fi
export LD_LIBRARY_PATH=$here/lib${found:+:$found}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$here/$1" "${@:2}"
RUN
chmod +x "$out/run"
say "$out: $(du -sh "$out" | cut -f1), $(find "$out/lib" -type f | wc -l) libraries"
