// SPDX-License-Identifier: Apache-2.0
//
// The header is read token by token (HeaderReader), the index as a document, whose exceptions are
// switched off; every access asks for the type first.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/json_text.h"
#include "model/safetensors/header_reader_internal.h"
#include "model/safetensors/safetensors_header_internal.h"
#include "nlohmann/json.hpp"

namespace lamina::model {
namespace {

using Json = nlohmann::json;

// The format's own limit on the header.
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr uint64_t kElementsMax = uint64_t{1} << 48;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("damaged safetensors file: ", what, "; fetch the file again"));
}

// A name for an error: what the file says, without control characters, and not all of a long one.
std::string Shown(absl::string_view name) {
  constexpr size_t kShownBytes = 256;
  return absl::CHexEscape(name.substr(0, kShownBytes));
}

struct ElementType {
  absl::string_view name;
  uint64_t bytes;
};
constexpr ElementType kTypes[] = {
    {"F64", 8},  {"F32", 4}, {"F16", 2},     {"BF16", 2},    {"I64", 8},     {"I32", 4},
    {"I16", 2},  {"I8", 1},  {"U64", 8},     {"U32", 4},     {"U16", 2},     {"U8", 1},
    {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
};

uint64_t BytesOfType(absl::string_view name) {
  for (const ElementType& type : kTypes) {
    if (type.name == name) {
      return type.bytes;
    }
  }
  return 0;
}

absl::StatusOr<SafetensorsEntry> CheckEntry(RawTensor raw, uint64_t data_bytes) {
  SafetensorsEntry entry;
  TensorInfo& info = entry.info;
  const std::string who = absl::StrCat("tensor \"", Shown(raw.name), "\"");
  const std::vector<uint64_t>& offsets = raw.offsets;
  info.name = std::move(raw.name);
  info.type = std::move(raw.type);
  info.shape = std::move(raw.shape);
  const uint64_t element_bytes = BytesOfType(info.type);
  if (element_bytes == 0) {
    return absl::UnimplementedError(absl::StrCat(who, " has the unknown type ", Shown(info.type)));
  }
  info.elements = 1;
  for (const uint64_t size : info.shape) {
    if (size != 0 && info.elements > kElementsMax / size) {
      return Damaged(absl::StrCat(who, " has an impossible shape"));
    }
    info.elements *= size;
  }
  info.stored_bytes = info.elements * element_bytes;
  entry.begin = offsets[0];
  if (offsets[0] > offsets[1] || offsets[1] > data_bytes ||
      offsets[1] - offsets[0] != info.stored_bytes) {
    return Damaged(absl::StrCat(who, " needs ", info.stored_bytes, " bytes and claims ", offsets[0],
                                " to ", offsets[1], " of ", data_bytes));
  }
  return entry;
}

absl::Status ReadTensors(absl::Span<const uint8_t> text, HeaderReader& reader) {
  if (Json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::OkStatus();
  }
  if (reader.too_many()) {
    return Damaged(
        absl::StrCat("its header names more than ", HeaderReader::kTensorsMax, " tensors"));
  }
  if (reader.lacks_description()) {
    return Damaged(absl::StrCat("tensor \"", Shown(reader.tensors().back().name),
                                "\" is not described by dtype, shape (at most ",
                                HeaderReader::kDimensionsMax, " numbers) and data_offsets"));
  }
  return Damaged("its header is not a JSON object");
}

// The tensors cover the data once, without gaps.
absl::Status CheckCover(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.info.stored_bytes) < std::pair(b.begin, b.info.stored_bytes);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != end) {
      return Damaged(absl::StrCat("tensor \"", Shown(entry.info.name), "\" begins at ", entry.begin,
                                  entry.begin < end ? ", inside" : ", behind",
                                  " the one before it, which ends at ", end));
    }
    end += entry.info.stored_bytes;
  }
  if (end != data_bytes) {
    return Damaged(absl::StrCat("the tensors end at ", end, " and the data at ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const uint8_t> file) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return Damaged(absl::StrCat("it has ", file.size(), " bytes"));
  }
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kHeaderBytesMax || length > file.size() - sizeof(length)) {
    return Damaged(absl::StrCat("its header claims ", length, " bytes of ", file.size()));
  }
  SafetensorsHeader header;
  header.data_start = sizeof(length) + length;
  const uint8_t* text = file.data() + sizeof(length);
  HeaderReader reader;
  LAMINA_RETURN_IF_ERROR(ReadTensors({text, length}, reader));
  const uint64_t data_bytes = file.size() - header.data_start;
  header.entries.reserve(reader.tensors().size());
  for (RawTensor& tensor : reader.tensors()) {
    LAMINA_ASSIGN_OR_RETURN(SafetensorsEntry entry, CheckEntry(std::move(tensor), data_bytes));
    header.entries.push_back(std::move(entry));
  }
  LAMINA_RETURN_IF_ERROR(CheckCover(header.entries, data_bytes));
  return header;
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::Span<const uint8_t> text) {
  LAMINA_RETURN_IF_ERROR(CheckJsonText({reinterpret_cast<const char*>(text.data()), text.size()},
                                       "the index of the weights", kTableLimits));
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    return Damaged("the index has no object \"weight_map\"");
  }
  SafetensorsIndex index;
  for (const auto& item : map->items()) {
    if (!item.value().is_string()) {
      return Damaged(absl::StrCat("the index gives no file for \"", Shown(item.key()), "\""));
    }
    const auto file = item.value().get<std::string>();
    // A file next to the index: neither a path nor a hidden file.
    if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return Damaged(absl::StrCat("the index names the file \"", Shown(file), "\""));
    }
    index.file_of_tensor.emplace(item.key(), file);
    index.files.insert(file);
  }
  return index;
}

}  // namespace lamina::model
