// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-dense: Dense::Linear against oneDNN called directly and against what the machine can
// do, over the shapes of two models; and what a sampled token costs.
//
// The bound is the lower of the GEMM peak, the most that either side reaches over two square
// layers, and what a plain read of the weights from memory allows: layers that stay in a cache may
// be faster than that.
//
// Every figure is taken in turns with the ones it is compared with, the best of several rounds,
// because other work on the machine disturbs them. With --cold-mib the weights of a call are not
// those of the call before, as in a model: copies enough to overflow the last cache take turns.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/best_times.h"
#include "bench/flags.h"
#include "bench/onednn_peer.h"
#include "bench/pinned_cores.h"
#include "common/check.h"
#include "common/philox.h"
#include "common/thread_pool.h"
#include "kernels/dense.h"
#include "kernels/read_bandwidth.h"
#include "kernels/sampling.h"

namespace lamina::bench {
namespace {

struct Options {
  size_t threads = 1;
  std::string type = "bf16";
  std::string only;
  int rounds = 15;
  size_t cold_mib = 0;
  std::string json;
};

struct Shape {
  const char* name;
  size_t inputs;
  size_t features;
};

constexpr Shape kShapes[] = {
    {"smollm2.qkv", 576, 960},       {"smollm2.o", 576, 576},
    {"smollm2.gate_up", 576, 3072},  {"smollm2.down", 1536, 576},
    {"smollm2.lm_head", 576, 49152}, {"llama3-8b.qkv", 4096, 6144},
    {"llama3-8b.o", 4096, 4096},     {"llama3-8b.gate_up", 4096, 28672},
    {"llama3-8b.down", 14336, 4096},
};
constexpr size_t kRows[] = {1, 2, 4, 8, 16, 17, 32, 64, 100, 128, 512};

// Layers whose best on either side is the GEMM peak, and rows of both.
constexpr Shape kPeakShapes[] = {{"square", 1536, 1536}, {"square", 4096, 4096}};
constexpr size_t kPeakRows[] = {128, 256};

// Products that take a part of a second by themselves have fewer rounds.
constexpr double kLongFlops = 40e9;
constexpr int kLongRounds = 5;

// OpenMP's threads look for more work for some milliseconds, on the cores where ours are next.
constexpr auto kRest = std::chrono::milliseconds(10);

// Bytes per second that the pool reads from a buffer far larger than the caches.
double ReadBandwidth(ThreadPool& pool) {
  const kernels::PlainReads reads;
  LAMINA_CHECK(reads.ok());
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    best = std::min(best, Seconds([&] { reads.Read(pool); }));
  }
  return static_cast<double>(reads.bytes()) / best;
}

std::vector<char> RandomElements(size_t count, DType dtype) {
  std::vector<char> bytes(count * DTypeBytes(dtype));
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    } else {
      reinterpret_cast<BFloat16*>(bytes.data())[i] = ToBFloat16(value);
    }
  }
  return bytes;
}

// What the machine does at best.
struct Bounds {
  double read = 0;  // Bytes per second.
  double gemm = 0;  // FLOP per second.
};

