// SPDX-License-Identifier: Apache-2.0
//
// Parses a GGUF file in place:
//
//   file     := "GGUF" version:u32 tensors:u64 pairs:u64 pair* tensor* padding data
//   pair     := key:string type:u32 value
//   tensor   := name:string dimensions:u32 dimension:u64* type:u32 offset:u64
//   string   := length:u64 bytes
//   array    := type:u32 length:u64 value*
//
// Dimensions are innermost first; offsets count from the start of `data`, which is aligned to
// "general.alignment" (32 when absent). All numbers are little-endian.

#include "model/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/gguf/byte_reader_internal.h"
#include "model/gguf/dequantize.h"
#include "model/gguf/gguf_split_internal.h"
#include "model/mapped_file.h"

namespace lamina::model {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kAlignmentMax = 1u << 20;
constexpr uint32_t kDimensionsMax = 4;
// A tensor larger than this cannot be in a file: 2^48 elements.
constexpr uint64_t kElementsMax = uint64_t{1} << 48;

// Bounds on what a file may make us keep besides its tensors' data, which stays where it is mapped.
// The largest known files have 2 million elements in arrays, 30 MB of metadata and 2,000 tensors.
constexpr uint64_t kArrayElementsMax = uint64_t{1} << 24;
constexpr uint64_t kMetadataBytesMax = uint64_t{256} << 20;
constexpr uint64_t kPairsMax = uint64_t{1} << 16;
constexpr uint64_t kTensorsMax = uint64_t{1} << 20;
constexpr uint64_t kNameBytesMax = 1024;

absl::Status CheckBound(absl::string_view what, uint64_t value, uint64_t bound, uint64_t offset) {
  return value <= bound
             ? absl::OkStatus()
             : DamagedGguf(absl::StrCat(what, " are ", value, "; at most ", bound, " are read"),
                           offset);
}

enum class ValueKind : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

uint64_t BytesOfKind(uint32_t kind) {
  constexpr uint64_t kBytes[] = {1, 1, 2,  2, 4, 4, 4,
                                 1, 8, 12, 8, 8, 8};  // The least, for strings.
  return kind < std::size(kBytes) ? kBytes[kind] : 0;
}

// Numbers of type T, widened to Wide.
template <typename T, typename Wide>
absl::StatusOr<GgufValue> NumberArray(ByteReader& reader, uint64_t length) {
  std::vector<Wide> values;
  values.reserve(length);  // The caller checked that so many are there.
  for (uint64_t i = 0; i < length; ++i) {
    LAMINA_ASSIGN_OR_RETURN(const T value, reader.Number<T>("an array"));
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return DamagedGguf("an array element over 2^63", reader.offset() - sizeof(T));
      }
    }
    values.push_back(static_cast<Wide>(value));
  }
  return GgufValue(std::move(values));
}

absl::StatusOr<GgufValue> StringArray(ByteReader& reader, uint64_t length) {
  std::vector<std::string> values;
  values.reserve(length);
  for (uint64_t i = 0; i < length; ++i) {
    LAMINA_ASSIGN_OR_RETURN(const absl::string_view value, reader.String("an array's string"));
    values.emplace_back(value);
  }
  return GgufValue(std::move(values));
}

