// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/empty_launch.h"
#include "bench/cuda/gpu_bench.h"
#include "common/status_macros.h"
#include "kernels/cuda/compute_device.h"
#include "kernels/cuda/dependent_launches.h"

namespace lamina::bench {
namespace {

using kernels::Buffer;
using kernels::ComputeDevice;
using kernels::cuda::AllowDependentLaunches;

constexpr int kRepeats = 50;
constexpr uint32_t kContext = 1024;
constexpr uint32_t kRowsMax = 64;
// Launches of a layer from q, k, v as products leave them to attended rows, each by itself.
constexpr int kLaunches = 4;

struct Shape {
  const char* model;
  AttentionDescriptor heads;
};

std::array<Shape, 2> Shapes() {
  return {{{"LLaMA-3-8B", {.query_heads = 32, .kv_heads = 8, .head_dim = 128, .scale = 0.088f}},
           {"SmolLM2-135M", {.query_heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f}}}};
}

// Rows of as many sequences behind their qkv product, under policy local.
class Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Create(ComputeDevice& device,
                                                       const AttentionDescriptor& heads,
                                                       AttentionArithmetic arithmetic) {
    std::unique_ptr<Layer> layer(new Layer(device, heads));
    LAMINA_RETURN_IF_ERROR(layer->TakeMemory(arithmetic));
    return layer;
  }

  // Rope and store run as one call, or as two.
  absl::Status Run(uint32_t rows, bool one_call) {
    const auto x = kernels::Packed(reinterpret_cast<const float*>(x_.data), rows, width());
    const auto qkv = kernels::Packed(reinterpret_cast<BFloat16*>(qkv_.data), rows, width());
    const kernels::KvPlanes planes = kv_->Planes(0).value();
    const kernels::KvRowStore store = {.kv_heads = heads_.kv_heads,
                                       .k = planes.k,
                                       .v = planes.v,
                                       .head_stride = planes.head_stride,
                                       .slots = {Numbers(slots_), rows}};
    device_.dense().FinishQkv(
        x,
        {.heads = heads_.query_heads + heads_.kv_heads,
         .head_dim = heads_.head_dim,
         .table = {.rotary_dim = heads_.head_dim,
                   .frequencies = {Floats(frequencies_), heads_.head_dim / 2}},
         .positions = {Numbers(positions_), rows},
         .store = one_call ? &store : nullptr},
        {}, qkv);
    items_.clear();
    stored_.clear();
    for (uint32_t i = 0; i < rows; ++i) {
      BFloat16* const row = qkv.row(i);
      stored_.push_back({.k = row + heads_.q_width(),
                         .v = row + heads_.q_width() + heads_.kv_width(),
                         .stride = qkv.stride,
                         .slots = {&last_[i], 1}});
      items_.push_back({.extents = {&extents_[i], 1},
                        .first_position = kContext - 1,
                        .q = row,
                        .q_stride = qkv.stride,
                        .out = reinterpret_cast<BFloat16*>(out_.data) + i * heads_.q_width(),
                        .out_stride = heads_.q_width()});
    }
    if (!one_call) {
      LAMINA_RETURN_IF_ERROR(kv_->Store(0, AllHeads(heads_), stored_));
    }
    return kv_->Attend(0, AllHeads(heads_), items_);
  }

 private:
  Layer(ComputeDevice& device, const AttentionDescriptor& heads) : device_(device), heads_(heads) {}

  size_t width() const { return heads_.qkv_width(); }
  static const uint32_t* Numbers(const Buffer& buffer) {
    return reinterpret_cast<const uint32_t*>(buffer.data);
  }
  static const float* Floats(const Buffer& buffer) {
    return reinterpret_cast<const float*>(buffer.data);
  }

  absl::Status TakeMemory(AttentionArithmetic arithmetic) {
    std::vector<uint32_t> slots;
    for (uint32_t i = 0; i < kRowsMax; ++i) {
      extents_.push_back({.first_slot = i * kContext, .tokens = kContext});
      last_.push_back({.first_slot = (i + 1) * kContext - 1, .tokens = 1});
      slots.push_back(last_.back().first_slot);
    }
    LAMINA_ASSIGN_OR_RETURN(kv_, device_.MakeKvDevice({.layers = {heads_},
                                                       .arithmetic = arithmetic,
                                                       .slots = kRowsMax * kContext,
                                                       .context_tokens_max = kContext,
                                                       .items_max = kRowsMax,
                                                       .store_tokens_max = kRowsMax}));
    LAMINA_ASSIGN_OR_RETURN(slots_, MoveToDevice(std::move(slots), device_));
    LAMINA_ASSIGN_OR_RETURN(positions_,
                            MoveToDevice(std::vector<uint32_t>(kRowsMax, kContext - 1), device_));
    LAMINA_ASSIGN_OR_RETURN(frequencies_,
                            MoveToDevice(std::vector<float>(heads_.head_dim / 2, 0.1f), device_));
    for (Buffer* const buffer : {&x_, &qkv_, &out_}) {
      LAMINA_ASSIGN_OR_RETURN(*buffer, device_.Allocate(kRowsMax * width() * sizeof(float)));
    }
    return device_.Synchronize();
  }

