// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-bounds: what this machine can do at best, for suites that need a bound: plain read
// bandwidth on all cores, and bf16 GEMM on one core.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/thread_pool.h"
#include "kernels/dense.h"
#include "kernels/read_bandwidth.h"

namespace lamina {
namespace {

constexpr size_t kRows = 256;
constexpr size_t kFeatures = 1536;
constexpr int kRounds = 20;

double ReadBandwidth() {
  ThreadPool pool({.threads = std::max(1u, std::thread::hardware_concurrency())});
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    best = std::max(best, kernels::MeasureReadBandwidth(pool));
  }
  return best;
}

// Flops per second of a square-ish layer that stays in the caches.
double GemmFlops() {
  auto dense = kernels::MakeCpuDense({.compute_type = DType::kBF16, .threads = 1});
  if (!dense.ok()) {
    return 0;
  }
  const std::vector<BFloat16> weights(kFeatures * kFeatures, ToBFloat16(0.01f));
  const std::vector<BFloat16> in(kRows * kFeatures, ToBFloat16(0.5f));
  std::vector<float> out(kRows * kFeatures);
  auto packed = (*dense)->Pack(weights.data(), DType::kBF16, kFeatures, kFeatures, {});
  if (!packed.ok() || !(*dense)->Prepare(**packed, kRows).ok()) {
    return 0;
  }
  double best = 0;
  for (int i = 0; i < kRounds; ++i) {
    const Nanos start = RealClock().Now();
    (*dense)->Linear(**packed,
                     {.data = const_cast<BFloat16*>(in.data()),
                      .rows = kRows,
                      .cols = kFeatures,
                      .stride = kFeatures},
                     0, kernels::Packed(out.data(), kRows, kFeatures));
    const double seconds = ToSeconds(std::max<Nanos>(1, RealClock().Now() - start));
    best = std::max(best, 2.0 * kRows * kFeatures * kFeatures / seconds);
  }
  return best;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  CLI::App app("Measures plain read bandwidth on all cores and bf16 GEMM on one core.");
  std::string file;
  app.add_option("--json", file, "Write the figures here");
  CLI11_PARSE(app, argc, argv);
  const double bandwidth = lamina::ReadBandwidth();
  const double flops = lamina::GemmFlops();
  std::printf("read %.1f GB/s on all cores, bf16 GEMM %.3f TFLOP/s on one core\n", bandwidth * 1e-9,
              flops * 1e-12);
  if (!file.empty()) {
    std::ofstream(file) << nlohmann::json{{"read_bytes_per_second", bandwidth},
                                          {"gemm_flops_per_second", flops}};
  }
  return 0;
}
