// SPDX-License-Identifier: Apache-2.0
//
// HeaderReader: takes the tensors out of a safetensors header while its JSON is being read, so that
// a header of any content takes memory for the tensors that it names and nothing else. What a
// parsed document of it would take is up to 30 times its bytes.
//
// It is the handler of nlohmann::json::sax_parse: each function gets one token of the text, and
// ends the reading by false, at the first tensor that is not described as a whole. Values of
// unknown keys are passed over at any depth; of a key that comes twice the last value counts.
//
// Threading: belongs to one thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace lamina::model {

struct RawTensor {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  // Each was there, of the right type, and not beyond kDimensionsMax.
  bool has_type = false;
  bool has_shape = false;
  bool has_offsets = false;
};

class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // A tensor of more dimensions has no shape.
  static constexpr size_t kDimensionsMax = 8;
  // The largest models known have 100,000 in all their files.
  static constexpr size_t kTensorsMax = size_t{1} << 20;

  std::vector<RawTensor>& tensors() { return tensors_; }
  // Why the reading ended early: the last of tensors() is not described.
  bool lacks_description() const { return lacks_description_; }
  bool too_many() const { return tensors_.size() > kTensorsMax; }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return Scalar(); }
  bool start_object(size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  enum class Field : uint8_t { kNone, kType, kShape, kOffsets };

  // A value that no field takes.
  bool Scalar();
  std::vector<uint64_t>* List();

  bool End(bool described);

  std::vector<RawTensor> tensors_;
  bool lacks_description_ = false;
  size_t depth_ = 0;  // Objects and arrays around what comes next.
  bool in_tensor_ = false;
  Field field_ = Field::kNone;  // The tensor's field that comes next or is being read.
};

}  // namespace lamina::model