  ComputeDevice& device_;
  const AttentionDescriptor heads_;
  std::unique_ptr<kernels::KvDevice> kv_;
  Buffer x_, qkv_, out_, slots_, positions_, frequencies_;
  std::vector<Extent> extents_;  // A sequence's tokens,
  std::vector<Extent> last_;     // and its last one.
  std::vector<kernels::KvRows> stored_;
  std::vector<kernels::AttentionItem> items_;
};

// Microseconds by the device's clock, the least of five means.
absl::StatusOr<double> Micros(ComputeDevice& device, const std::function<absl::Status()>& work) {
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    LAMINA_ASSIGN_OR_RETURN(const double seconds, device.SecondsOf([&]() -> absl::Status {
      for (int i = 0; i < kRepeats; ++i) {
        LAMINA_RETURN_IF_ERROR(work());
      }
      return absl::OkStatus();
    }));
    const double micros = seconds * 1e6 / kRepeats;
    best = pass == 0 ? micros : std::min(best, micros);
  }
  return best;
}

absl::StatusOr<std::string> MeasureRows(const GpuBench& bench, ComputeDevice& device, Layer& layer,
                                        uint32_t rows) {
  std::string times;
  for (const bool dependent : {false, true}) {
    AllowDependentLaunches(dependent);
    for (const bool one_call : {false, true}) {
      LAMINA_RETURN_IF_ERROR(layer.Run(rows, one_call));
      LAMINA_ASSIGN_OR_RETURN(const double micros,
                              Micros(device, [&] { return layer.Run(rows, one_call); }));
      absl::StrAppendFormat(&times, ", \"%s_%s_us\": %.2f", one_call ? "one_call" : "two_calls",
                            dependent ? "dependent" : "ordinary", micros);
    }
  }
  LAMINA_ASSIGN_OR_RETURN(const double empty, Milliseconds(bench, kRepeats, [&]() -> absl::Status {
                            for (int i = 0; i < kLaunches; ++i) {
                              LAMINA_RETURN_IF_ERROR(LaunchNothing(rows, 8, bench.stream));
                            }
                            return absl::OkStatus();
                          }));
  return absl::StrFormat("{\"rows\": %d%s, \"empty_us\": %.2f}", rows, times, empty * 1e3);
}

}  // namespace

absl::StatusOr<std::string> BenchStore(const GpuBench& bench) {
  LAMINA_ASSIGN_OR_RETURN(const auto device,
                          kernels::cuda::MakeCudaComputeDevice({.index = bench.device.index}));
  LAMINA_RETURN_IF_ERROR(device->Begin());
  std::string layers;
  for (const Shape& shape : Shapes()) {
    for (const auto& [arithmetic, name] : {std::pair(AttentionArithmetic::kCanonical, "canonical"),
                                           std::pair(AttentionArithmetic::kTensor, "tensor")}) {
      LAMINA_ASSIGN_OR_RETURN(const auto layer, Layer::Create(*device, shape.heads, arithmetic));
      std::string rows;
      for (const uint32_t count : {1u, 16u, kRowsMax}) {
        LAMINA_ASSIGN_OR_RETURN(const std::string times,
                                MeasureRows(bench, *device, *layer, count));
        absl::StrAppend(&rows, rows.empty() ? "" : ", ", times);
      }
      absl::StrAppendFormat(&layers, "%s{\"model\": \"%s\", \"kernel\": \"%s\", \"rows\": [%s]}",
                            layers.empty() ? "" : ", ", shape.model, name, rows);
    }
  }
  return absl::StrFormat("{\"launches\": \"%s\", \"layers\": [%s]}",
                         kernels::cuda::DescribeLaunches(bench.device), layers);
}

}  // namespace lamina::bench