absl::StatusOr<GgufValue> ReadArray(ByteReader& reader, absl::string_view key) {
  const uint64_t start = reader.offset();
  LAMINA_ASSIGN_OR_RETURN(const uint32_t kind, reader.Number<uint32_t>("an array's type"));
  LAMINA_ASSIGN_OR_RETURN(const uint64_t length, reader.Number<uint64_t>("an array's length"));
  const uint64_t least = BytesOfKind(kind);
  if (least == 0) {
    return DamagedGguf(absl::StrCat("array \"", key, "\" of unknown type ", kind), start);
  }
  if (length > reader.left() / least) {
    return DamagedGguf(absl::StrCat("array \"", key, "\" claims ", length, " elements, and only ",
                                    reader.left(), " bytes are left"),
                       start);
  }
  LAMINA_RETURN_IF_ERROR(
      CheckBound(absl::StrCat("the elements of array \"", absl::CHexEscape(key), "\""), length,
                 kArrayElementsMax, start));
  switch (static_cast<ValueKind>(kind)) {
    case ValueKind::kUint8:
      return NumberArray<uint8_t, int64_t>(reader, length);
    case ValueKind::kInt8:
      return NumberArray<int8_t, int64_t>(reader, length);
    case ValueKind::kUint16:
      return NumberArray<uint16_t, int64_t>(reader, length);
    case ValueKind::kInt16:
      return NumberArray<int16_t, int64_t>(reader, length);
    case ValueKind::kUint32:
      return NumberArray<uint32_t, int64_t>(reader, length);
    case ValueKind::kInt32:
      return NumberArray<int32_t, int64_t>(reader, length);
    case ValueKind::kUint64:
      return NumberArray<uint64_t, int64_t>(reader, length);
    case ValueKind::kInt64:
      return NumberArray<int64_t, int64_t>(reader, length);
    case ValueKind::kBool:
      return NumberArray<uint8_t, int64_t>(reader, length);
    case ValueKind::kFloat32:
      return NumberArray<float, double>(reader, length);
    case ValueKind::kFloat64:
      return NumberArray<double, double>(reader, length);
    case ValueKind::kString:
      return StringArray(reader, length);
    case ValueKind::kArray:
      break;
  }
  return absl::UnimplementedError(absl::StrCat("metadata \"", key, "\" is an array of arrays"));
}

template <typename T, typename Wide>
absl::StatusOr<GgufValue> Scalar(ByteReader& reader, absl::string_view key) {
  LAMINA_ASSIGN_OR_RETURN(const T value, reader.Number<T>(key));
  return GgufValue(std::in_place_type<Wide>, static_cast<Wide>(value));
}

absl::StatusOr<GgufValue> BoolScalar(ByteReader& reader, absl::string_view key) {
  LAMINA_ASSIGN_OR_RETURN(const uint8_t value, reader.Number<uint8_t>(key));
  if (value > 1) {
    return DamagedGguf(absl::StrCat("boolean \"", key, "\" is ", value), reader.offset() - 1);
  }
  return GgufValue(std::in_place_type<bool>, value == 1);
}

absl::StatusOr<GgufValue> ReadValue(ByteReader& reader, absl::string_view key) {
  const uint64_t start = reader.offset();
  LAMINA_ASSIGN_OR_RETURN(const uint32_t kind, reader.Number<uint32_t>("a value's type"));
  switch (static_cast<ValueKind>(kind)) {
    case ValueKind::kUint8:
      return Scalar<uint8_t, uint64_t>(reader, key);
    case ValueKind::kInt8:
      return Scalar<int8_t, int64_t>(reader, key);
    case ValueKind::kUint16:
      return Scalar<uint16_t, uint64_t>(reader, key);
    case ValueKind::kInt16:
      return Scalar<int16_t, int64_t>(reader, key);
    case ValueKind::kUint32:
      return Scalar<uint32_t, uint64_t>(reader, key);
    case ValueKind::kInt32:
      return Scalar<int32_t, int64_t>(reader, key);
    case ValueKind::kUint64:
      return Scalar<uint64_t, uint64_t>(reader, key);
    case ValueKind::kInt64:
      return Scalar<int64_t, int64_t>(reader, key);
    case ValueKind::kFloat32:
      return Scalar<float, double>(reader, key);
    case ValueKind::kFloat64:
      return Scalar<double, double>(reader, key);
    case ValueKind::kBool:
      return BoolScalar(reader, key);
    case ValueKind::kString: {
      LAMINA_ASSIGN_OR_RETURN(const absl::string_view value, reader.String(key));
      LAMINA_RETURN_IF_ERROR(
          CheckBound("the bytes of a text", value.size(), kMetadataBytesMax, start));
      return GgufValue(std::string(value));
    }
    case ValueKind::kArray:
      return ReadArray(reader, key);
  }
  return DamagedGguf(
      absl::StrCat("metadata \"", absl::CHexEscape(key), "\" has unknown type ", kind), start);
}

struct TensorRecord {
  TensorInfo info;
  const GgufTensorType* type = nullptr;
  uint64_t offset = 0;  // From the start of the data.
};

