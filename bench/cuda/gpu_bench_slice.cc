// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/gpu_bench.h"
#include "common/status_macros.h"
#include "kernels/cuda/compute_device.h"

namespace lamina::bench {
namespace {

using kernels::Buffer;
using kernels::ComputeDevice;
using kernels::MatrixView;
using kernels::PackedLinear;

constexpr size_t kRowsMax = 64;
constexpr int kRepeats = 50;
constexpr int kGraphs = 64;  // To see what one takes of the device's memory.

struct Shape {
  const char* model;
  uint32_t width;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t hidden;
};
constexpr std::array<Shape, 2> kShapes = {
    {{"LLaMA-3-8B", 4096, 32, 8, 128, 14336}, {"SmolLM2-135M", 576, 9, 3, 64, 1536}}};

double MicrosSince(std::chrono::steady_clock::time_point started) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - started)
      .count();
}

// What a compute node does for one decode slice in the middle of a model, from the attention's
// output in the host's memory to q, k, v there.
class Slice {
 public:
  static absl::StatusOr<std::unique_ptr<Slice>> Create(ComputeDevice& device, const Shape& shape) {
    std::unique_ptr<Slice> slice(new Slice(device, shape));
    LAMINA_RETURN_IF_ERROR(slice->TakeMemory());
    return slice;
  }

  void Run(size_t rows) {
    kernels::Dense& dense = device_.dense();
    device_.Copy(attended_.data, host_in_.data, rows * q_width() * sizeof(BFloat16));
    dense.Linear(*out_, Halves(attended_, rows, q_width()), 0, Floats(wide_, rows, shape_.width));
    AddNorm(rows);
    dense.Linear(*gate_up_, Halves(normal_, rows, shape_.width), 0,
                 Floats(wide_, rows, 2 * shape_.hidden));
    dense.GatedActivation(kernels::Activation::kSilu, Floats(wide_, rows, 2 * shape_.hidden),
                          Halves(active_, rows, shape_.hidden));
    dense.Linear(*down_, Halves(active_, rows, shape_.hidden), 0,
                 Floats(wide_, rows, shape_.width));
    AddNorm(rows);
    dense.Linear(*qkv_, Halves(normal_, rows, shape_.width), 0, Floats(wide_, rows, qkv_width()));
    const auto* const numbers = reinterpret_cast<const uint32_t*>(positions_.data);
    dense.RopeAndRound(
        Floats(wide_, rows, qkv_width()), shape_.q_heads + shape_.kv_heads, shape_.head_dim,
        {.rotary_dim = shape_.head_dim,
         .frequencies = {reinterpret_cast<const float*>(frequencies_.data), shape_.head_dim / 2}},
        {numbers, rows},
        kernels::Packed(reinterpret_cast<BFloat16*>(made_.data), rows, qkv_width()));
    device_.Copy(host_out_.data, made_.data, rows * qkv_width() * sizeof(BFloat16));
  }

 private:
  Slice(ComputeDevice& device, const Shape& shape) : device_(device), shape_(shape) {}

  void AddNorm(size_t rows) {
    const absl::Span<const float> weight(reinterpret_cast<const float*>(norm_.data), shape_.width);
    const auto residual = Floats(residual_, rows, shape_.width);
    device_.dense().AddRmsNorm(residual, Floats(wide_, rows, shape_.width), residual, weight, 1e-5f,
                               Halves(normal_, rows, shape_.width));
  }

  size_t q_width() const { return size_t{shape_.q_heads} * shape_.head_dim; }
  size_t qkv_width() const { return q_width() + size_t{2} * shape_.kv_heads * shape_.head_dim; }

  absl::StatusOr<std::unique_ptr<PackedLinear>> Weights(size_t out, size_t in) {
    const std::vector<BFloat16> values(out * in, ToBFloat16(0.01f));
    LAMINA_ASSIGN_OR_RETURN(auto packed,
                            device_.dense().Pack(values.data(), DType::kBF16, out, in, {}));
    LAMINA_RETURN_IF_ERROR(device_.dense().Prepare(*packed, kRowsMax));
    return packed;
  }

  absl::Status TakeMemory() {
    LAMINA_ASSIGN_OR_RETURN(out_, Weights(shape_.width, q_width()));
    LAMINA_ASSIGN_OR_RETURN(gate_up_, Weights(2 * shape_.hidden, shape_.width));
    LAMINA_ASSIGN_OR_RETURN(down_, Weights(shape_.width, shape_.hidden));
    LAMINA_ASSIGN_OR_RETURN(qkv_, Weights(qkv_width(), shape_.width));
    LAMINA_ASSIGN_OR_RETURN(norm_, MoveToDevice(std::vector<float>(shape_.width, 1.0f), device_));
    LAMINA_ASSIGN_OR_RETURN(frequencies_,
                            MoveToDevice(std::vector<float>(shape_.head_dim / 2, 0.1f), device_));
    const size_t widest = std::max({size_t{2} * shape_.hidden, qkv_width(), size_t{shape_.width}});
    for (Buffer* const buffer :
         {&attended_, &residual_, &wide_, &normal_, &active_, &made_, &positions_}) {
      LAMINA_ASSIGN_OR_RETURN(*buffer, device_.Allocate(kRowsMax * widest * sizeof(float)));
    }
    for (Buffer* const buffer : {&host_in_, &host_out_}) {
      LAMINA_ASSIGN_OR_RETURN(*buffer, device_.AllocateHost(kRowsMax * widest * sizeof(BFloat16)));
    }
    return device_.Synchronize();
  }

