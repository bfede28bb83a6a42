// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-experts: the experts of one layer of a mixture, for steps of a few rows: the bytes
// of the experts that some row goes to over what the machine reads in that time.
//
// Rows choose their experts evenly at random. Calls take other choices in turns, so that a call
// finds little of the one before in the caches. The best of several rounds, since other work
// disturbs them.

#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bench/flags.h"
#include "bench/pinned_cores.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/philox.h"
#include "common/thread_pool.h"
#include "common/units.h"
#include "kernels/dense.h"
#include "kernels/experts.h"
#include "kernels/read_bandwidth.h"

namespace lamina::bench {
namespace {

struct Options {
  size_t threads = 1;
  std::string type = "bf16";
  std::string only;
  std::vector<size_t> rows = {1, 16, 64};
  int rounds = 15;
  std::string json;
};

// One layer of the model.
struct Shape {
  const char* name;
  size_t width;
  size_t hidden;
  size_t experts;
  size_t chosen;
};

constexpr Shape kShapes[] = {
    {"olmoe-1b-7b", 2048, 1024, 64, 8},
    {"qwen3-30b-a3b", 2048, 768, 128, 8},
    {"gpt-oss-20b", 2880, 2880, 32, 4},
    {"mixtral-8x7b", 4096, 14336, 8, 2},
};
constexpr size_t kChoices = 8;  // Taken in turns.
constexpr double kSecondsPerRound = 0.1;

// What one kind of work took, by the clock and of the processors' time.
struct Times {
  double wall = 0;
  double processor = 0;
};

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Work>
Times TimesOf(const Work& work) {
  const double processor = ProcessorSeconds();
  const Nanos start = RealClock().Now();
  work();
  return {.wall = ToSeconds(std::max<Nanos>(1, RealClock().Now() - start)),
          .processor = std::max(1e-9, ProcessorSeconds() - processor)};
}

// Bytes a second, over several turns. A processor's second counts for all threads together.
struct Rates {
  double read_best = 0;
  double layer_best = 0;
  std::vector<double> shares;  // Shares of processors' time, one for each turn.

