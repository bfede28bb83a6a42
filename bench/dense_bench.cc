// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-dense: Dense::Linear against oneDNN called directly and against what the machine can
// do, over the shapes of two models; and what a sampled token costs.
//
// Every figure is taken in turns with the ones it is compared with, the best of several rounds,
// because other work on the machine disturbs them. With --cold the weights of a call are not those
// of the call before, as in a model: copies enough to overflow the last cache take turns.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/best_times.h"
#include "bench/onednn_peer.h"
#include "common/check.h"
#include "common/philox.h"
#include "kernels/dense.h"
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

// Bytes per second that `threads` threads read from a buffer far larger than the caches.
double ReadBandwidth(size_t threads) {
  std::vector<uint64_t> words(size_t{256} << 17, 1);
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    best = std::min(best, Seconds([&] {
                      std::vector<std::thread> readers;
                      std::vector<uint64_t> sums(threads * 8);
                      const size_t share = words.size() / threads;
                      for (size_t t = 0; t < threads; ++t) {
                        readers.emplace_back([&, t] {
                          uint64_t sum = 0;
                          for (size_t i = t * share; i < (t + 1) * share; ++i) {
                            sum += words[i];
                          }
                          sums[t * 8] = sum;
                        });
                      }
                      for (std::thread& reader : readers) {
                        reader.join();
                      }
                      LAMINA_CHECK(sums[0] == share);
                    }));
  }
  return static_cast<double>(words.size() * sizeof(uint64_t)) / best;
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

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), dtype_(options.type == "f32" ? DType::kF32 : DType::kBF16) {
    ours_ = Make(false);
    own_ = Make(true);
  }

  nlohmann::json RunAll() {
    const double bandwidth = ReadBandwidth(options_.threads);
    std::printf(
        "best loop: %s   fallback GEMM: %s   type %s   threads %zu   plain read %.1f GB/s\n",
        ours_->description().c_str(), own_->description().c_str(), options_.type.c_str(),
        options_.threads, bandwidth / 1e9);
    std::printf("%-18s %5s %9s %10s %8s %9s %10s %8s\n", "shape", "rows", "us", "GFLOP/s", "GB/s",
                "of-onednn", "of-reading", "own/best");
    nlohmann::json results = {{"loop", ours_->description()},  {"own_loop", own_->description()},
                              {"type", options_.type},         {"threads", options_.threads},
                              {"read_bytes_per_s", bandwidth}, {"rows", nlohmann::json::array()}};
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(options_.only) != std::string::npos) {
        RunShape(shape, bandwidth, results["rows"]);
      }
    }
    return results;
  }

 private:
  std::unique_ptr<kernels::Dense> Make(bool fallback_gemm) const {
    auto dense = kernels::MakeCpuDense(
        {.compute_type = dtype_,
         .threads = options_.threads,
         .loop = fallback_gemm ? kernels::DenseLoop::kFallbackGemm : kernels::DenseLoop::kFastest});
    LAMINA_CHECK(dense.ok());
    return *std::move(dense);
  }

  // As many packed copies as it takes to exceed the cache; one when that is not asked for.
  std::vector<std::unique_ptr<kernels::PackedLinear>> Pack(kernels::Dense& dense,
                                                           const Shape& shape,
                                                           const std::vector<char>& weights) {
    const size_t copies = 1 + (options_.cold_mib << 20) / weights.size();
    std::vector<std::unique_ptr<kernels::PackedLinear>> packed;
    for (size_t i = 0; i < copies; ++i) {
      auto one = dense.Pack(weights.data(), dtype_, shape.features, shape.inputs, {});
      LAMINA_CHECK(one.ok());
      packed.push_back(*std::move(one));
    }
    return packed;
  }

  void RunShape(const Shape& shape, double bandwidth, nlohmann::json& results) {
    const std::vector<char> weights = RandomElements(shape.inputs * shape.features, dtype_);
    const auto ours = Pack(*ours_, shape, weights);
    const auto own = Pack(*own_, shape, weights);
    for (const size_t rows : kRows) {
      const double flops = 2.0 * static_cast<double>(rows * shape.inputs * shape.features);
      if (flops > 40e9) {
        continue;
      }
      std::vector<std::unique_ptr<OnednnPeer>> peers;
      for (size_t i = 0; i < ours.size(); ++i) {
        peers.push_back(OnednnPeer::Create({rows, shape.inputs, shape.features}, dtype_,
                                           weights.data(), options_.threads));
      }
      std::vector<char> in = RandomElements(rows * shape.inputs, dtype_);
      std::vector<float> out(rows * shape.features);
      const kernels::ActivationView view = {in.data(), rows, shape.inputs, shape.inputs, dtype_};
      const auto result = kernels::Packed(out.data(), rows, shape.features);
      std::vector<std::function<void(size_t)>> bodies = {
          [&](size_t call) { ours_->Linear(*ours[call % ours.size()], view, 0, result); },
          [&](size_t call) { own_->Linear(*own[call % own.size()], view, 0, result); }};
      if (peers[0] != nullptr) {
        bodies.emplace_back(
            [&](size_t call) { peers[call % peers.size()]->Run(in.data(), out.data()); });
      }
      const std::vector<double> times = BestTimes(bodies, options_.rounds);
      Report(shape, rows, flops, static_cast<double>(weights.size()), bandwidth, times, results);
    }
  }

  static void Report(const Shape& shape, size_t rows, double flops, double bytes, double bandwidth,
                     const std::vector<double>& times, nlohmann::json& results) {
    const double of_onednn = times.size() > 2 ? times[2] / times[0] : 0;
    std::printf("%-18s %5zu %9.1f %10.1f %8.1f %9.2f %10.2f %8.2f\n", shape.name, rows,
                times[0] * 1e6, flops / times[0] / 1e9, bytes / times[0] / 1e9, of_onednn,
                bytes / times[0] / bandwidth, times[0] / times[1]);
    results.push_back({{"shape", shape.name},
                       {"rows", rows},
                       {"us", times[0] * 1e6},
                       {"gflops_per_s", flops / times[0] / 1e9},
                       {"gbytes_per_s", bytes / times[0] / 1e9},
                       {"share_of_onednn", of_onednn},
                       {"share_of_read_bandwidth", bytes / times[0] / bandwidth},
                       {"own_loop_us", times[1] * 1e6}});
  }

  Options options_;
  DType dtype_;
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
  app.add_option("--threads", options.threads, "Threads of each side")->capture_default_str();
  app.add_option("--type", options.type, "Compute type")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--only", options.only, "Part of a shape's name; `sample` for sampling alone");
  app.add_option("--rounds", options.rounds, "Rounds to take the best of")->capture_default_str();
  app.add_option("--cold-mib", options.cold_mib, "Turn over this much of weights between calls");
  app.add_option("--json", options.json, "Write the results to this file");
  CLI11_PARSE(app, argc, argv);

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
