// SPDX-License-Identifier: Apache-2.0
#include "model/fingerprint.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace lamina::model {
namespace {

constexpr uint64_t kSampleElements = 256;  // A multiple of every type's block.

// FNV-1a, 64 bits.
class Hash {
 public:
  void Add(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) {
      state_ = (state_ ^ p[i]) * 0x100000001b3ULL;
    }
  }
  void Add(const std::string& text) { Add(text.data(), text.size()); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace

absl::StatusOr<std::string> Fingerprint(const Model& model) {
  Hash hash;
  std::vector<float> sample;
  for (const TensorInfo& tensor : model.weights->tensors()) {
    hash.Add(tensor.name);
    hash.Add(tensor.type);
    for (const uint64_t dimension : tensor.shape) {
      hash.Add(absl::StrCat(dimension, ","));
    }
    sample.resize(std::min(tensor.elements, kSampleElements));
    const absl::Status read = model.weights->Read(tensor.name, 0, absl::MakeSpan(sample));
    if (absl::IsUnimplemented(read)) {
      continue;  // The type is only listed; no weight of the graph has it.
    }
    LAMINA_RETURN_IF_ERROR(read);
    hash.Add(sample.data(), sample.size() * sizeof(float));
  }
  if (model.config.rope.scaling == RopeScaling::kLongRope) {
    hash.Add(std::string(model.config.LongRope() ? "long" : "short"));
  }
  return absl::StrFormat("%016x", hash.value());
}

}  // namespace lamina::model