// Reads the dimensions, innermost first in the file, into a shape with its product.
absl::Status ReadShape(ByteReader& reader, TensorInfo& info) {
  const uint64_t start = reader.offset();
  LAMINA_ASSIGN_OR_RETURN(const uint32_t dimensions, reader.Number<uint32_t>("a tensor's rank"));
  if (dimensions == 0 || dimensions > kDimensionsMax) {
    return DamagedGguf(absl::StrCat("tensor \"", info.name, "\" has ", dimensions, " dimensions"),
                       start);
  }
  info.elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    LAMINA_ASSIGN_OR_RETURN(const uint64_t size, reader.Number<uint64_t>("a tensor's dimension"));
    if (size == 0 || size > kElementsMax / info.elements) {
      return DamagedGguf(absl::StrCat("tensor \"", info.name, "\" has a dimension of ", size),
                         reader.offset() - 8);
    }
    info.elements *= size;
    info.shape.push_back(size);
  }
  std::reverse(info.shape.begin(), info.shape.end());
  return absl::OkStatus();
}

absl::StatusOr<TensorRecord> ReadTensor(ByteReader& reader) {
  TensorRecord tensor;
  TensorInfo& info = tensor.info;
  LAMINA_ASSIGN_OR_RETURN(const absl::string_view name, reader.String("a tensor's name"));
  LAMINA_RETURN_IF_ERROR(
      CheckBound("the bytes of a tensor's name", name.size(), kNameBytesMax, reader.offset()));
  info.name = std::string(name);
  LAMINA_RETURN_IF_ERROR(ReadShape(reader, info));
  const uint64_t start = reader.offset();
  LAMINA_ASSIGN_OR_RETURN(const uint32_t type_id, reader.Number<uint32_t>("a tensor's type"));
  LAMINA_ASSIGN_OR_RETURN(tensor.offset, reader.Number<uint64_t>("a tensor's offset"));
  absl::StatusOr<const GgufTensorType*> type = FindGgufTensorType(type_id);
  if (!type.ok()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor \"", absl::CHexEscape(info.name), "\": ", type.status().message()));
  }
  tensor.type = *type;
  info.type = std::string(tensor.type->name);
  if (info.shape.back() % tensor.type->block_elements != 0) {
    return DamagedGguf(absl::StrCat("tensor \"", info.name, "\" of type ", info.type,
                                    " has rows of ", info.shape.back(),
                                    " elements, not a multiple of ", tensor.type->block_elements),
                       start);
  }
  info.stored_bytes = info.elements / tensor.type->block_elements * tensor.type->block_bytes;
  return tensor;
}

struct Header {
  uint64_t tensors = 0;
  uint64_t pairs = 0;
};

absl::StatusOr<Header> ReadHeader(ByteReader& reader) {
  LAMINA_ASSIGN_OR_RETURN(const uint32_t magic, reader.Number<uint32_t>("the magic number"));
  if (magic != kMagic) {
    return absl::InvalidArgumentError(
        "it is no model: neither a GGUF file, which begins with \"GGUF\", nor a folder with "
        "config.json and safetensors");
  }
  LAMINA_ASSIGN_OR_RETURN(const uint32_t version, reader.Number<uint32_t>("the version"));
  if (version == 0x02000000 || version == 0x03000000) {
    return absl::UnimplementedError(
        "big-endian GGUF files are not supported; get the little-endian one");
  }
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(
        absl::StrCat("GGUF version ", version, " is not supported; the known ones are 2 and 3"));
  }
  Header header;
  LAMINA_ASSIGN_OR_RETURN(header.tensors, reader.Number<uint64_t>("the number of tensors"));
  LAMINA_ASSIGN_OR_RETURN(header.pairs, reader.Number<uint64_t>("the number of metadata pairs"));
  return header;
}

uint64_t ElementsOf(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> uint64_t {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>) {
          return 0;
        } else {
          return held.size();
        }
      },
      value);
}

absl::StatusOr<std::map<std::string, GgufValue>> ReadMetadata(ByteReader& reader, uint64_t pairs) {
  std::map<std::string, GgufValue> metadata;
  LAMINA_RETURN_IF_ERROR(CheckBound("the pairs of metadata", pairs, kPairsMax, reader.offset()));
  uint64_t elements = 0;
  // A wrong count ends at the end of the file: every pair takes bytes.
  for (uint64_t i = 0; i < pairs; ++i) {
    const uint64_t start = reader.offset();
    LAMINA_ASSIGN_OR_RETURN(const absl::string_view key, reader.String("a metadata key"));
    LAMINA_ASSIGN_OR_RETURN(GgufValue value, ReadValue(reader, key));
    LAMINA_RETURN_IF_ERROR(
        CheckBound("the bytes of metadata", reader.offset(), kMetadataBytesMax, reader.offset()));
    elements += ElementsOf(value);
    LAMINA_RETURN_IF_ERROR(
        CheckBound("the elements of all arrays", elements, kArrayElementsMax, start));
    if (!metadata.emplace(std::string(key), std::move(value)).second) {
      return DamagedGguf(absl::StrCat("metadata \"", absl::CHexEscape(key), "\" comes twice"),
                         start);
    }
  }
  return metadata;
}

