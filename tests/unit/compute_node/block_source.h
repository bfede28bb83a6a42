// SPDX-License-Identifier: Apache-2.0
//
// A source of weights in blocks of a GGUF type, for tests of forms of weights.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/philox.h"
#include "model/gguf/dequantize.h"
#include "model/weight_source.h"

namespace lamina::compute_node {

// Another model's names and shapes, with random blocks of one type for every matrix whose rows are
// whole blocks.
class BlockSource final : public model::WeightSource {
 public:
  // With `spoiled`, scales of the tensors that have it in their names are infinite.
  BlockSource(const model::WeightSource& source, const model::GgufTensorType& type,
              const std::string& spoiled = "")
      : source_(source), type_(type) {
    Prng prng(7);
    for (const model::TensorInfo& tensor : source.tensors()) {
      if (tensor.shape.size() == 2 && tensor.shape.back() % type.block_elements == 0) {
        blocks_[tensor.name] = RandomBlocks(tensor.elements / type.block_elements, prng);
        if (!spoiled.empty() && tensor.name.find(spoiled) != std::string::npos) {
          Spoil(blocks_[tensor.name]);
        }
      }
    }
  }

  const std::vector<model::TensorInfo>& tensors() const override { return source_.tensors(); }
  const model::TensorInfo* Find(absl::string_view name) const override {
    return source_.Find(name);
  }
  absl::Status Read(absl::string_view name, uint64_t first, absl::Span<float> out) const override {
    const auto found = blocks_.find(std::string(name));
    if (found == blocks_.end()) {
      return source_.Read(name, first, out);
    }
    for (uint64_t i = 0; i < out.size(); i += type_.block_elements) {
      type_.dequantize(
          found->second.data() + (first + i) / type_.block_elements * type_.block_bytes, &out[i]);
    }
    return absl::OkStatus();
  }
  std::optional<model::StoredBlocks> Blocks(absl::string_view name) const override {
    const auto found = blocks_.find(std::string(name));
    if (found == blocks_.end()) {
      return std::nullopt;
    }
    return model::StoredBlocks{.type = type_.name,
                               .elements = type_.block_elements,
                               .bytes = type_.block_bytes,
                               .data = found->second.data()};
  }

 private:
  // The high bytes of the scales that are binary16; none of MXFP4's is.
  std::vector<size_t> ScaleBytes() const {
    if (type_.name == "Q6_K") {
      return {209};
    }
    if (type_.name == "Q2_K") {
      return {81, 83};
    }
    if (type_.name == "Q3_K") {
      return {109};
    }
    if (type_.name == "MXFP4") {
      return {};
    }
    const bool has_minimum = type_.name == "Q4_1" || type_.name == "Q5_1" || type_.name == "Q4_K" ||
                             type_.name == "Q5_K";
    return has_minimum ? std::vector<size_t>{1, 3} : std::vector<size_t>{1};
  }

  // Requires: scales of binary16.
  void Spoil(std::vector<uint8_t>& bytes) const {
    const size_t high = ScaleBytes().front();
    for (size_t block = 0; block < bytes.size(); block += type_.block_bytes) {
      bytes[block + high] = 0x7c;
      bytes[block + high - 1] = 0;
    }
  }

  // Returns blocks with scales below 2^-6.
  std::vector<uint8_t> RandomBlocks(uint64_t count, Prng& prng) const {
    std::vector<uint8_t> bytes(count * type_.block_bytes);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(prng.Below(256));
    }
    for (uint64_t block = 0; block < count; ++block) {
      if (type_.name == "MXFP4") {
        bytes[block * type_.block_bytes] = static_cast<uint8_t>(110 + prng.Below(11));
      }
      for (const size_t byte : ScaleBytes()) {
        bytes[block * type_.block_bytes + byte] &= 0x9b;
      }
    }
    return bytes;
  }

  const model::WeightSource& source_;
  const model::GgufTensorType& type_;
  std::map<std::string, std::vector<uint8_t>> blocks_;
};

}  // namespace lamina::compute_node
