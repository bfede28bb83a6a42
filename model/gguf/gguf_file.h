// SPDX-License-Identifier: Apache-2.0
//
// GgufFile: a GGUF v2 or v3 file, or the parts of a split one, mapped read-only: metadata and
// tensors.
//
// Every offset and count of the file is checked against its size before use; nothing is allocated
// in proportion to a number that the file only claims.
//
// Threading: immutable after Open().

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/weight_source.h"

namespace lamina::model {

// Scalars widen to the largest type of their kind. Arrays of strings and numbers only.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

class GgufFile final : public WeightSource {
 public:
  // The first part of a split file brings the others, which lie in the same folder.
  // Errors: kNotFound         no such file, or no such part.
  //         kInvalidArgument  no GGUF file, or a part that is not the first; names that one.
  //         kDataLoss         truncated or inconsistent, or parts of two splits; says what, where
  //                           (byte offset), and that the file should be fetched again.
  //         kUnimplemented    a version or tensor type that we do not read; names it and the known
  //                           ones.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // Reads bytes in memory, which must outlive the object. For tests and fuzzing.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(absl::Span<const uint8_t> bytes);

  ~GgufFile() override;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }

  // Typed look-ups. Errors: kNotFound names the key; kInvalidArgument when it has another type or
  // is out of range.
  absl::StatusOr<uint64_t> GetUint(absl::string_view key) const;
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<absl::Span<const std::string>> GetStrings(absl::string_view key) const;
  absl::StatusOr<absl::Span<const int64_t>> GetInts(absl::string_view key) const;
  absl::StatusOr<absl::Span<const double>> GetFloats(absl::string_view key) const;
  bool Has(absl::string_view key) const;

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(absl::string_view name) const override;
  absl::Status Read(absl::string_view name, uint64_t first, absl::Span<float> out) const override;
  std::optional<StoredBlocks> Blocks(absl::string_view name) const override;

 private:
  struct Storage;  // The mappings, and each tensor's type and place.
  GgufFile();
  // One file, whatever it says of parts.
  static absl::StatusOr<std::unique_ptr<GgufFile>> OpenOne(const std::string& path);
  // Adds the tensors of the other parts if this file, at `path`, is one of several.
  absl::Status AddParts(const std::string& path);
  // Leaves the index of names to BuildIndex().
  void TakeTensors(GgufFile& part);
  // Returns a tensor whose name another one has, or nullptr.
  const TensorInfo* BuildIndex();

  std::map<std::string, GgufValue> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unique_ptr<Storage> storage_;
};

}  // namespace lamina::model
