// SPDX-License-Identifier: Apache-2.0
//
// The families of model/architectures/ that share LLaMA's decoder with changes, as random models:
// what random_model.cc writes of them.

#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/random_model.h"

namespace lamina::test_support {

// Whether the spec's model_type is one of them.
bool IsRandomDecoder(const RandomModelSpec& spec);

// Names and shapes, as checkpoints have them.
std::vector<RandomTensor> DecoderTensors(const RandomModelSpec& spec);

// Members of config.json behind those that all models have; begins with a comma.
std::string DecoderConfigText(const RandomModelSpec& spec);

// "general.architecture" of the family's GGUF files, and the settings under it.
std::string DecoderGgufName(const RandomModelSpec& spec);
void AddDecoderGgufMetadata(const RandomModelSpec& spec, GgufWriter& writer);

// A tensor as GGUF files have it: one of them, and for experts one for all of a layer.
struct GgufTensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
std::vector<GgufTensor> DecoderGgufTensors(const RandomModelSpec& spec);

// gpt-oss' experts: whether the tensor is one that checkpoints store in MXFP4.
bool IsMxfp4Tensor(const RandomModelSpec& spec, absl::string_view name);

}  // namespace lamina::test_support
