// SPDX-License-Identifier: Apache-2.0
//
// Any text as the header of a safetensors file with 64 bytes of data, and as the index of many:
// each tensor that is taken can be read to its last element.
#include <cstring>
#include <string>
#include <vector>

#include "common/check.h"
#include "model/safetensors/safetensors_header_internal.h"
#include "model/safetensors/safetensors_source.h"
#include "tests/fuzz/fuzz_target.h"

namespace lamina::model {
namespace {

constexpr size_t kDataBytes = 64;

void CheckTensors(const SafetensorsSource& source) {
  for (const TensorInfo& info : source.tensors()) {
    LAMINA_CHECK(info.stored_bytes <= kDataBytes);
    // As many as there are; one more is refused.
    std::vector<float> out(info.elements + 1);
    const absl::Status read = source.Read(info.name, 0, absl::MakeSpan(out).first(info.elements));
    LAMINA_CHECK(read.ok() != !IsReadableSafetensorsType(info.type));
    LAMINA_CHECK(!source.Read(info.name, 0, absl::MakeSpan(out)).ok());
  }
}

}  // namespace
}  // namespace lamina::model

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lamina::model;  // NOLINT
  const uint64_t length = size;
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file.append(reinterpret_cast<const char*>(data), size).append(kDataBytes, '\1');
  const auto source =
      SafetensorsSource::Parse({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  if (source.ok()) {
    CheckTensors(**source);
  } else {
    LAMINA_CHECK(!source.status().message().empty());
  }
  const auto index = ParseSafetensorsIndex({data, size});
  if (index.ok()) {
    for (const std::string& name : index->files) {
      LAMINA_CHECK(name.find('/') == std::string::npos && name != "..");
    }
  }
  return 0;
}
