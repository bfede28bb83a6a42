// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_request.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/foreign_text.h"

namespace lamina::coordinator {
namespace {

constexpr size_t kWordShown = 64;  // Bytes of a word that names nothing.

void AddOnce(std::string word, std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    words.push_back(std::move(word));
  }
}

}  // namespace

absl::StatusOr<const PreparedPolicy*> ChoosePolicy(const std::vector<PreparedPolicy>& policies,
                                                   const GenerateSpec& spec) {
  if (policies.empty() && spec.policy.empty() && spec.kv.empty()) {
    return nullptr;
  }
  const std::string name =
      spec.policy.empty() && !policies.empty() ? policies.front().name : spec.policy;
  std::vector<std::string> names;
  std::vector<std::string> forms;
  for (const PreparedPolicy& policy : policies) {
    const std::string form(KvFormName(policy.kv));
    AddOnce(policy.name, names);
    if (policy.name != name) {
      continue;
    }
    if (spec.kv.empty() || form == spec.kv) {
      return &policy;
    }
    AddOnce(form, forms);
  }
  if (forms.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy: '", ForeignText(name, kWordShown),
        "' is not one that this cluster prepares, which are ", absl::StrJoin(names, ", ")));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "kv: '", ForeignText(spec.kv, kWordShown), "' is not a form that this cluster prepares for ",
      "policy ", name, ", which are ", absl::StrJoin(forms, ", ")));
}

}  // namespace lamina::coordinator
