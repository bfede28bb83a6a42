// SPDX-License-Identifier: Apache-2.0
//
// PartSums: the reductions of a shard's graph (model/shard.h), of which a slice runs up to one: the
// caller exchanges parts with the other shards, sums, and goes on behind it.
//
// Threading: one thread.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compute_node/slice_program.h"
#include "compute_node/value_buffers.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class PartSums {
 public:
  // References must outlive this.
  PartSums(const SliceProgram& program, kernels::ComputeDevice& device)
      : program_(program), device_(device) {}

  // How many bytes a row of a part takes, which is [rows, width] f32.
  size_t RowBytes(uint32_t slice, size_t reduce) const {
    return program_.RowBytes(Part(slice, reduce));
  }

  // Where the part goes that reduction `reduce` of the slice sums; before what makes it runs.
  void Place(uint32_t slice, size_t reduce, std::byte* at, ValueBuffers& buffers) const {
    buffers.Place(Part(slice, reduce), at);
  }
  // Brings it there. Errors: those of the device.
  absl::Status ToHost(uint32_t slice, size_t reduce, size_t rows, ValueBuffers& buffers) const;
  // Sums the shards' parts, in their order. Shapes: parts  [shards][rows, width] f32.
  void Sum(uint32_t slice, size_t reduce, absl::Span<const float* const> parts, size_t rows,
           ValueBuffers& buffers) const;

 private:
  model::ValueId Part(uint32_t slice, size_t reduce) const {
    return program_.OpAt(slice, reduce).inputs[0];
  }

  const SliceProgram& program_;
  kernels::ComputeDevice& device_;
};

}  // namespace lamina::compute_node
