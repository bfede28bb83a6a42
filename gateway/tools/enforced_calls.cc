// SPDX-License-Identifier: Apache-2.0
//
// Calls that a grammar makes: its format, and its reader, which knows each byte beforehand.

#include <algorithm>
#include <utility>

#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

class EnforcedReader final : public PartReader {
 public:
  explicit EnforcedReader(const CallSyntax& syntax)
      : syntax_(syntax), expected_(syntax.lead + syntax.before) {}

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override {
    absl::string_view rest = text;
    while (!rest.empty()) {
      switch (place_) {
        case Place::kBefore:
          Skip(rest, Place::kName);
          break;
        case Place::kName:
          TakeName(rest, parts);
          break;
        case Place::kBetween:
          Skip(rest, Place::kArguments);
          break;
        case Place::kArguments:
          TakeArguments(rest, parts);
          break;
        case Place::kEnd:
          Skip(rest, Place::kBefore);
          if (place_ == Place::kBefore) {
            // What closes the list is skipped as far as it goes: nothing follows it.
            expected_ = syntax_.separator + syntax_.before;
          }
          break;
      }
    }
  }

  void Finish(std::vector<AnswerPart>&) override {}

 private:
  enum class Place : uint8_t { kBefore, kName, kBetween, kArguments, kEnd };

  void Skip(absl::string_view& rest, Place next) {
    const size_t size = std::min(rest.size(), expected_.size());
    expected_.erase(0, size);
    rest.remove_prefix(size);
    if (expected_.empty()) {
      place_ = next;
    }
  }

  void TakeName(absl::string_view& rest, std::vector<AnswerPart>& parts) {
    const size_t size = std::min(rest.find('"'), rest.size());
    name_.append(rest.data(), size);
    rest.remove_prefix(size);
    if (!rest.empty()) {
      parts.push_back({AnswerPart::Kind::kCall, std::exchange(name_, {})});
      expected_ = syntax_.between;
      place_ = Place::kBetween;
      end_ = JsonEnd();
    }
  }

  void TakeArguments(absl::string_view& rest, std::vector<AnswerPart>& parts) {
    const size_t size = end_.Scan(rest);
    parts.push_back({AnswerPart::Kind::kArguments, std::string(rest.substr(0, size))});
    rest.remove_prefix(size);
    if (end_.done()) {
      expected_ = syntax_.end;
      place_ = Place::kEnd;
    }
  }

  const CallSyntax& syntax_;
  Place place_ = Place::kBefore;
  std::string expected_;  // Not come yet, of what stands between the parts.
  std::string name_;
  JsonEnd end_;
};

}  // namespace

Json CallsFormat(const ToolRequest& tools, const CallSyntax& syntax) {
  const Json any_object = {{"type", "object"}};
  Json tags = Json::array();
  for (const ToolFunction& function : tools.functions) {
    if (tools.choice == ToolChoice::kNamed && function.name != tools.named) {
      continue;
    }
    // One space at most where JSON allows any: small models would write nothing else.
    tags.push_back({{"type", "tag"},
                    {"begin", syntax.before + function.name + syntax.between},
                    {"content",
                     {{"type", "json_schema"},
                      {"json_schema", tools.enforced() ? function.parameters : any_object},
                      {"max_whitespace_cnt", 1}}},
                    {"end", syntax.end}});
  }
  Json calls = {{"type", "tags_with_separator"},
                {"tags", std::move(tags)},
                {"separator", syntax.separator},
                {"at_least_one", true},
                {"stop_after_first", !tools.parallel || tools.choice == ToolChoice::kNamed}};
  if (syntax.lead.empty() && syntax.close.empty()) {
    return calls;
  }
  const auto text = [](const std::string& value) {
    return Json{{"type", "const_string"}, {"value", value}};
  };
  return {{"type", "sequence"},
          {"elements", Json::array({text(syntax.lead), std::move(calls), text(syntax.close)})}};
}

std::unique_ptr<PartReader> MakeEnforcedReader(const CallSyntax& syntax) {
  return std::make_unique<EnforcedReader>(syntax);
}

}  // namespace lamina::gateway
