// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-bounds: what this machine can do at best, for suites that need a bound: plain read
// bandwidth on all cores, and bf16 GEMM on one core. With --cores the bandwidth is that of these
// cores together, a pinned thread on each, and both are measured on each of them by itself too.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/flags.h"
#include "bench/onednn_peer.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "kernels/dense.h"
#include "kernels/read_bandwidth.h"

namespace lamina {
namespace {

constexpr size_t kRows = 256;
constexpr size_t kFeatures = 1536;
constexpr int kRounds = 20;

double ReadBandwidth(const ThreadPoolOptions& options, int repeats) {
  ThreadPool pool(options);
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    best = std::max(best, kernels::MeasureReadBandwidth(pool));
  }
  return best;
}

// The best of some rounds of a square-ish layer that stays in the caches.
double FlopsPerSecond(const std::function<void()>& layer) {
  double best = 0;
  for (int i = 0; i < kRounds; ++i) {
    const Nanos start = RealClock().Now();
    layer();
    const double seconds = ToSeconds(std::max<Nanos>(1, RealClock().Now() - start));
    best = std::max(best, 2.0 * kRows * kFeatures * kFeatures / seconds);
  }
  return best;
}

// By our own loop or by oneDNN, whichever is faster: a slow loop of ours lowers no bound.
double GemmFlops() {
  auto dense = kernels::MakeCpuDense({.compute_type = DType::kBF16, .threads = 1});
  if (!dense.ok()) {
    return 0;
  }
  const std::vector<BFloat16> weights(kFeatures * kFeatures, ToBFloat16(0.01f));
  std::vector<BFloat16> in(kRows * kFeatures, ToBFloat16(0.5f));
  std::vector<float> out(kRows * kFeatures);
  auto packed = (*dense)->Pack(weights.data(), DType::kBF16, kFeatures, kFeatures, {});
  if (!packed.ok() || !(*dense)->Prepare(**packed, kRows).ok()) {
    return 0;
  }
  const double own = FlopsPerSecond([&] {
    (*dense)->Linear(**packed,
                     {.data = in.data(), .rows = kRows, .cols = kFeatures, .stride = kFeatures}, 0,
                     kernels::Packed(out.data(), kRows, kFeatures));
  });
  const auto peer =
      bench::OnednnPeer::Create({.rows = kRows, .inputs = kFeatures, .features = kFeatures},
                                DType::kBF16, weights.data(), /*threads=*/1);
  if (peer == nullptr) {
    return own;
  }
  return std::max(own, FlopsPerSecond([&] { peer->Run(in.data(), out.data()); }));
}

// Moves this thread to a core; says so where it may not run there.
bool Pin(int core) {
  if (PinThisThread({core})) {
    return true;
  }
  std::fprintf(stderr, "--cores: this process may not run on core %d\n", core);
  return false;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  CLI::App app("Measures plain read bandwidth on all cores and bf16 GEMM on one core.");
  std::string file;
  std::vector<int> cores;
  int repeats = 5;
  bool reads_alone = false;
  app.add_option("--json", file, "Write the figures here");
  app.add_option("--cores", cores,
                 "Read on these cores, not on all, and measure both on each by itself too")
      ->delimiter(',');
  app.add_option("--repeats", repeats, "Measurements of each bandwidth; the best counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--reads-alone", reads_alone, "Leave out the GEMM, whose figures are 0 then");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  double flops = cores.empty() && !reads_alone ? lamina::GemmFlops() : 0;
  nlohmann::json of_cores = nlohmann::json::array();
  for (const int core : cores) {
    if (!lamina::Pin(core)) {
      return 1;
    }
    const double read = lamina::ReadBandwidth({.threads = 1}, repeats);
    const double gemm = reads_alone ? 0 : lamina::GemmFlops();
    of_cores.push_back(
        {{"core", core}, {"read_bytes_per_second", read}, {"gemm_flops_per_second", gemm}});
    flops = std::max(flops, gemm);
  }
  lamina::ThreadPoolOptions together = {.threads = cores.size(), .cores = cores};
  if (cores.empty()) {
    together.threads = std::max(1u, std::thread::hardware_concurrency());
  } else if (!lamina::Pin(cores.front())) {
    return 1;
  }
  const double bandwidth = lamina::ReadBandwidth(together, repeats);
  std::printf("read %.1f GB/s on %s cores, bf16 GEMM %.3f TFLOP/s on one core\n", bandwidth * 1e-9,
              cores.empty() ? "all" : "these", flops * 1e-12);
  if (!file.empty()) {
    std::ofstream(file) << nlohmann::json{{"read_bytes_per_second", bandwidth},
                                          {"gemm_flops_per_second", flops},
                                          {"cores", of_cores}};
  }
  return 0;
}