using Copies = std::vector<std::unique_ptr<kernels::PackedLinear>>;

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        dtype_(options.type == "f32" ? DType::kF32 : DType::kBF16),
        cores_(PinnedCores(options.threads)),
        pool_({.threads = options.threads, .cores = cores_}) {
    ours_ = Make(false);
    own_ = Make(true);
  }

  nlohmann::json RunAll() {
    const Bounds bounds = {.read = ReadBandwidth(pool_), .gemm = GemmPeak()};
    std::printf(
        "best loop: %s   fallback GEMM: %s   type %s   threads %zu   plain read %.1f GB/s   GEMM "
        "peak %.1f GFLOP/s\n",
        ours_->description().c_str(), own_->description().c_str(), options_.type.c_str(),
        options_.threads, bounds.read / 1e9, bounds.gemm / 1e9);
    std::printf("%-18s %5s %9s %10s %8s %9s %10s %9s %8s\n", "shape", "rows", "us", "GFLOP/s",
                "GB/s", "of-onednn", "of-reading", "of-better", "own/best");
    nlohmann::json results = {{"loop", ours_->description()},
                              {"own_loop", own_->description()},
                              {"type", options_.type},
                              {"threads", options_.threads},
                              {"cores", cores_},
                              {"read_bytes_per_s", bounds.read},
                              {"gemm_flops_per_s", bounds.gemm},
                              {"rows", nlohmann::json::array()}};
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(options_.only) != std::string::npos) {
        RunShape(shape, bounds, results["rows"]);
      }
    }
    ReportWorst(results);
    return results;
  }

 private:
  // Seconds of one product on each side.
  struct Times {
    double ours = 0;
    double own = 0;
    double onednn = 0;  // 0: it does not know the type here.
  };

  std::unique_ptr<kernels::Dense> Make(bool fallback_gemm) {
    auto dense = kernels::MakeCpuDense(
        {.compute_type = dtype_,
         .pool = &pool_,
         .loop = fallback_gemm ? kernels::DenseLoop::kFallbackGemm : kernels::DenseLoop::kFastest});
    LAMINA_CHECK(dense.ok());
    return *std::move(dense);
  }

  Copies Pack(kernels::Dense& dense, const Shape& shape, const std::vector<char>& weights,
              size_t copies) const {
    Copies packed;
    for (size_t i = 0; i < copies; ++i) {
      auto one = dense.Pack(weights.data(), dtype_, shape.features, shape.inputs, {});
      LAMINA_CHECK(one.ok());
      packed.push_back(*std::move(one));
    }
    return packed;
  }

  static double FlopsOf(const Shape& shape, size_t rows) {
    return 2.0 * static_cast<double>(rows * shape.inputs * shape.features);
  }

  Times Measure(const Shape& shape, size_t rows, const std::vector<char>& weights,
                const Copies& ours, const Copies& own) {
    std::vector<std::unique_ptr<OnednnPeer>> peers;
    for (size_t i = 0; i < ours.size(); ++i) {
      peers.push_back(OnednnPeer::Create({rows, shape.inputs, shape.features}, dtype_,
                                         weights.data(), options_.threads));
    }
    OnednnPeer::PinThreads(cores_);
    std::vector<char> in = RandomElements(rows * shape.inputs, dtype_);
    std::vector<float> out(rows * shape.features);
    const kernels::ActivationView view = {in.data(), rows, shape.inputs, shape.inputs, dtype_};
    const auto result = kernels::Packed(out.data(), rows, shape.features);
    std::vector<std::function<void(size_t)>> bodies = {
        [&](size_t call) { ours_->Linear(*ours[call % ours.size()], view, 0, result); },
        [&](size_t call) { own_->Linear(*own[call % own.size()], view, 0, result); }};
    const bool has_peer = peers[0] != nullptr;
    if (has_peer) {
      bodies.emplace_back(
          [&](size_t call) { peers[call % peers.size()]->Run(in.data(), out.data()); });
    }
    if (has_peer && options_.threads > 1) {
      bodies.emplace_back([](size_t) { std::this_thread::sleep_for(kRest); });
    }
    const int rounds = FlopsOf(shape, rows) > kLongFlops ? std::min(options_.rounds, kLongRounds)
                                                         : options_.rounds;
    const std::vector<double> best = BestTimes(bodies, rounds);
    return {.ours = best[0], .own = best[1], .onednn = has_peer ? best[2] : 0};
  }

  double GemmPeak() {
    double peak = 0;
    for (const Shape& shape : kPeakShapes) {
      const std::vector<char> weights = RandomElements(shape.inputs * shape.features, dtype_);
      const Copies ours = Pack(*ours_, shape, weights, 1);
      const Copies own = Pack(*own_, shape, weights, 1);
      for (const size_t rows : kPeakRows) {
        const Times times = Measure(shape, rows, weights, ours, own);
        for (const double seconds : {times.ours, times.own, times.onednn}) {
          peak = seconds > 0 ? std::max(peak, FlopsOf(shape, rows) / seconds) : peak;
        }
      }
    }
    return peak;
  }

  // Packs as many copies as it takes to exceed the cache; one when that is not asked for.
  void RunShape(const Shape& shape, const Bounds& bounds, nlohmann::json& results) {
    const std::vector<char> weights = RandomElements(shape.inputs * shape.features, dtype_);
    const size_t copies = 1 + (options_.cold_mib << 20) / weights.size();
    const Copies ours = Pack(*ours_, shape, weights, copies);
    const Copies own = Pack(*own_, shape, weights, copies);
    for (const size_t rows : kRows) {
      Report(shape, rows, static_cast<double>(weights.size()), bounds,
             Measure(shape, rows, weights, ours, own), results);
    }
  }

  static void Report(const Shape& shape, size_t rows, double bytes, const Bounds& bounds,
                     const Times& times, nlohmann::json& results) {
    const double flops = FlopsOf(shape, rows);
    const double bound = std::max(flops / bounds.gemm, bytes / bounds.read);  // Seconds.
    const double better = times.onednn > 0 ? std::min(times.onednn, bound) : bound;
    const double of_onednn = times.onednn / times.ours;
    const double of_reading = bytes / times.ours / bounds.read;
    const double of_better = better / times.ours;
    std::printf("%-18s %5zu %9.1f %10.1f %8.1f %9.2f %10.2f %9.2f %8.2f\n", shape.name, rows,
                times.ours * 1e6, flops / times.ours / 1e9, bytes / times.ours / 1e9, of_onednn,
                of_reading, of_better, times.ours / times.own);
    results.push_back({{"shape", shape.name},
                       {"rows", rows},
                       {"us", times.ours * 1e6},
                       {"gflops_per_s", flops / times.ours / 1e9},
                       {"gbytes_per_s", bytes / times.ours / 1e9},
                       {"share_of_onednn", of_onednn},
                       {"share_of_read_bandwidth", of_reading},
                       {"share_of_better", of_better},
                       {"own_loop_us", times.own * 1e6}});
  }

  static void ReportWorst(nlohmann::json& results) {
    const nlohmann::json& rows = results["rows"];
    const auto worst = std::min_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return a["share_of_better"] < b["share_of_better"];
    });
    if (worst == rows.end()) {
      return;
    }
    std::printf("the least of the better of oneDNN and the bound: %.2f, %s, %zu rows\n",
                worst->at("share_of_better").get<double>(),
                worst->at("shape").get<std::string>().c_str(), worst->at("rows").get<size_t>());
    results["worst"] = {{"shape", worst->at("shape")},
                        {"rows", worst->at("rows")},
                        {"share_of_better", worst->at("share_of_better")}};
  }

  Options options_;
  DType dtype_;
  std::vector<int> cores_;  // Empty: no thread is pinned.
  ThreadPool pool_;
  std::unique_ptr<kernels::Dense> ours_;
  std::unique_ptr<kernels::Dense> own_;
};

