// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "model/gguf/gguf_split_internal.h"

namespace lamina::model {
namespace {

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

}  // namespace

absl::Status CheckPart(const GgufFile& part, const SplitPlace& expected, absl::string_view path) {
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

absl::StatusOr<Split> FindSplit(const GgufFile& file, const std::string& path) {
  // Files whose parts were put together say 0.
  if (!file.Has("split.count") || file.GetUint("split.count").value_or(0) <= 1) {
    return Split{};
  }
  const absl::StatusOr<SplitPlace> first = ReadPlace(file);
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
  return Split{.name = std::string(name), .parts = first->parts, .tensors = first->tensors};
}

std::string Split::PathOf(uint64_t number) const {
  return absl::StrCat(name, EndingOf(number, parts));
}

}  // namespace lamina::model
