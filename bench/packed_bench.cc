// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-packed: layers that keep the blocks of their GGUF file, or are INT8, against the
// same layers widened to bf16, in turns. The weights of a call are not those of the call before, as
// in a model: copies enough to overflow the last cache take turns (--cold-mib, of bf16).

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/best_times.h"
#include "bench/flags.h"
#include "bench/pinned_cores.h"
#include "common/check.h"
#include "common/philox.h"
#include "kernels/block_type.h"
#include "kernels/dense.h"

namespace lamina::bench {
namespace {

struct Options {
  size_t threads = 1;
  std::string types = "Q4_1,Q8_0,Q4_0,Q5_1,Q4_K,Q6_K,int8";
  std::string only;
  bool fallback = false;
  int rounds = 9;
  size_t cold_mib = 96;
  std::string json;
};

struct Shape {
  const char* name;
  size_t inputs;
  size_t features;
};

// K-quants take those whose inputs are blocks of theirs.
constexpr Shape kShapes[] = {{"smollm2.qkv", 576, 960},   {"smollm2.gate_up", 576, 3072},
                             {"smollm2.down", 1536, 576}, {"smollm2.lm_head", 576, 49152},
                             {"llama3-8b.o", 4096, 4096}, {"llama3-8b.down", 14336, 4096}};
constexpr size_t kRows[] = {1, 2, 4, 8, 16, 64, 512};
constexpr double kFlopsMax = 70e9;

class Layer {
 public:
  Layer(kernels::BlockType type, const Shape& shape) : info_(kernels::InfoOf(type)), shape_(shape) {
    Prng prng(1);
    bytes_.resize(shape.features * shape.inputs / info_.elements * info_.bytes);
    for (uint8_t& byte : bytes_) {
      byte = static_cast<uint8_t>(prng.Below(64));  // Small scales stay finite.
    }
    for (size_t block = 0; block < bytes_.size(); block += info_.bytes) {
      if (type == kernels::BlockType::kInt8) {  // No scale is subnormal, which would take longer.
        bytes_[block + 1] = 0x3c;
      } else if (type == kernels::BlockType::kMxfp4) {
        bytes_[block] = 120;
      }
    }
    const size_t row_bytes = shape.inputs / info_.elements * info_.bytes;
    for (size_t row = 0; row < shape.features; ++row) {
      rows_.push_back(bytes_.data() + row * row_bytes);
    }
  }

  std::unique_ptr<kernels::PackedLinear> Pack(kernels::Dense& dense) const {
    const kernels::BlockRows part = {.type = info_.type, .rows = rows_};
    auto packed = dense.PackBlocks({&part, 1}, shape_.inputs, {});
    LAMINA_CHECK(packed.ok());
    return *std::move(packed);
  }

 private:
  const kernels::BlockTypeInfo& info_;
  Shape shape_;
  std::vector<uint8_t> bytes_;
  std::vector<const uint8_t*> rows_;
};

using Copies = std::vector<std::unique_ptr<kernels::PackedLinear>>;

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    auto dense = kernels::MakeCpuDense({.threads = options.threads,
                                        .cores = PinnedCores(options.threads),
                                        .loop = options.fallback ? kernels::DenseLoop::kFallbackGemm
                                                                 : kernels::DenseLoop::kFastest});
    LAMINA_CHECK(dense.ok());
    dense_ = *std::move(dense);
  }

  nlohmann::json RunAll() {
    std::printf("loop: %s   threads %zu\n%-16s %-7s %5s %10s %10s %8s %12s\n",
                dense_->description().c_str(), options_.threads, "shape", "type", "rows",
                "packed us", "bf16 us", "times", "packed GB/s");
    nlohmann::json results = {{"loop", dense_->description()},
                              {"threads", options_.threads},
                              {"rows", nlohmann::json::array()}};
    for (const Shape& shape : kShapes) {
      for (const kernels::BlockTypeInfo& info : kernels::BlockTypes()) {
        if (Listed(info.name) && shape.inputs % info.elements == 0 &&
            std::string(shape.name).find(options_.only) != std::string::npos) {
          RunShape(shape, info, results["rows"]);
        }
      }
    }
    return results;
  }

 private:
  bool Listed(absl::string_view name) const {
    return ("," + options_.types + ",").find("," + std::string(name) + ",") != std::string::npos;
  }

  void RunShape(const Shape& shape, const kernels::BlockTypeInfo& info, nlohmann::json& results) {
    const Layer layer(info.type, shape);
    const std::vector<BFloat16> widened(shape.inputs * shape.features, ToBFloat16(0.01f));
    const size_t copies = 1 + (options_.cold_mib << 20) / (widened.size() * sizeof(BFloat16));
    Copies packed;
    Copies bf16;
    for (size_t i = 0; i < copies; ++i) {
      packed.push_back(layer.Pack(*dense_));
      bf16.push_back(*dense_->Pack(widened.data(), DType::kBF16, shape.features, shape.inputs, {}));
    }
    for (const size_t rows : kRows) {
      if (2.0 * static_cast<double>(rows * widened.size()) < kFlopsMax) {
        RunRows(shape, info, rows, packed, bf16, results);
      }
    }
  }

  void RunRows(const Shape& shape, const kernels::BlockTypeInfo& info, size_t rows,
               const Copies& packed, const Copies& bf16, nlohmann::json& results) {
    std::vector<BFloat16> in(rows * shape.inputs, ToBFloat16(0.5f));
    std::vector<float> out(rows * shape.features);
    const kernels::ActivationView view = {in.data(), rows, shape.inputs, shape.inputs,
                                          DType::kBF16};
    const auto to = kernels::Packed(out.data(), rows, shape.features);
    const auto of = [&](const Copies& copies) {
      return [&](size_t call) { dense_->Linear(*copies[call % copies.size()], view, 0, to); };
    };
    const std::vector<double> times = BestTimes({of(packed), of(bf16)}, options_.rounds);
    const double gbytes = static_cast<double>(packed[0]->bytes()) / times[0] / 1e9;
    std::printf("%-16s %-7s %5zu %10.1f %10.1f %8.2f %12.1f\n", shape.name,
                std::string(info.name).c_str(), rows, times[0] * 1e6, times[1] * 1e6,
                times[1] / times[0], gbytes);
    results.push_back({{"shape", shape.name},
                       {"type", info.name},
                       {"rows", rows},
                       {"packed_us", times[0] * 1e6},
                       {"bf16_us", times[1] * 1e6},
                       {"packed_gbytes_per_s", gbytes}});
  }

  Options options_;
  std::unique_ptr<kernels::Dense> dense_;
};

}  // namespace
}  // namespace lamina::bench

int main(int argc, char** argv) {
  lamina::bench::Options options;
  CLI::App app("Layers in blocks of a GGUF file against bf16", "lamina-bench-packed");
  app.add_option("--threads", options.threads, "Threads of each side")->capture_default_str();
  app.add_option("--types", options.types, "Types, with commas between")->capture_default_str();
  app.add_option("--only", options.only, "Part of a shape's name");
  app.add_flag("--fallback", options.fallback, "Take the fallback GEMM on both sides");
  app.add_option("--rounds", options.rounds, "Rounds to take the best of")->capture_default_str();
  app.add_option("--cold-mib", options.cold_mib,
                 "Turn over this much of bf16 weights between calls")
      ->capture_default_str();
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