// Every tensor lies inside the data and no two overlap.
absl::Status CheckPlacement(const std::vector<TensorRecord>& tensors, uint64_t data_start,
                            uint64_t file_bytes, uint64_t alignment) {
  const uint64_t data_bytes = file_bytes - data_start;
  std::vector<const TensorRecord*> order;
  for (const TensorRecord& tensor : tensors) {
    const uint64_t bytes = tensor.info.stored_bytes;
    if (tensor.offset % alignment != 0 || tensor.offset > data_bytes ||
        bytes > data_bytes - tensor.offset) {
      return DamagedGguf(absl::StrCat("tensor \"", absl::CHexEscape(tensor.info.name), "\" of ",
                                      bytes, " bytes at data offset ", tensor.offset,
                                      " does not fit the file of ", file_bytes, " bytes"),
                         data_start);
    }
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorRecord* a, const TensorRecord* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->info.stored_bytes > order[i]->offset) {
      return DamagedGguf(
          absl::StrCat("tensors \"", absl::CHexEscape(order[i - 1]->info.name), "\" and \"",
                       absl::CHexEscape(order[i]->info.name), "\" overlap"),
          data_start + order[i]->offset);
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct GgufFile::Storage {
  struct Tensor {
    const GgufTensorType* type = nullptr;
    const uint8_t* data = nullptr;
  };
  std::vector<MappedFile> files;                           // Empty when the caller owns the bytes.
  std::vector<Tensor> tensors;                             // Parallel to tensors_.
  absl::flat_hash_map<absl::string_view, size_t> by_name;  // Keys live in tensors_.
};

GgufFile::GgufFile() : storage_(std::make_unique<Storage>()) {}
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenOne(path));
  LAMINA_RETURN_IF_ERROR(file->AddParts(path));
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::OpenOne(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<GgufFile>> parsed = Parse(file.bytes());
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        absl::StrCat(path, ": ", parsed.status().message()));
  }
  (*parsed)->storage_->files.push_back(std::move(file));
  return parsed;
}

absl::Status GgufFile::AddParts(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const Split split, FindSplit(*this, path));
  for (uint64_t number = 1; number < split.parts; ++number) {
    const std::string part_path = split.PathOf(number);
    absl::StatusOr<std::unique_ptr<GgufFile>> part = OpenOne(part_path);
    if (absl::IsNotFound(part.status())) {
      return absl::NotFoundError(absl::StrCat(part_path, " is missing: ", path, " is the first of ",
                                              split.parts,
                                              " parts, which lie in one folder; fetch it too"));
    }
    LAMINA_RETURN_IF_ERROR(part.status());
    LAMINA_RETURN_IF_ERROR(CheckPart(**part, {number, split.parts, split.tensors}, part_path));
    TakeTensors(**part);
  }
  if (split.parts == 1) {
    return absl::OkStatus();
  }
  if (tensors_.size() != split.tensors) {
    return absl::DataLossError(absl::StrCat(
        path, ": its ", split.parts, " parts hold ", tensors_.size(),
        " tensors, and split.tensors.count is ", split.tensors, "; fetch all parts again"));
  }
  if (const TensorInfo* twice = BuildIndex()) {
    return absl::DataLossError(absl::StrCat(path, ": tensor \"", absl::CHexEscape(twice->name),
                                            "\" is in two of its parts; fetch all parts again"));
  }
  return absl::OkStatus();
}

void GgufFile::TakeTensors(GgufFile& part) {
  Storage& from = *part.storage_;
  std::move(part.tensors_.begin(), part.tensors_.end(), std::back_inserter(tensors_));
  std::move(from.tensors.begin(), from.tensors.end(), std::back_inserter(storage_->tensors));
  std::move(from.files.begin(), from.files.end(), std::back_inserter(storage_->files));
}

