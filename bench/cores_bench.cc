// SPDX-License-Identifier: Apache-2.0
//
// How work is shared among many threads, by the code that cuts it (kernels/work_cuts.h), for
// machines that need not be at hand: for the dense layers and the attention of some models the
// threads that are used, and the largest share over the mean of theirs. With --measure also what a
// thread costs on cores 0 and 1: a run of the pool without work, and from which work on a second
// thread pays.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/best_times.h"
#include "bench/flags.h"
#include "common/thread_pool.h"
#include "kernels/cpu/attention_tasks.h"
#include "kernels/dense.h"
#include "kernels/work_cuts.h"
#include "nlohmann/json.hpp"

namespace lamina::bench {
namespace {

using kernels::AttentionItem;
using kernels::DenseWork;
using kernels::Shares;

struct Model {
  const char* name;
  size_t width, hidden;
  AttentionDescriptor attention;
};

std::vector<Model> Models() {
  const auto heads = [](uint32_t kv_heads, uint32_t group, uint32_t head_dim) {
    return AttentionDescriptor{
        .query_heads = kv_heads * group, .kv_heads = kv_heads, .head_dim = head_dim, .scale = 1};
  };
  return {{"SmolLM2-135M", 576, 1536, heads(3, 3, 64)},
          {"LLaMA-3-8B", 4096, 14336, heads(8, 4, 128)},
          {"LLaMA-3-70B", 8192, 28672, heads(8, 8, 128)}};
}

constexpr size_t kThreads[] = {2, 8, 32, 128};
constexpr size_t kRows[] = {1, 4, 16, 64, 512};
constexpr uint32_t kContexts[] = {1024, 3000, 8192, 32768, 131072};

// Shares of several calls, one after the other.
struct Cell {
  size_t used_min = SIZE_MAX;
  size_t used_max = 0;
  double largest_of_mean = 1;

