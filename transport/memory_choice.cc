// SPDX-License-Identifier: Apache-2.0
#include "transport/memory_choice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lamina::transport {
namespace {

absl::string_view Words(MemoryPath path) {
  switch (path) {
    case MemoryPath::kHost:
      break;
    case MemoryPath::kDmabuf:
      return " by dmabuf";
    case MemoryPath::kPeermem:
      return " by peermem";
    case MemoryPath::kIpc:
      return " by CUDA IPC";
    case MemoryPath::kRegistered:
      return " by UCX";
    case MemoryPath::kStaging:
      return " through a staging buffer";
  }
  return "";
}

}  // namespace

std::string DescribeMemory(const MemoryChoice& choice) {
  const std::string why = choice.why_not.empty() ? "" : absl::StrCat(" (", choice.why_not, ")");
  if (choice.path == MemoryPath::kHost) {
    return absl::StrCat("host memory", why);
  }
  return absl::StrCat("memory of ", choice.device, Words(choice.path), why);
}

}  // namespace lamina::transport
