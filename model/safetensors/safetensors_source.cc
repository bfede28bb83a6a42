// SPDX-License-Identifier: Apache-2.0
//
// Maps the files, checks their headers, and converts elements as they are read.

#include "model/safetensors/safetensors_source.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "model/float16.h"
#include "model/mapped_file.h"
#include "model/safetensors/safetensors_header_internal.h"

namespace lamina::model {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";

template <typename Convert>
void ConvertHalves(const uint8_t* in, absl::Span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    out[i] = convert(bits);
  }
}

constexpr uint64_t kMxfp4Block = 32;

// Element `index` (Open Compute Project, Microscaling Formats 1.0: E2M1 with a scale of E8M0).
float Mxfp4(const uint8_t* blocks, const uint8_t* scales, uint64_t index) {
  static constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const uint8_t byte = blocks[index / 2];
  const unsigned code = index % 2 == 0 ? byte & 15u : byte >> 4u;
  const uint8_t scale = scales[index / kMxfp4Block];
  if (scale == 255) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float value = std::ldexp(kValues[code & 7u], static_cast<int>(scale) - 127);
  return (code & 8u) != 0 ? -value : value;
}

absl::Status WithPath(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

struct SafetensorsSource::Storage {
  struct Tensor {
    const uint8_t* data = nullptr;
    uint64_t element_bytes = 0;
    const uint8_t* scales = nullptr;  // Null unless the tensor is MXFP4.
  };
  std::vector<MappedFile> files;                           // Empty when the caller owns the bytes.
  std::vector<Tensor> tensors;                             // Parallel to tensors_.
  absl::flat_hash_map<absl::string_view, size_t> by_name;  // Keys live in tensors_.
};

SafetensorsSource::SafetensorsSource() : storage_(std::make_unique<Storage>()) {}
SafetensorsSource::~SafetensorsSource() = default;

bool IsReadableSafetensorsType(absl::string_view type) {
  return type == "F32" || type == "F16" || type == "BF16" || type == "MXFP4";
}

absl::Status SafetensorsSource::AddFile(absl::Span<const uint8_t> bytes,
                                        absl::string_view file_name) {
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(bytes);
  if (!header.ok()) {
    return WithPath(header.status(), file_name);
  }
  for (SafetensorsEntry& entry : header->entries) {
    const uint64_t elements = entry.info.elements;
    storage_->tensors.push_back({bytes.data() + header->data_start + entry.begin,
                                 elements == 0 ? 0 : entry.info.stored_bytes / elements});
    tensors_.push_back(std::move(entry.info));
  }
  return absl::OkStatus();
}

// MXFP4 comes as two tensors of bytes: "<name>_blocks" [.., blocks, 16], of which a byte is two
// elements, the low half first, and "<name>_scales" [.., blocks]. Both stay listed; "<name>" [..,
// 32 blocks] is added.
void SafetensorsSource::AddPairs() {
  constexpr absl::string_view kBlocks = "_blocks";
  absl::flat_hash_map<std::string, size_t> scales;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].type == "U8" && absl::EndsWith(tensors_[i].name, "_scales")) {
      scales.emplace(tensors_[i].name, i);
    }
  }
  for (size_t i = 0, count = tensors_.size(); i < count; ++i) {
    const absl::string_view name = tensors_[i].name;
    std::vector<uint64_t> shape = tensors_[i].shape;
    if (tensors_[i].type != "U8" || !absl::EndsWith(name, kBlocks) || shape.size() < 2 ||
        shape.back() != kMxfp4Block / 2) {
      continue;
    }
    const std::string base(name.substr(0, name.size() - kBlocks.size()));
    const auto pair = scales.find(base + "_scales");
    shape.pop_back();
    if (pair == scales.end() || tensors_[pair->second].shape != shape) {
      continue;
    }
    shape.back() *= kMxfp4Block;
    tensors_.push_back({.name = base,
                        .type = "MXFP4",
                        .shape = std::move(shape),
                        .elements = tensors_[i].elements * 2});
    storage_->tensors.push_back(
        {.data = storage_->tensors[i].data, .scales = storage_->tensors[pair->second].data});
  }
}