  void Add(const Shares& shares) {
    used_min = std::min(used_min, shares.threads);
    used_max = std::max(used_max, shares.threads);
    largest_of_mean = std::max(largest_of_mean, shares.largest_of_mean);
  }
  std::string Text() const {
    char text[48];
    if (used_min == used_max) {
      std::snprintf(text, sizeof(text), "%zu, %.2f", used_min, largest_of_mean);
    } else {
      std::snprintf(text, sizeof(text), "%zu to %zu, %.2f", used_min, used_max, largest_of_mean);
    }
    return text;
  }
  nlohmann::json Json() const {
    return {{"used_min", used_min}, {"used_max", used_max}, {"largest_of_mean", largest_of_mean}};
  }
};

// The four products of a layer.
Cell DenseCell(const Model& model, size_t rows, size_t threads) {
  const size_t qkv = model.attention.qkv_width();
  const DenseWork products[] = {{rows, model.width, qkv},
                                {rows, model.attention.q_width(), model.width},
                                {rows, model.width, 2 * model.hidden},
                                {rows, model.hidden, model.width}};
  Cell cell;
  for (const DenseWork& product : products) {
    cell.Add(kernels::DenseShares(product, kernels::kCutRowsOfPairs, threads));
  }
  return cell;
}

Cell AttentionCell(const Model& model, size_t rows, uint32_t context, size_t threads) {
  const std::vector<AttentionItem> items(rows, {.first_position = context - 1});
  Cell cell;
  cell.Add(kernels::internal::AttentionShares(model.attention, items, /*tile_tokens=*/1, threads));
  return cell;
}

template <class MakeCell>
nlohmann::json PrintLine(const std::string& name, const MakeCell& make) {
  nlohmann::json line = {{"line", name}};
  std::printf("| %s |", name.c_str());
  for (const size_t threads : kThreads) {
    const Cell cell = make(threads);
    std::printf(" %s |", cell.Text().c_str());
    line[std::to_string(threads)] = cell.Json();
  }
  std::printf("\n");
  return line;
}

nlohmann::json PrintTable() {
  nlohmann::json lines;
  std::printf("threads used, largest share over the mean of theirs\n| |");
  for (const size_t threads : kThreads) {
    std::printf(" %zu threads |", threads);
  }
  std::printf("\n|---|---|---|---|---|\n");
  for (const Model& model : Models()) {
    for (const size_t rows : kRows) {
      const std::string name =
          std::string(model.name) + ", dense layers, " + std::to_string(rows) + " rows";
      lines.push_back(
          PrintLine(name, [&](size_t threads) { return DenseCell(model, rows, threads); }));
    }
    for (const uint32_t context : kContexts) {
      for (const size_t rows : kRows) {
        const std::string name = std::string(model.name) + ", attention, " + std::to_string(rows) +
                                 " rows of " + std::to_string(context) + " tokens";
        lines.push_back(PrintLine(
            name, [&](size_t threads) { return AttentionCell(model, rows, context, threads); }));
      }
    }
  }
  return lines;
}

// Seconds of a run of the pool whose indices do nothing.
double EmptyRunSeconds(size_t threads) {
  ThreadPool pool({.threads = threads, .cores = {0, 1}});
  const std::function<void(size_t, size_t)> nothing = [](size_t, size_t) {};
  return BestTimes({[&](size_t) { pool.Run(threads, nothing); }}, 9)[0];
}

// Two products of the same work, by one thread and by two, which have one each: from which work of
// a thread on the second one pays.
nlohmann::json MeasurePayOff() {
  nlohmann::json lines;
  constexpr size_t kInputs = 256;
  std::printf("work of a thread | one thread, us | two threads, us\n");
  for (const size_t features : {32, 64, 128, 256, 512, 1024}) {
    const std::vector<BFloat16> weights(2 * features * kInputs, ToBFloat16(0.5f));
    std::vector<BFloat16> in(kInputs, ToBFloat16(1.0f));
    std::vector<float> out(2 * features);
    std::vector<double> seconds;
    for (const size_t threads : {1, 2}) {
      ThreadPool pool({.threads = threads, .cores = {0, 1}});
      const std::unique_ptr<kernels::Dense> of[] = {*kernels::MakeCpuDense({.threads = 1}),
                                                    *kernels::MakeCpuDense({.threads = 1})};
      std::unique_ptr<kernels::PackedLinear> packed[2];
      for (size_t half = 0; half < 2; ++half) {
        packed[half] = *of[half]->Pack(weights.data() + half * features * kInputs, DType::kBF16,
                                       features, kInputs, {});
      }
      const auto body = [&](size_t half, size_t) {
        of[half]->Linear(*packed[half], {in.data(), 1, kInputs, kInputs, DType::kBF16}, 0,
                         {out.data() + half * features, 1, features, features});
      };
      seconds.push_back(BestTimes({[&](size_t) { pool.Run(2, body); }}, 9)[0]);
    }
    const size_t work = kernels::WorkOf({1, kInputs, features});
    std::printf("%16zu | %14.2f | %15.2f\n", work, seconds[0] * 1e6, seconds[1] * 1e6);
    lines.push_back({{"work", work}, {"us_one", seconds[0] * 1e6}, {"us_two", seconds[1] * 1e6}});
  }
  return lines;
}

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) {
  CLI::App app("Shares of many threads, by the code that cuts the work", "lamina-bench-cores");
  bool measure = false;
  std::string json;
  app.add_flag("--measure", measure, "Also measure what a thread costs here, on cores 0 and 1");
  app.add_option("--json", json, "Write the results to this file");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  nlohmann::json results = {{"shares", lamina::bench::PrintTable()}};
  if (measure && lamina::PinThisThread({0})) {
    for (const size_t threads : {1, 2, 4, 16}) {
      const double seconds = lamina::bench::EmptyRunSeconds(threads);
      std::printf("a run without work, %zu threads: %.2f us\n", threads, seconds * 1e6);
      results["empty_run_us"][std::to_string(threads)] = seconds * 1e6;
    }
    results["pay_off"] = lamina::bench::MeasurePayOff();
  }
  if (!json.empty()) {
    std::ofstream(json) << results.dump(2) << '\n';
  }
  return 0;
}
