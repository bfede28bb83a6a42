// SPDX-License-Identifier: Apache-2.0
//
// WeightSource: named tensors of a model file, dequantised on demand.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/dtype.h"

namespace lamina::model {

struct TensorInfo {
  std::string name;
  std::string type;             // As the file names it: "Q4_1", "BF16", ...
  std::vector<uint64_t> shape;  // Outermost first, as numpy prints it.
  uint64_t elements = 0;
  uint64_t stored_bytes = 0;
};

// A tensor in the form in which the file has it, row-major.
struct StoredBlocks {
  absl::string_view type;  // "Q4_1"
  uint32_t elements = 0;   // Elements of a block.
  uint32_t bytes = 0;      // Bytes of a block.
  const uint8_t* data = nullptr;
};

// Threading: const calls from any thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const std::vector<TensorInfo>& tensors() const = 0;

  // nullptr when there is none of that name.
  virtual const TensorInfo* Find(absl::string_view name) const = 0;

  // Dequantises elements [first, first + out.size()) in row-major order; `first` a multiple of the
  // type's block, as any row start is.
  // Errors: kNotFound         no such tensor.
  //         kInvalidArgument  outside the tensor, or inside a block.
  virtual absl::Status Read(absl::string_view name, uint64_t first,
                            absl::Span<float> out) const = 0;

  // The tensor's blocks, valid as long as this is; none for a kind of file, or a tensor, without.
  virtual std::optional<StoredBlocks> Blocks(absl::string_view /*name*/) const {
    return std::nullopt;
  }
};

}  // namespace lamina::model