  static MatrixView<float> Floats(const Buffer& buffer, size_t rows, size_t cols) {
    return kernels::Packed(reinterpret_cast<float*>(buffer.data), rows, cols);
  }
  static kernels::ActivationView Halves(const Buffer& buffer, size_t rows, size_t cols) {
    return {.data = buffer.data, .rows = rows, .cols = cols, .stride = cols, .dtype = DType::kBF16};
  }

  ComputeDevice& device_;
  const Shape shape_;
  std::unique_ptr<PackedLinear> out_, gate_up_, down_, qkv_;
  Buffer norm_, frequencies_, positions_;
  Buffer attended_, residual_, wide_, normal_, active_, made_;
  Buffer host_in_, host_out_;
};

struct Times {
  double whole_us = 0;  // Until q, k, v are there,
  double calls_us = 0;  // of which the calls alone.
};

// The least of five means.
absl::StatusOr<Times> Measure(ComputeDevice& device, const std::function<void()>& work) {
  Times best;
  for (int pass = 0; pass < 5; ++pass) {
    double calls = 0;
    const auto started = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) {
      const auto called = std::chrono::steady_clock::now();
      work();
      calls += MicrosSince(called);
      LAMINA_RETURN_IF_ERROR(device.Synchronize());
    }
    const double whole = MicrosSince(started) / kRepeats;
    if (pass == 0 || whole < best.whole_us) {
      best = {.whole_us = whole, .calls_us = calls / kRepeats};
    }
  }
  return best;
}

absl::StatusOr<size_t> FreeBytes() {
  size_t free_bytes = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
    return absl::InternalError("cudaMemGetInfo");
  }
  return free_bytes;
}

// What one capture takes of time and of the device's memory.
absl::StatusOr<std::string> MeasureCapture(ComputeDevice& device, Slice& slice) {
  LAMINA_ASSIGN_OR_RETURN(const size_t before, FreeBytes());
  std::vector<std::unique_ptr<kernels::CapturedGraph>> graphs(kGraphs);
  const auto started = std::chrono::steady_clock::now();
  for (auto& graph : graphs) {
    LAMINA_ASSIGN_OR_RETURN(graph, device.Capture([&] { slice.Run(16); }));
  }
  LAMINA_RETURN_IF_ERROR(device.Synchronize());
  const double micros = MicrosSince(started) / kGraphs;
  LAMINA_ASSIGN_OR_RETURN(const size_t after, FreeBytes());
  return absl::StrFormat("\"record_us\": %.1f, \"graph_bytes\": %d", micros,
                         before > after ? (before - after) / kGraphs : 0);
}

absl::StatusOr<std::string> MeasureShape(ComputeDevice& device, const Shape& shape) {
  LAMINA_ASSIGN_OR_RETURN(const auto slice, Slice::Create(device, shape));
  std::string lines;
  for (const size_t rows : {1, 16, 64}) {
    slice->Run(rows);
    LAMINA_RETURN_IF_ERROR(device.Synchronize());
    LAMINA_ASSIGN_OR_RETURN(const auto graph, device.Capture([&] { slice->Run(rows); }));
    LAMINA_ASSIGN_OR_RETURN(const Times launches, Measure(device, [&] { slice->Run(rows); }));
    LAMINA_ASSIGN_OR_RETURN(const Times replays, Measure(device, [&] { graph->Replay(); }));
    absl::StrAppendFormat(&lines,
                          "%s{\"rows\": %d, \"launches_us\": %.2f, \"graph_us\": %.2f, "
                          "\"launches_calls_us\": %.2f, \"graph_calls_us\": %.2f}",
                          lines.empty() ? "" : ", ", rows, launches.whole_us, replays.whole_us,
                          launches.calls_us, replays.calls_us);
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string capture, MeasureCapture(device, *slice));
  return absl::StrFormat("{\"model\": \"%s\", %s, \"rows\": [%s]}", shape.model, capture, lines);
}

}  // namespace

absl::StatusOr<std::string> BenchSlice(const GpuBench& bench) {
  LAMINA_ASSIGN_OR_RETURN(const auto device,
                          kernels::cuda::MakeCudaComputeDevice({.index = bench.device.index}));
  LAMINA_RETURN_IF_ERROR(device->Begin());
  std::string models;
  for (const Shape& shape : kShapes) {
    LAMINA_ASSIGN_OR_RETURN(const std::string model, MeasureShape(*device, shape));
    absl::StrAppend(&models, models.empty() ? "" : ", ", model);
  }
  return absl::StrFormat("{\"models\": [%s]}", models);
}

}  // namespace lamina::bench