// What one token costs by the parameters of its request, and over the greedy pass, in turns.
nlohmann::json SampleTimes(int rounds) {
  nlohmann::json results = nlohmann::json::array();
  const std::vector<std::pair<const char*, SamplingParams>> cases = {
      {"greedy", {}},
      {"temperature", {.temperature = 1.0f}},
      {"top_k 40", {.temperature = 1.0f, .top_k = 40}},
      {"top_k 1000", {.temperature = 1.0f, .top_k = 1000}},
      {"top_p 0.9", {.temperature = 1.0f, .top_p = 0.9f}},
      {"top_k 40, top_p 0.9", {.temperature = 1.0f, .top_k = 40, .top_p = 0.9f}},
      {"greedy, 5 logprobs", {.logprobs = 5}}};
  for (const size_t vocabulary : {49152, 151936}) {
    Prng prng(1);
    std::vector<float> logits(vocabulary);
    for (float& logit : logits) {
      logit = static_cast<float>(prng.Normal() * 3);
    }
    kernels::SampleScratch scratch;
    std::vector<std::function<void(size_t)>> bodies;
    for (const auto& [name, params] : cases) {
      bodies.emplace_back([&, &p = params](size_t position) {
        kernels::Sample(logits, p, {}, {}, position, scratch);
      });
    }
    const std::vector<double> times = BestTimes(bodies, rounds);
    for (size_t i = 0; i < cases.size(); ++i) {
      const double of_greedy = times[i] / times[0];
      std::printf("sample %-22s vocabulary %6zu %9.1f us, %5.2f of greedy\n", cases[i].first,
                  vocabulary, times[i] * 1e6, of_greedy);
      results.push_back({{"sample", cases[i].first},
                         {"vocabulary", vocabulary},
                         {"us", times[i] * 1e6},
                         {"times_greedy", of_greedy}});
    }
  }
  return results;
}

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) {
  lamina::bench::Options options;
  CLI::App app("Dense layers against oneDNN and the machine's bounds", "lamina-bench-dense");
  app.add_option("--threads", options.threads, "Threads of each side, several with a core for each")
      ->capture_default_str();
  app.add_option("--type", options.type, "Compute type")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--only", options.only, "Part of a shape's name; `sample` for sampling alone");
  app.add_option("--rounds", options.rounds, "Rounds to take the best of")->capture_default_str();
  app.add_option("--cold-mib", options.cold_mib, "Turn over this much of weights between calls");
  app.add_option("--json", options.json, "Write the results to this file");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }

  nlohmann::json results;
  if (options.only != "sample") {
    results = lamina::bench::Bench(options).RunAll();
  }
  if (options.only.empty() || options.only == "sample") {
    results["sampling"] = lamina::bench::SampleTimes(options.rounds);
  }
  if (!options.json.empty()) {
    std::ofstream(options.json) << results.dump(2) << '\n';
  }
  return 0;
}
