// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "model/safetensors/header_reader_internal.h"

namespace lamina::model {
namespace {

// How deep a header's objects and arrays nest: the header, a tensor, a list.
constexpr size_t kHeaderDepth = 1;
constexpr size_t kTensorDepth = 2;
constexpr size_t kListDepth = 3;

}  // namespace

std::vector<uint64_t>* HeaderReader::List() {
  if (!in_tensor_ || depth_ != kListDepth) {
    return nullptr;
  }
  return field_ == Field::kShape     ? &tensors_.back().shape
         : field_ == Field::kOffsets ? &tensors_.back().offsets
                                     : nullptr;
}

bool HeaderReader::End(bool described) {
  lacks_description_ = !described;
  return described;
}

bool HeaderReader::Scalar() {
  if (depth_ == 0) {
    return false;  // The header is an object.
  }
  if (depth_ == kHeaderDepth && in_tensor_) {
    return End(false);
  }
  if (List() != nullptr) {
    (field_ == Field::kShape ? tensors_.back().has_shape : tensors_.back().has_offsets) = false;
    field_ = Field::kNone;  // The rest of the list is passed over.
  }
  return true;
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  std::vector<uint64_t>* const list = List();
  if (list == nullptr || list->size() == kDimensionsMax) {
    return Scalar();
  }
  list->push_back(value);
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (in_tensor_ && depth_ == kTensorDepth && field_ == Field::kType) {
    tensors_.back().type = std::move(value);
    tensors_.back().has_type = true;
    return true;
  }
  return Scalar();
}

bool HeaderReader::start_object(size_t) {
  if (depth_ > kHeaderDepth) {
    Scalar();
  }
  field_ = Field::kNone;
  ++depth_;
  return true;
}

bool HeaderReader::key(string_t& name) {
  if (depth_ == kHeaderDepth) {
    in_tensor_ = name != "__metadata__";
    if (in_tensor_) {
      tensors_.emplace_back().name = std::move(name);
      return !too_many();
    }
  } else if (in_tensor_ && depth_ == kTensorDepth) {
    field_ = name == "dtype"          ? Field::kType
             : name == "shape"        ? Field::kShape
             : name == "data_offsets" ? Field::kOffsets
                                      : Field::kNone;
    RawTensor& tensor = tensors_.back();
    tensor.has_type = tensor.has_type && field_ != Field::kType;
    tensor.has_shape = tensor.has_shape && field_ != Field::kShape;
    tensor.has_offsets = tensor.has_offsets && field_ != Field::kOffsets;
  }
  return true;
}

bool HeaderReader::end_object() {
  --depth_;
  if (!in_tensor_ || depth_ != kHeaderDepth) {
    return true;
  }
  const RawTensor& tensor = tensors_.back();
  return End(tensor.has_type && tensor.has_shape && tensor.has_offsets &&
             tensor.offsets.size() == 2);
}

bool HeaderReader::start_array(size_t) {
  if (!Scalar()) {
    return false;
  }
  ++depth_;
  if (std::vector<uint64_t>* const list = List()) {
    list->clear();
    (field_ == Field::kShape ? tensors_.back().has_shape : tensors_.back().has_offsets) = true;
  }
  return true;
}

bool HeaderReader::end_array() {
  --depth_;
  if (depth_ == kTensorDepth) {
    field_ = Field::kNone;
  }
  return true;
}

}  // namespace lamina::model
