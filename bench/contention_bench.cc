// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-contention: what dense layers on core 0 and attention on core 1 take from each
// other, the memory they share above all, with no pipeline between them.
//
// One thread multiplies rows with all weights of the quick start's model, again and again; the
// other attends a batch in all its layers. Both in turns alone and side by side, each for a
// while; a figure is the median of the rounds.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/flags.h"
#include "common/check.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/dense.h"
#include "kernels/kv_arena.h"

namespace lamina::bench {
namespace {

struct Options {
  size_t rows = 8;
  uint32_t context = 1024;
  size_t vocabulary = 49152;
  int rounds = 5;
  double seconds = 0.3;
  std::string json;
};

// SmolLM2-135M.
constexpr uint32_t kLayers = 30;
constexpr AttentionDescriptor kAttention = {
    .query_heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f};
struct Shape {
  size_t inputs;
  size_t features;
};
constexpr std::array<Shape, 4> kLayer = {{{576, 960}, {576, 576}, {576, 3072}, {1536, 576}}};
constexpr size_t kWidestInput = 1536;
constexpr size_t kWidth = 576;

BFloat16 Noise(uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  BFloat16 x;
  x.bits = static_cast<uint16_t>(0x3d00u | (state >> 16 & 0x80ffu));
  return x;
}

std::vector<BFloat16> Noise(size_t count) {
  uint32_t state = 1;
  std::vector<BFloat16> values(count);
  for (BFloat16& x : values) {
    x = Noise(state);
  }
  return values;
}

// All matrices of a step.
class DenseLoad {
 public:
  DenseLoad(size_t rows, size_t vocabulary)
      : rows_(rows), out_(rows * std::max<size_t>(vocabulary, 3072)) {
    auto dense = kernels::MakeCpuDense({.threads = 1});
    LAMINA_CHECK(dense.ok());
    dense_ = *std::move(dense);
    in_ = Noise(rows * kWidestInput);
    in_f32_.assign(in_.size(), 0.5f);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (const Shape& shape : kLayer) {
        Add(shape);
      }
    }
    Add({kWidth, vocabulary});
  }

  void Step() {
    const bool f32 = dense_->compute_type() == DType::kF32;
    for (const auto& matrix : matrices_) {
      const size_t inputs = matrix->in_features();
      dense_->Linear(*matrix,
                     {.data = f32 ? static_cast<void*>(in_f32_.data()) : in_.data(),
                      .rows = rows_,
                      .cols = inputs,
                      .stride = inputs,
                      .dtype = dense_->compute_type()},
                     0, kernels::Packed(out_.data(), rows_, matrix->out_features()));
    }
  }

 private:
  void Add(const Shape& shape) {
    const std::vector<BFloat16> weights = Noise(shape.inputs * shape.features);
    auto packed = dense_->Pack(weights.data(), DType::kBF16, shape.features, shape.inputs, {});
    LAMINA_CHECK(packed.ok() && dense_->Prepare(**packed, rows_).ok());
    matrices_.push_back(*std::move(packed));
  }

  const size_t rows_;
  std::unique_ptr<kernels::Dense> dense_;
  std::vector<std::unique_ptr<kernels::PackedLinear>> matrices_;
  std::vector<BFloat16> in_;
  std::vector<float> in_f32_;
  std::vector<float> out_;
};

// A query of each sequence, in every layer.
class AttentionLoad {
 public:
  AttentionLoad(size_t rows, uint32_t context)
      : pool_({.threads = 1}),
        slots_((context + 15) / 16 * 16),
        arena_(MakeArena(static_cast<uint32_t>(rows) * slots_)),
        queries_(Noise(rows * kAttention.q_width())),
        outputs_(queries_.size()),
        extents_(rows),
        scratch_(kernels::CpuAttention().MakeScratch(kAttention, 1, context, 1)) {
    for (size_t i = 0; i < rows; ++i) {
      extents_[i] = {.first_slot = static_cast<uint32_t>(i) * slots_, .tokens = context};
      items_.push_back({.extents = {&extents_[i], 1},
                        .first_position = context - 1,
                        .q = queries_.data() + i * kAttention.q_width(),
                        .q_stride = kAttention.q_width(),
                        .out = outputs_.data() + i * kAttention.q_width(),
                        .out_stride = kAttention.q_width()});
    }
  }