absl::Status SafetensorsSource::BuildIndex() {
  AddPairs();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!storage_->by_name.emplace(tensors_[i].name, i).second) {
      return absl::DataLossError(absl::StrCat("tensor \"", absl::CHexEscape(tensors_[i].name),
                                              "\" is twice in the safetensors files"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> SafetensorsSource::Parse(
    absl::Span<const uint8_t> bytes) {
  auto source = std::unique_ptr<SafetensorsSource>(new SafetensorsSource());
  LAMINA_RETURN_IF_ERROR(source->AddFile(bytes, "safetensors"));
  LAMINA_RETURN_IF_ERROR(source->BuildIndex());
  return source;
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> SafetensorsSource::OpenDirectory(
    const std::string& directory) {
  const std::string index_path = absl::StrCat(directory, "/", kIndexName);
  SafetensorsIndex index;
  absl::StatusOr<MappedFile> index_file = MappedFile::Open(index_path);
  if (index_file.ok()) {
    absl::StatusOr<SafetensorsIndex> parsed = ParseSafetensorsIndex(index_file->bytes());
    if (!parsed.ok()) {
      return WithPath(parsed.status(), index_path);
    }
    index = *std::move(parsed);
  } else if (absl::IsNotFound(index_file.status())) {
    index.files.insert(kSingleName);
  } else {
    return index_file.status();
  }
  auto source = std::unique_ptr<SafetensorsSource>(new SafetensorsSource());
  for (const std::string& name : index.files) {
    const std::string path = absl::StrCat(directory, "/", name);
    absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(
          index_file.ok() ? absl::StrCat(path, " is missing, and ", kIndexName, " names it")
                          : absl::StrCat(directory, " has no weights: neither ", kSingleName,
                                         " nor ", kIndexName,
                                         "; a model of pytorch_model.bin files is saved anew with "
                                         "transformers' save_pretrained"));
    }
    LAMINA_RETURN_IF_ERROR(file.status());
    LAMINA_RETURN_IF_ERROR(source->AddFile(file->bytes(), path));
    source->storage_->files.push_back(*std::move(file));
  }
  LAMINA_RETURN_IF_ERROR(source->BuildIndex());
  for (const auto& [tensor, file] : index.file_of_tensor) {
    if (source->Find(tensor) == nullptr) {
      return absl::DataLossError(absl::StrCat(index_path, " promises tensor \"",
                                              absl::CHexEscape(tensor), "\" in ", file,
                                              ", which does not have it; fetch both again"));
    }
  }
  return source;
}

const TensorInfo* SafetensorsSource::Find(absl::string_view name) const {
  const auto found = storage_->by_name.find(name);
  return found == storage_->by_name.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsSource::Read(absl::string_view name, uint64_t first,
                                     absl::Span<float> out) const {
  const auto found = storage_->by_name.find(name);
  if (found == storage_->by_name.end()) {
    return absl::NotFoundError(absl::StrCat("no tensor \"", name, "\" in the files"));
  }
  const TensorInfo& info = tensors_[found->second];
  if (first > info.elements || out.size() > info.elements - first) {
    return absl::InvalidArgumentError(absl::StrCat("elements ", first, " to ", first, " + ",
                                                   out.size(), " are outside tensor \"", name,
                                                   "\" of ", info.elements));
  }
  const Storage::Tensor& tensor = storage_->tensors[found->second];
  const uint8_t* data = tensor.data + first * tensor.element_bytes;
  if (info.type == "F32") {
    if (!out.empty()) {
      std::memcpy(out.data(), data, out.size() * sizeof(float));
    }
  } else if (tensor.scales != nullptr) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = Mxfp4(tensor.data, tensor.scales, first + i);
    }
  } else if (info.type == "F16") {
    ConvertHalves(data, out, HalfToFloat);
  } else if (info.type == "BF16") {
    ConvertHalves(data, out, [](uint16_t bits) { return ToFloat(BFloat16{bits}); });
  } else {
    return absl::UnimplementedError(absl::StrCat("tensor \"", name, "\" has type ", info.type,
                                                 "; F32, F16 and BF16 can be read"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
