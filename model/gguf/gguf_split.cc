// SPDX-License-Identifier: Apache-2.0
//
// Files in parts, as llama.cpp's gguf-split and converters write them:
//
//   NAME-00001-of-00003.gguf   all metadata; some tensors, or none
//   NAME-00002-of-00003.gguf   tensors
//   NAME-00003-of-00003.gguf   tensors
//
// Each part is a GGUF file of its own. It says which one it is (split.no, from 0), how many there
// are (split.count), and how many tensors all have together (split.tensors.count).

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "model/gguf/gguf_file.h"

namespace lamina::model {
namespace {

// What a part says of itself.
struct SplitPlace {
  uint64_t number = 0;
  uint64_t parts = 0;
  uint64_t tensors = 0;
};

absl::StatusOr<SplitPlace> ReadPlace(const GgufFile& file) {
  SplitPlace place;
  LAMINA_ASSIGN_OR_RETURN(place.number, file.GetUint("split.no"));
  LAMINA_ASSIGN_OR_RETURN(place.parts, file.GetUint("split.count"));
  LAMINA_ASSIGN_OR_RETURN(place.tensors, file.GetUint("split.tensors.count"));
  return place;
}

std::string EndingOf(uint64_t number, uint64_t parts) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, parts);
}

std::string TextOf(const SplitPlace& place) {
  return absl::StrCat("part ", place.number + 1, " of ", place.parts, " with ", place.tensors,
                      " tensors in all");
}

absl::Status CheckPlace(const GgufFile& part, const SplitPlace& expected, absl::string_view path) {
  const absl::StatusOr<SplitPlace> place = ReadPlace(part);
  if (!place.ok()) {
    return absl::Status(place.status().code(), absl::StrCat(path, ": ", place.status().message()));
  }
  if (place->number != expected.number || place->parts != expected.parts ||
      place->tensors != expected.tensors) {
    return absl::DataLossError(absl::StrCat(path, " says that it is ", TextOf(*place), ", and ",
                                            TextOf(expected),
                                            " was expected: it is of another split; fetch all "
                                            "parts again"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GgufFile::AddParts(const std::string& path) {
  // Files whose parts were put together say 0.
  if (!Has("split.count") || GetUint("split.count").value_or(0) <= 1) {
    return absl::OkStatus();
  }
  const absl::StatusOr<SplitPlace> first = ReadPlace(*this);
  if (!first.ok()) {
    return absl::Status(first.status().code(), absl::StrCat(path, ": ", first.status().message()));
  }
  absl::string_view name = path;
  const std::string ending = EndingOf(first->number, first->parts);
  if (!absl::ConsumeSuffix(&name, ending)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", TextOf(*first), ", and its name does not end with \"", ending,
                     "\": the others are found by it, so give all parts their names back"));
  }
  if (first->number != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is ", TextOf(*first), ": give the first, ", name, EndingOf(0, first->parts)));
  }
  for (uint64_t number = 1; number < first->parts; ++number) {
    const std::string part_path = absl::StrCat(name, EndingOf(number, first->parts));
    absl::StatusOr<std::unique_ptr<GgufFile>> part = OpenOne(part_path);
    if (absl::IsNotFound(part.status())) {
      return absl::NotFoundError(absl::StrCat(part_path, " is missing: ", path, " is the first of ",
                                              first->parts,
                                              " parts, which lie in one folder; fetch it too"));
    }
    LAMINA_RETURN_IF_ERROR(part.status());
    LAMINA_RETURN_IF_ERROR(CheckPlace(**part, {number, first->parts, first->tensors}, part_path));
    TakeTensors(**part);
  }
  if (tensors_.size() != first->tensors) {
    return absl::DataLossError(absl::StrCat(
        path, ": its ", first->parts, " parts hold ", tensors_.size(),
        " tensors, and split.tensors.count is ", first->tensors, "; fetch all parts again"));
  }
  if (const TensorInfo* twice = BuildIndex()) {
    return absl::DataLossError(absl::StrCat(path, ": tensor \"", absl::CHexEscape(twice->name),
                                            "\" is in two of its parts; fetch all parts again"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