  void Step() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      kernels::CpuAttention().Attend(kAttention, arena_.View(layer), items_, *scratch_, pool_);
    }
  }

 private:
  // Zeros: what attention computes does not depend on values.
  static kernels::KvArena MakeArena(uint32_t slots) {
    const std::vector<AttentionDescriptor> layers(kLayers, kAttention);
    auto arena = kernels::KvArena::Create(layers, slots);
    LAMINA_CHECK(arena.ok() && "K and V fit in memory; see --rows and --context");
    return *std::move(arena);
  }

  ThreadPool pool_;
  const uint32_t slots_;  // Slots of a sequence.
  kernels::KvArena arena_;
  std::vector<BFloat16> queries_;
  std::vector<BFloat16> outputs_;
  std::vector<Extent> extents_;
  std::vector<kernels::AttentionItem> items_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
};

// The median seconds of a step, over at least `seconds`. `started` is set when the first ends, and
// steps go on until `stop` says so.
template <typename Load>
double StepSeconds(Load& load, double seconds, std::atomic<bool>& stop) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> steps;
  const auto begin = Clock::now();
  auto before = begin;
  do {
    load.Step();
    const auto after = Clock::now();
    steps.push_back(std::chrono::duration<double>(after - before).count());
    before = after;
  } while (std::chrono::duration<double>(before - begin).count() < seconds);
  stop = true;
  std::sort(steps.begin(), steps.end());
  return steps[steps.size() / 2];
}

// The median seconds of a step while the other load runs on core 1 - `core`.
template <typename Load, typename Other>
double StepSecondsWith(Load& load, int core, Other& other, double seconds) {
  std::atomic<bool> running = false;
  std::atomic<bool> stop = false;
  std::thread other_thread([&] {
    PinThisThread({1 - core});
    do {
      other.Step();
      running = true;
    } while (!stop);
  });
  while (!running) {
    std::this_thread::yield();
  }
  const double step = StepSeconds(load, seconds, stop);
  other_thread.join();
  return step;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const Options& options) {
  if (!PinThisThread({1}) || !PinThisThread({0})) {
    std::fputs("two loads side by side need cores 0 and 1; this process may not have both\n",
               stderr);
    return 1;
  }
  DenseLoad dense(options.rows, options.vocabulary);
  AttentionLoad attention(options.rows, options.context);
  std::vector<double> dense_alone, dense_shared, attention_alone, attention_shared, dense_slower,
      attention_slower;
  for (int round = 0; round < options.rounds; ++round) {
    std::atomic<bool> stop = false;
    PinThisThread({0});
    dense_alone.push_back(StepSeconds(dense, options.seconds, stop));
    dense_shared.push_back(StepSecondsWith(dense, 0, attention, options.seconds));
    dense_slower.push_back(dense_shared.back() / dense_alone.back());
    PinThisThread({1});
    attention_alone.push_back(StepSeconds(attention, options.seconds, stop));
    attention_shared.push_back(StepSecondsWith(attention, 1, dense, options.seconds));
    attention_slower.push_back(attention_shared.back() / attention_alone.back());
  }
  const nlohmann::json found = {{"dense_alone_s", Median(dense_alone)},
                                {"dense_shared_s", Median(dense_shared)},
                                {"dense_slower", Median(dense_slower)},
                                {"attention_alone_s", Median(attention_alone)},
                                {"attention_shared_s", Median(attention_shared)},
                                {"attention_slower", Median(attention_slower)}};
  std::printf(
      "%zu rows of %u tokens, ms a step: dense layers %.2f alone, %.2f with attention "
      "(%.2f); attention %.2f alone, %.2f with dense layers (%.2f)\n",
      options.rows, options.context, Median(dense_alone) * 1e3, Median(dense_shared) * 1e3,
      Median(dense_slower), Median(attention_alone) * 1e3, Median(attention_shared) * 1e3,
      Median(attention_slower));
  if (!options.json.empty()) {
    std::ofstream(options.json) << found.dump(2) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) {
  lamina::bench::Options options;
  CLI::App app(
      "Measures what dense layers on core 0 and attention on core 1 take from each other.");
  app.add_option("--rows", options.rows, "Of a batch")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--context", options.context, "Tokens of each row")
      ->capture_default_str()
      ->check(CLI::Range(1, 131072));
  app.add_option("--vocabulary", options.vocabulary, "Tokens of the model")
      ->capture_default_str()
      ->check(CLI::Range(64, 1 << 20));
  app.add_option("--rounds", options.rounds, "The median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", options.seconds, "Of each of a round's four figures")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 60.0));
  app.add_option("--json", options.json, "Also write the figures to this file");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  return lamina::bench::Run(options);
}
