// SPDX-License-Identifier: Apache-2.0
#include "common/peer_mappings.h"

#include "common/check.h"
#include "common/status_macros.h"

namespace lamina {

absl::StatusOr<std::byte*> PeerMappings::Open(const std::string& key,
                                              absl::FunctionRef<absl::StatusOr<std::byte*>()> map) {
  const std::lock_guard lock(mutex_);
  if (const auto found = mappings_.find(key); found != mappings_.end()) {
    ++found->second.users;
    return found->second.data;
  }
  LAMINA_ASSIGN_OR_RETURN(std::byte* const data, map());
  mappings_[key] = {.data = data, .users = 1};
  return data;
}

void PeerMappings::Close(const std::string& key, absl::FunctionRef<void(std::byte*)> unmap) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(key);
  LAMINA_CHECK(found != mappings_.end());
  if (--found->second.users == 0) {
    unmap(found->second.data);
    mappings_.erase(found);
  }
}

size_t PeerMappings::size() const {
  const std::lock_guard lock(mutex_);
  return mappings_.size();
}

}  // namespace lamina