const TensorInfo* GgufFile::BuildIndex() {
  storage_->by_name.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!storage_->by_name.emplace(tensors_[i].name, i).second) {
      return &tensors_[i];
    }
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(absl::Span<const uint8_t> bytes) {
  ByteReader reader(bytes);
  LAMINA_ASSIGN_OR_RETURN(const Header header, ReadHeader(reader));
  auto file = std::unique_ptr<GgufFile>(new GgufFile());
  LAMINA_ASSIGN_OR_RETURN(file->metadata_, ReadMetadata(reader, header.pairs));
  uint64_t alignment = kDefaultAlignment;
  if (file->Has("general.alignment")) {
    LAMINA_ASSIGN_OR_RETURN(alignment, file->GetUint("general.alignment"));
  }
  if (!std::has_single_bit(alignment) || alignment > kAlignmentMax) {
    return DamagedGguf(absl::StrCat("an alignment of ", alignment), reader.offset());
  }
  LAMINA_RETURN_IF_ERROR(CheckBound("the tensors", header.tensors, kTensorsMax, reader.offset()));
  std::vector<TensorRecord> records;
  for (uint64_t i = 0; i < header.tensors; ++i) {
    LAMINA_ASSIGN_OR_RETURN(TensorRecord record, ReadTensor(reader));
    records.push_back(std::move(record));
  }
  const uint64_t data_start = (reader.offset() + alignment - 1) / alignment * alignment;
  if (!records.empty()) {
    if (data_start > bytes.size()) {
      return DamagedGguf("the file ends before the tensors' data", bytes.size());
    }
    LAMINA_RETURN_IF_ERROR(CheckPlacement(records, data_start, bytes.size(), alignment));
  }
  for (TensorRecord& record : records) {
    file->tensors_.push_back(std::move(record.info));
    file->storage_->tensors.push_back({record.type, bytes.data() + data_start + record.offset});
  }
  if (const TensorInfo* twice = file->BuildIndex()) {
    return DamagedGguf(absl::StrCat("tensor \"", absl::CHexEscape(twice->name), "\" comes twice"),
                       data_start);
  }
  return file;
}

const TensorInfo* GgufFile::Find(absl::string_view name) const {
  const auto found = storage_->by_name.find(name);
  return found == storage_->by_name.end() ? nullptr : &tensors_[found->second];
}

absl::Status GgufFile::Read(absl::string_view name, uint64_t first, absl::Span<float> out) const {
  const auto found = storage_->by_name.find(name);
  if (found == storage_->by_name.end()) {
    return absl::NotFoundError(absl::StrCat("no tensor \"", name, "\" in the file"));
  }
  const Storage::Tensor& tensor = storage_->tensors[found->second];
  const TensorInfo& info = tensors_[found->second];
  const GgufTensorType& type = *tensor.type;
  if (first > info.elements || out.size() > info.elements - first) {
    return absl::InvalidArgumentError(absl::StrCat("elements ", first, " to ", first, " + ",
                                                   out.size(), " are outside tensor \"", name,
                                                   "\" of ", info.elements));
  }
  if (first % type.block_elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "element ", first, " of tensor \"", name, "\" is inside a block of ", type.block_elements));
  }
  const uint8_t* block = tensor.data + first / type.block_elements * type.block_bytes;
  const size_t whole = out.size() / type.block_elements;
  for (size_t i = 0; i < whole; ++i, block += type.block_bytes) {
    type.dequantize(block, out.data() + i * type.block_elements);
  }
  const size_t rest = out.size() % type.block_elements;
  if (rest != 0) {
    float last[256];  // The largest block.
    type.dequantize(block, last);
    std::copy_n(last, rest, out.end() - static_cast<ptrdiff_t>(rest));
  }
  return absl::OkStatus();
}

std::optional<StoredBlocks> GgufFile::Blocks(absl::string_view name) const {
  const auto found = storage_->by_name.find(name);
  if (found == storage_->by_name.end()) {
    return std::nullopt;
  }
  const Storage::Tensor& tensor = storage_->tensors[found->second];
  return StoredBlocks{.type = tensor.type->name,
                      .elements = tensor.type->block_elements,
                      .bytes = tensor.type->block_bytes,
                      .data = tensor.data};
}

}  // namespace lamina::model
