// SPDX-License-Identifier: Apache-2.0
#include "compute_node/part_sums.h"

namespace lamina::compute_node {

absl::Status PartSums::ToHost(uint32_t slice, size_t reduce, size_t rows,
                              ValueBuffers& buffers) const {
  const model::ValueId part = Part(slice, reduce);
  device_.Copy(buffers.placed(part), buffers.data(part), rows * program_.RowBytes(part));
  return buffers.Settle();
}

void PartSums::Sum(uint32_t slice, size_t reduce, absl::Span<const float* const> parts, size_t rows,
                   ValueBuffers& buffers) const {
  const model::ValueId sum = program_.OpAt(slice, reduce).output;
  const auto out = buffers.Floats(sum, rows);
  kernels::Dense& dense = device_.dense();
  if (!device_.is_host()) {
    const size_t bytes = rows * program_.RowBytes(sum);
    auto* const other = reinterpret_cast<float*>(buffers.part_scratch());
    device_.Copy(out.data, parts[0], bytes);
    for (size_t shard = 1; shard < parts.size(); ++shard) {
      device_.Copy(other, parts[shard], bytes);
      dense.Add(out, kernels::Packed(other, rows, out.cols), out);
    }
    return;
  }
  const auto part = [&](size_t shard) { return kernels::Packed(parts[shard], rows, out.cols); };
  dense.Add(part(0), part(1), out);
  for (size_t shard = 2; shard < parts.size(); ++shard) {
    dense.Add(out, part(shard), out);
  }
}

}  // namespace lamina::compute_node
