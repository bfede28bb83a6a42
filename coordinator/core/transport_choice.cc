// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/transport_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace lamina::core {
namespace {

absl::string_view SchemeOf(const std::string& uri) {
  return absl::string_view(uri).substr(0, uri.find(':'));
}

}  // namespace

TransportChoice::TransportChoice(std::vector<std::string> uris) : uris_(std::move(uris)) {}

bool TransportChoice::PassOver(const std::string& node, const std::string& why) {
  if (index_ + 1 == uris_.size()) {
    return false;
  }
  problems_.push_back(absl::StrCat(SchemeOf(uri()), " does not work: ", node, ": ", why));
  ++index_;
  return true;
}

void TransportChoice::Reset() {
  index_ = 0;
  problems_.clear();
}

std::string TransportChoice::Warning() const {
  return index_ == 0
             ? ""
             : absl::StrCat("data goes by ", SchemeOf(uri()), ", not by ", SchemeOf(uris_[0]),
                            ", the first of the list: ", absl::StrJoin(problems_, "; "));
}

}  // namespace lamina::core