  double MedianShare() {
    std::sort(shares.begin(), shares.end());
    return shares[shares.size() / 2];
  }
};

std::vector<std::byte> RandomElements(Prng& prng, size_t count, DType dtype) {
  std::vector<std::byte> bytes(count * DTypeBytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(prng.Normal() * 0.05);
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    } else {
      reinterpret_cast<BFloat16*>(bytes.data())[i] = ToBFloat16(value);
    }
  }
  return bytes;
}

// Choices of some rows: [rows, 2 * chosen] as RouteRows() makes them, and how many experts some row
// goes to.
struct Choice {
  std::vector<float> route;
  size_t hit = 0;
};

Choice MakeChoice(Prng& prng, const Shape& shape, size_t rows) {
  std::vector<float> scores(rows * shape.experts);
  std::generate(scores.begin(), scores.end(), [&] { return static_cast<float>(prng.Normal()); });
  Choice choice{.route = std::vector<float>(rows * 2 * shape.chosen)};
  kernels::RouteRows(kernels::RouteKind::kChosenSoftmax,
                     kernels::Packed(static_cast<const float*>(scores.data()), rows, shape.experts),
                     shape.chosen, kernels::Packed(choice.route.data(), rows, 2 * shape.chosen));
  std::set<float> hit;
  for (size_t row = 0; row < rows; ++row) {
    const float* ids = choice.route.data() + row * 2 * shape.chosen;
    hit.insert(ids, ids + shape.chosen);
  }
  choice.hit = hit.size();
  return choice;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        dtype_(options.type == "f32" ? DType::kF32 : DType::kBF16),
        cores_(PinnedCores(options.threads)),
        pool_({.threads = options.threads, .cores = cores_}) {
    auto dense = kernels::MakeCpuDense(
        {.compute_type = dtype_, .threads = options.threads, .cores = cores_});
    LAMINA_CHECK(dense.ok() && reads_.ok());
    dense_ = *std::move(dense);
  }

  nlohmann::json RunAll() {
    std::printf("loop: %s   type %s   threads %zu\n", dense_->description().c_str(),
                options_.type.c_str(), options_.threads);
    std::printf("%-16s %5s %8s %10s %10s %8s %8s %10s %10s\n", "shape", "rows", "experts",
                "bytes hit", "us", "GB/s", "reads", "of-reading", "by-cpu");
    nlohmann::json results = {{"loop", dense_->description()},
                              {"type", options_.type},
                              {"threads", options_.threads},
                              {"rows", nlohmann::json::array()}};
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(options_.only) != std::string::npos) {
        RunShape(shape, results["rows"]);
      }
    }
    return results;
  }

 private:
  std::unique_ptr<kernels::PackedLinear> Pack(const std::vector<std::byte>& weights, size_t out,
                                              size_t in) {
    auto packed = dense_->Pack(weights.data(), dtype_, out, in, {});
    LAMINA_CHECK(packed.ok());
    LAMINA_CHECK(
        dense_->Prepare(**packed, *std::max_element(options_.rows.begin(), options_.rows.end()))
            .ok());
    return *std::move(packed);
  }

  void RunShape(const Shape& shape, nlohmann::json& results) {
    Prng prng(1);
    const auto weights = RandomElements(prng, 2 * shape.hidden * shape.width, dtype_);
    std::vector<kernels::Expert> experts(shape.experts);
    for (kernels::Expert& expert : experts) {
      expert.gate_up = Pack(weights, 2 * shape.hidden, shape.width);
      expert.down = Pack(weights, shape.width, shape.hidden);
    }
    for (const size_t rows : options_.rows) {
      std::vector<Choice> choices;
      for (size_t i = 0; i < kChoices; ++i) {
        choices.push_back(MakeChoice(prng, shape, rows));
      }
      Rates rates = TakeTurns(shape, rows, experts, choices);
      Report(shape, rows, choices, rates, results);
    }
  }

  // Bytes of the experts that are hit, of one pass over all choices.
  double BytesOf(const Shape& shape, const std::vector<Choice>& choices) const {
    const size_t hit = std::accumulate(choices.begin(), choices.end(), size_t{0},
                                       [](size_t sum, const Choice& c) { return sum + c.hit; });
    return static_cast<double>(hit * 3 * shape.width * shape.hidden * DTypeBytes(dtype_));
  }

  Rates TakeTurns(const Shape& shape, size_t rows, const std::vector<kernels::Expert>& experts,
                  const std::vector<Choice>& choices) {
    Prng prng(2);
    std::vector<std::byte> in = RandomElements(prng, rows * shape.width, dtype_);
    std::vector<float> out(rows * shape.width);
    kernels::ExpertLayers layers;
    const auto pass = [&] {
      for (const Choice& choice : choices) {
        layers.Run({.experts = experts,
                    .chosen = shape.chosen,
                    .hidden = shape.hidden,
                    .in = {in.data(), rows, shape.width, shape.width, dtype_},
                    .route = kernels::Packed(choice.route.data(), rows, 2 * shape.chosen),
                    .out = kernels::Packed(out.data(), rows, shape.width)},
                   *dense_);
      }
    };
    pass();  // Makes the scratch.
    const double layer_bytes = BytesOf(shape, choices);
    const double read_bytes = static_cast<double>(reads_.bytes());
    Rates rates;
    for (int round = 0; round < options_.rounds; ++round) {
      for (double spent = 0; spent < kSecondsPerRound;) {
        const Times before = TimesOf([&] { reads_.Read(pool_); });
        const Times layer = TimesOf(pass);
        const Times after = TimesOf([&] { reads_.Read(pool_); });
        spent += layer.wall;
        rates.read_best = std::max(rates.read_best, read_bytes / std::min(before.wall, after.wall));
        rates.layer_best = std::max(rates.layer_best, layer_bytes / layer.wall);
        const double read_rate = 2 * read_bytes / (before.processor + after.processor);
        rates.shares.push_back(layer_bytes / layer.processor / read_rate);
      }
    }
    return rates;
  }

  void Report(const Shape& shape, size_t rows, const std::vector<Choice>& choices, Rates& rates,
              nlohmann::json& results) const {
    const double calls = static_cast<double>(choices.size());
    const double bytes = BytesOf(shape, choices) / calls;
    const double mean_hit =
        bytes / static_cast<double>(3 * shape.width * shape.hidden * DTypeBytes(dtype_));
    const double share = rates.layer_best / rates.read_best;
    const double processor_share = rates.MedianShare();
    std::printf("%-16s %5zu %8.1f %10s %10.1f %8.1f %8.1f %10.2f %10.2f\n", shape.name, rows,
                mean_hit, FormatBytes(static_cast<uint64_t>(bytes)).c_str(),
                bytes / rates.layer_best * 1e6, rates.layer_best / 1e9, rates.read_best / 1e9,
                share, processor_share);
    std::fflush(stdout);
    results.push_back({{"shape", shape.name},
                       {"rows", rows},
                       {"experts_hit", mean_hit},
                       {"bytes_hit", bytes},
                       {"us", bytes / rates.layer_best * 1e6},
                       {"read_bytes_per_s", rates.read_best},
                       {"share_of_read_bandwidth", share},
                       {"share_of_processor_time", processor_share}});
  }

  Options options_;
  DType dtype_;
  std::vector<int> cores_;  // Empty: no thread is pinned.
  ThreadPool pool_;         // Threads of the plain reads.
  kernels::PlainReads reads_;
  std::unique_ptr<kernels::Dense> dense_;
};

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) {
  lamina::bench::Options options;
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app("The experts of one layer against the machine's reads", "lamina-bench-experts");
  app.add_option("--threads", options.threads, "Threads of the layers, and of the plain read")
      ->capture_default_str();
  app.add_option("--type", options.type, "Compute type")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--only", options.only, "Part of a shape's name");
  app.add_option("--rows", options.rows, "Rows of a step")->delimiter(',')->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds to take the best of")->capture_default_str();
  app.add_option("--json", options.json, "Write the results to this file");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }

  const nlohmann::json results = lamina::bench::Bench(options).RunAll();
  if (!options.json.empty()) {
    std::ofstream(options.json) << results.dump(2) << '\n';
  }
  return 0;
}
