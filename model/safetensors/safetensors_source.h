// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsSource: the tensors of one or many safetensors files, mapped read-only.
//
// Headers are checked against the files before anything is read: lengths, offsets, shapes, and that
// the tensors of a file cover its data once and without gaps, as the format demands. F32, F16 and
// BF16 can be read, and MXFP4 in two tensors of bytes, <name>_blocks and <name>_scales, as <name>;
// tensors of other types are listed, for old checkpoints carry masks that nobody
// reads.
//
// Threading: immutable after Open().

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/weight_source.h"

namespace lamina::model {

class SafetensorsSource final : public WeightSource {
 public:
  // The weights in `directory`: the files that model.safetensors.index.json names, or without it
  // model.safetensors.
  // Errors: kNotFound  neither is there, or a file that the index names is not.
  //         kDataLoss  truncated or inconsistent; says what, and that the file should be fetched
  //                    again.
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> OpenDirectory(
      const std::string& directory);

  // One file's content in memory, which must outlive the object. For tests and fuzzing.
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> Parse(absl::Span<const uint8_t> bytes);

  ~SafetensorsSource() override;
  SafetensorsSource(const SafetensorsSource&) = delete;
  SafetensorsSource& operator=(const SafetensorsSource&) = delete;

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(absl::string_view name) const override;
  // Also kUnimplemented: the tensor has a type that is only listed.
  absl::Status Read(absl::string_view name, uint64_t first, absl::Span<float> out) const override;

 private:
  struct Storage;  // The mappings and where each tensor lies.
  SafetensorsSource();
  absl::Status AddFile(absl::Span<const uint8_t> bytes, absl::string_view file_name);
  void AddPairs();
  absl::Status BuildIndex();

  std::vector<TensorInfo> tensors_;
  std::unique_ptr<Storage> storage_;
};

// Whether Read() can read a tensor of this type: "F32", "F16", "BF16", "MXFP4".
bool IsReadableSafetensorsType(absl::string_view type);

}  // namespace lamina::model
