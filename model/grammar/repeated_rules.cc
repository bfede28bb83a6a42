// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/repeated_rules.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lamina::model {
namespace {

constexpr size_t kRepetitionsMax = 256;

// Takes the name that `text` begins with off it; empty if there is none.
absl::string_view TakeName(absl::string_view& text) {
  const auto end = std::find_if(text.begin(), text.end(), [](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.';
  });
  const absl::string_view name = text.substr(0, static_cast<size_t>(end - text.begin()));
  text.remove_prefix(name.size());
  return name;
}

// Takes [capture="x]", lazy] off it. What is quoted has no quote in it, and no escapes.
void TakeAttributes(absl::string_view& text) {
  if (!absl::StartsWith(text, "[")) {
    return;
  }
  bool quoted = false;
  size_t end = 0;
  while (end < text.size() && (quoted || text[end] != ']')) {
    quoted = quoted != (text[end] == '"');
    ++end;
  }
  text.remove_prefix(std::min(end + 1, text.size()));
}

// From a rule to the only one that its body has.
struct Link {
  absl::string_view target;
  bool repeats = false;
  const Link* next = nullptr;
};

// Reads ((NAME)) and ((NAME{2, 3})), with or without a lookahead behind it. The target is empty for
// other bodies.
Link LinkOf(absl::string_view body) {
  Link link;
  if (!absl::ConsumePrefix(&body, "((")) {
    return link;
  }
  const absl::string_view name = TakeName(body);
  if (absl::StartsWith(body, "{")) {
    link.repeats = true;
    body.remove_prefix(std::min(body.find('}'), body.size() - 1) + 1);
  }
  if (absl::ConsumePrefix(&body, "))") && (body.empty() || absl::StartsWith(body, " (="))) {
    link.target = name;
  }
  return link;
}

std::map<absl::string_view, Link> LinksOf(absl::string_view rules) {
  std::map<absl::string_view, Link> links;
  for (absl::string_view line : absl::StrSplit(rules, '\n')) {
    const absl::string_view name = TakeName(line);
    TakeAttributes(line);
    if (!name.empty() && absl::ConsumePrefix(&line, " ::= ")) {
      if (const Link link = LinkOf(line); !link.target.empty()) {
        links.emplace(name, link);
      }
    }
  }
  for (auto& [name, link] : links) {
    const auto next = links.find(link.target);
    link.next = next == links.end() ? nullptr : &next->second;
  }
  return links;
}

}  // namespace

absl::Status CheckRepeatedRules(absl::string_view rules) {
  const std::map<absl::string_view, Link> links = LinksOf(rules);
  for (const auto& [name, first] : links) {
    size_t repetitions = 0;
    size_t steps = 0;  // Since the last of them: rules that lead back without one are no recursion.
    for (const Link* link = &first; link != nullptr && steps <= links.size(); link = link->next) {
      steps = link->repeats ? 0 : steps + 1;
      repetitions += link->repeats ? 1 : 0;
      if (repetitions > kRepetitionsMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("the rule '", name,
                         "' of the grammar is nothing but a repetition of a rule that is "
                         "nothing but a repetition, and so on, without an end or more than ",
                         kRepetitionsMax, " times; write what is repeated into one of them"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
