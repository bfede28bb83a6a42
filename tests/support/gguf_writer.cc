// SPDX-License-Identifier: Apache-2.0
//
// The grammar is at the top of model/gguf/gguf_file.cc; this writes it independently of the reader.

#include "tests/support/gguf_writer.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace lamina::test_support {
namespace {

constexpr size_t kAlignment = 32;

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void PutString(std::string& out, absl::string_view text) {
  Put<uint64_t>(out, text.size());
  out.append(text.data(), text.size());
}

template <typename T>
std::string ArrayBytes(uint32_t type, absl::Span<const T> values) {
  std::string bytes;
  Put<uint32_t>(bytes, type);
  Put<uint64_t>(bytes, values.size());
  for (const T value : values) {
    Put<T>(bytes, value);
  }
  return bytes;
}

template <typename T>
std::string NumberBytes(T value) {
  std::string bytes;
  Put<T>(bytes, value);
  return bytes;
}

// The binary16 nearest to a normal, non-negative value. A round number is enough for tests: the low
// bits are cut off.
uint16_t TruncateToHalf(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // In [0.5, 1).
  if (value == 0.0f || exponent < -13) {
    return 0;
  }
  const auto bits = static_cast<uint32_t>(fraction * 2048.0f) - 1024u;
  return static_cast<uint16_t>((static_cast<uint32_t>(exponent + 14) << 10) | bits);
}

}  // namespace

void GgufWriter::AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes) {
  PutString(metadata_, key);
  Put<uint32_t>(metadata_, type);
  metadata_.append(bytes.data(), bytes.size());
  ++pairs_;
}

void GgufWriter::AddUint(absl::string_view key, uint32_t value) {
  AddRaw(key, 4, NumberBytes(value));
}
void GgufWriter::AddFloat(absl::string_view key, float value) {
  AddRaw(key, 6, NumberBytes(value));
}
void GgufWriter::AddBool(absl::string_view key, bool value) {
  AddRaw(key, 7, NumberBytes<uint8_t>(value ? 1 : 0));
}
void GgufWriter::AddString(absl::string_view key, absl::string_view value) {
  std::string bytes;
  PutString(bytes, value);
  AddRaw(key, 8, bytes);
}
void GgufWriter::AddStrings(absl::string_view key, absl::Span<const std::string> values) {
  std::string bytes;
  Put<uint32_t>(bytes, 8);
  Put<uint64_t>(bytes, values.size());
  for (const std::string& value : values) {
    PutString(bytes, value);
  }
  AddRaw(key, 9, bytes);
}
void GgufWriter::AddInts(absl::string_view key, absl::Span<const int32_t> values) {
  AddRaw(key, 9, ArrayBytes(5, values));
}
void GgufWriter::AddFloats(absl::string_view key, absl::Span<const float> values) {
  AddRaw(key, 9, ArrayBytes(6, values));
}

void GgufWriter::AddTensor(absl::string_view name, absl::Span<const uint64_t> shape, uint32_t type,
                           absl::string_view data) {
  PutString(tensor_records_, name);
  Put<uint32_t>(tensor_records_, static_cast<uint32_t>(shape.size()));
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    Put<uint64_t>(tensor_records_, *size);
  }
  Put<uint32_t>(tensor_records_, type);
  Put<uint64_t>(tensor_records_, data_.size());
  data_.append(data.data(), data.size());
  data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment);
  ++tensors_;
}

void GgufWriter::AddTensorF32(absl::string_view name, absl::Span<const uint64_t> shape,
                              absl::Span<const float> values) {
  AddTensor(name, shape, 0,
            {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

void GgufWriter::AddTensorQ8_0(absl::string_view name, absl::Span<const uint64_t> shape,
                               absl::Span<const float> values) {
  LAMINA_CHECK(values.size() % 32 == 0);
  std::string data;
  for (size_t block = 0; block < values.size(); block += 32) {
    float largest = 0;
    for (size_t i = 0; i < 32; ++i) {
      largest = std::max(largest, std::abs(values[block + i]));
    }
    const float scale = largest / 127.0f;
    Put<uint16_t>(data, TruncateToHalf(scale));
    for (size_t i = 0; i < 32; ++i) {
      const float q = scale == 0.0f ? 0.0f : std::round(values[block + i] / scale);
      Put<int8_t>(data, static_cast<int8_t>(q));
    }
  }
  AddTensor(name, shape, 8, data);
}

std::string GgufWriter::Finish() const {
  std::string file = "GGUF";
  Put<uint32_t>(file, version_);
  Put<uint64_t>(file, tensors_);
  Put<uint64_t>(file, pairs_);
  file += metadata_;
  file += tensor_records_;
  file.resize((file.size() + kAlignment - 1) / kAlignment * kAlignment);
  file += data_;
  return file;
}

}  // namespace lamina::test_support
