// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "kernels/cpu/onednn_matmul_internal.h"
#include "kernels/cpu/onednn_probe_internal.h"

namespace lamina::kernels::cpu {
namespace {

using dnnl::memory;

struct ProbeShape {
  size_t inputs;
  size_t features;
};

// Long and short reductions, odd ones too (a tail of the blocking), and features that leave a tail.
constexpr ProbeShape kShapes[] = {{64, 64}, {576, 192}, {1536, 64}, {101, 77}, {4096, 64}};
constexpr size_t kRowCounts[] = {2, 3, 5, 8, 13, 16, 17, 31, 48, 64, 128};
constexpr size_t kRowsMax = 128;

std::vector<float> RandomValues(size_t count, Prng& prng) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(prng.Uniform() - 0.5);
  }
  return values;
}

class Probe {
 public:
  Probe(const ProbeShape& shape, DType compute_type)
      : shape_(shape),
        compute_type_(compute_type),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    Prng prng(shape.inputs);
    in_ = RandomValues(kRowsMax * shape.inputs, prng);
    in_bf16_.resize(in_.size());
    for (size_t i = 0; i < in_.size(); ++i) {
      in_bf16_[i] = ToBFloat16(in_[i]);
    }
    weights_ = RandomValues(shape.inputs * shape.features, prng);
    Pack();
  }

  std::string loop() const {
    return DescribeMatmul(Shape(1), compute_type_, engine_).impl_info_str();
  }

  // Rows [first, first + rows) of the product, computed in one call.
  std::vector<float> Compute(size_t first, size_t rows) {
    const OnednnMatmul matmul(Shape(rows), compute_type_, packed_.get_desc(), engine_, 1);
    std::vector<float> out(rows * shape_.features);
    const void* in = compute_type_ == DType::kF32
                         ? static_cast<const void*>(in_.data() + first * shape_.inputs)
                         : static_cast<const void*>(in_bf16_.data() + first * shape_.inputs);
    matmul.Run(0, stream_, packed_, memory(), in, out.data());
    return out;
  }

  // Computes every row alone.
  std::vector<float> Alone() {
    const OnednnMatmul matmul(Shape(1), compute_type_, packed_.get_desc(), engine_, 1);
    std::vector<float> out(kRowsMax * shape_.features);
    for (size_t row = 0; row < kRowsMax; ++row) {
      const void* in = compute_type_ == DType::kF32
                           ? static_cast<const void*>(in_.data() + row * shape_.inputs)
                           : static_cast<const void*>(in_bf16_.data() + row * shape_.inputs);
      matmul.Run(0, stream_, packed_, memory(), in, out.data() + row * shape_.features);
    }
    return out;
  }

 private:
  MatmulShape Shape(size_t rows) const {
    return {.rows = rows, .inputs = shape_.inputs, .features = shape_.features};
  }

  void Pack() {
    const memory::dims dims = {static_cast<memory::dim>(shape_.inputs),
                               static_cast<memory::dim>(shape_.features)};
    memory plain(memory::desc(dims, memory::data_type::f32, memory::format_tag::ab), engine_,
                 weights_.data());
    packed_ = memory(DescribeMatmul(Shape(1), compute_type_, engine_).weights_desc(), engine_);
    dnnl::reorder(plain, packed_).execute(stream_, plain, packed_);
  }

  ProbeShape shape_;
  DType compute_type_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<float> in_;
  std::vector<BFloat16> in_bf16_;
  std::vector<float> weights_;
  memory packed_;
};

// Returns the name of the loop when every row count gives the bits of rows alone.
absl::StatusOr<std::string> ProbeOneShape(const ProbeShape& shape, DType compute_type) {
  Probe probe(shape, compute_type);
  const std::string loop = probe.loop();
  if (!absl::StartsWith(loop, "brg")) {
    return absl::UnimplementedError(
        absl::StrCat("oneDNN takes ", loop, ", which is not known to be row-invariant"));
  }
  const std::vector<float> alone = probe.Alone();
  for (const size_t rows : kRowCounts) {
    const size_t first = (kRowsMax - rows) / 2;
    const std::vector<float> together = probe.Compute(first, rows);
    if (std::memcmp(together.data(), alone.data() + first * shape.features,
                    together.size() * sizeof(float)) != 0) {
      return absl::UnimplementedError(absl::StrCat("oneDNN's ", loop, " is not row-invariant at ",
                                                   rows, " rows of ", shape.inputs, " inputs"));
    }
  }
  return loop;
}

}  // namespace

absl::StatusOr<std::string> ProbeOnednn(DType compute_type) {
  std::string loop;
  try {
    const SingleThreadedOpenMp single;
    for (const ProbeShape& shape : kShapes) {
      absl::StatusOr<std::string> result = ProbeOneShape(shape, compute_type);
      if (!result.ok()) {
        return result;
      }
      loop = *result;
    }
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(
        absl::StrCat("oneDNN cannot multiply ", DTypeName(compute_type), ": ", error.what()));
  }
  return loop;
}

}  // namespace lamina::kernels::cpu
